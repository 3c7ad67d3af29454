"""How does TensorFlow fit a Gaussian process that is written in JAX, and differentiate its
prediction?

A Keras optimiser fits the hyperparameters by the gradient of the marginal likelihood, through a
Cholesky factorisation. Then a GradientTape computes the slope of the prediction. Both gradients are
JAX's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax2tf.examples import quiet, train_step

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import optax
  import tensorflow as tf

  import jax2tf
  from jax2tf.examples.gallery import chart
  from jax2tf.examples.palette import COLOURS

START = {"log_length": np.float32(1), "log_height": np.float32(0), "log_noise": np.float32(-1)}
Params = dict[str, Any]


def truth(x: Any) -> Any:
  return np.sin(2 * x) + 0.3 * x


def kernel(params: Params, a: jax.Array, b: jax.Array) -> jax.Array:
  """The squared exponential kernel: f32[n], f32[m] -> f32[n,m]."""
  distance = (a[:, None] - b[None]) / jnp.exp(params["log_length"])
  return jnp.exp(2 * params["log_height"] - distance**2 / 2)


def factor(params: Params, x: jax.Array) -> jax.Array:
  return jnp.linalg.cholesky(
    kernel(params, x, x) + (jnp.exp(2 * params["log_noise"]) + 1e-5) * jnp.eye(x.shape[0])
  )


def loss(params: Params, x: Any, y: Any) -> jax.Array:
  """The negative log marginal likelihood per observation."""
  lower = factor(params, x)
  white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
  return (white @ white / 2 + jnp.log(jnp.diag(lower)).sum()) / x.shape[0] + jnp.log(2 * jnp.pi) / 2


def predict(
  params: Params, x: jax.Array, y: jax.Array, new: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The mean and standard deviation f32[m] at `new` f32[m]."""
  lower, across = factor(params, x), kernel(params, x, new)
  mean = across.T @ jax.scipy.linalg.cho_solve((lower, True), y)
  explained = jnp.sum(jax.scipy.linalg.solve_triangular(lower, across, lower=True) ** 2, axis=0)
  return mean, jnp.sqrt(jnp.maximum(jnp.exp(2 * params["log_height"]) - explained, 1e-9))


def fit_in_tensorflow(x: np.ndarray, y: np.ndarray, steps: int) -> tuple[Params, list[float]]:
  variables = {name: tf.Variable(value) for name, value in START.items()}
  optimiser, loss_tf = (
    tf.keras.optimizers.Adam(0.05),
    tf.function(jax2tf.convert(loss), autograph=False),
  )
  losses = []
  for _ in range(steps):
    with tf.GradientTape() as tape:
      value = loss_tf(variables, x, y)
    gradients = tape.gradient(value, variables)
    optimiser.apply_gradients((gradients[name], variable) for name, variable in variables.items())
    losses.append(float(value))
  return {name: variable.numpy() for name, variable in variables.items()}, losses


def fit_in_jax(x: np.ndarray, y: np.ndarray, steps: int) -> np.ndarray:
  optimiser = optax.adam(0.05, eps=1e-7)  # Keras' default for epsilon
  step = train_step.make_step(lambda params, _: loss(params, x, y), optimiser)
  *_, losses = train_step.train(
    step, START, optimiser.init(START), {"unused": np.zeros(steps)}, "fitting in JAX"
  )
  return losses


def main(arguments: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
  """The losses in TensorFlow and in JAX."""
  parser = chart.parser(__doc__, "gaussian_process")
  parser.add_argument("--observations", type=int, default=30)
  parser.add_argument("--steps", type=int, default=150)
  options = parser.parse_args(arguments)
  rng = np.random.default_rng(1)
  x = np.sort(rng.uniform(-4, 4, options.observations)).astype(np.float32)
  y, new = (
    (truth(x) + 0.2 * rng.standard_normal(x.shape)).astype(np.float32),
    np.linspace(-5, 5, 201, dtype=np.float32),
  )

  params, losses = fit_in_tensorflow(x, y, options.steps)
  in_jax = fit_in_jax(x, y, options.steps)
  predict_tf, at = jax2tf.convert(predict), tf.constant(new)
  with tf.GradientTape() as tape:
    tape.watch(at)
    mean, deviation = predict_tf(params, x, y, at)
  slope = tape.gradient(mean, at)
  print(
    f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; at most "
    f"{np.abs(np.subtract(losses, in_jax)).max():.1e} from optax and jax.grad"
  )

  figure, (values, slopes, fit) = chart.subplots(1, 3, size=(12, 3.8))
  values.fill_between(
    new,
    mean - 2 * deviation,
    mean + 2 * deviation,
    color=COLOURS["native"],
    alpha=0.35,
    lw=0,
    label="± 2 deviations",
  )
  values.plot(new, mean, COLOURS["ours"], label="prediction")
  values.plot(new, truth(new), COLOURS["hand"], ls="--", label="truth")
  values.plot(x, y, "k.", label="observations")
  slopes.plot(new, slope, COLOURS["ours"], label="by a GradientTape")
  slopes.plot(new, 2 * np.cos(2 * new) + 0.3, COLOURS["hand"], ls="--", label="of the truth")
  fit.plot(in_jax, COLOURS["native"], lw=5, alpha=0.6, label="optax, jax.grad")
  fit.plot(losses, COLOURS["ours"], label="Keras, GradientTape")
  for axes, title, names in (
    (values, "What it predicts", ("x", "y")),
    (slopes, "The slope of the prediction", ("x", "dy/dx")),
    (fit, "Fitting three hyperparameters", ("step", "-log likelihood of an observation (nats)")),
  ):
    axes.set(title=title, xlabel=names[0], ylabel=names[1])
    axes.set_ylim(axes.get_ylim()[0], axes.get_ylim()[1] + 0.3 * np.ptp(axes.get_ylim()))
    axes.legend(
      fontsize="small",
      loc="upper left" if axes is not fit else "upper right",
      ncols=2 if axes is values else 1,
    )
  chart.save(figure, options.picture)
  return np.array(losses), in_jax


if __name__ == "__main__":
  main()
