"""What trains in TensorFlow trains converted functions as JAX would: Keras, tf.data, loss scaling,
replicas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import close

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 3)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True))
SHAPES = {"w": (3, 5), "v": (5, 1), "b": (1,)}
PARAMS = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def hidden(params: Any, x: Any) -> Any:
  """f32[b,n] -> f32[b,m], with a loop, so that its gradient is not of one op."""
  return jax.lax.scan(
    lambda c, _: (jnp.tanh(c + x @ params["w"]), None),
    jnp.zeros((x.shape[0], params["w"].shape[1])),
    None,
    length=2,
  )[0]


def predict(params: Any, x: Any) -> Any:
  return hidden(params, x) @ params["v"] + params["b"]


def loss(params: Any, x: Any, y: Any) -> Any:
  return jnp.mean((predict(params, x) - y) ** 2)


def train_in_jax(
  params: Any, optimiser: Any, batches: Any, loss: Any = loss
) -> tuple[Any, list[float]]:
  """(parameters, the loss before each step)."""
  state, losses, of = optimiser.init(params), [], jax.jit(jax.value_and_grad(loss))
  for batch in batches:
    value, gradient = of(params, *batch)
    updates, state = optimiser.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
    losses.append(float(value))
  return params, losses


class JaxLayer(keras.layers.Layer):
  """A JAX function of (params, x) whose parameters are Keras' weights."""

  def __init__(self, fun: Any, params: Any, **options: Any):
    super().__init__(**options)
    self._converted = jax2tf.convert(fun, polymorphic_shapes=[None, "b, _"])
    self.params = {
      name: self.add_weight(name=name, shape=x.shape, initializer=keras.initializers.Constant(x))
      for name, x in params.items()
    }

  def call(self, x: Any) -> Any:
    return self._converted({name: tf.convert_to_tensor(w) for name, w in self.params.items()}, x)


@pytest.mark.parametrize(
  "how", [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}], ids=str
)
def test_keras_fit_with_a_converted_layer_among_its_own(how):
  first = keras.layers.Dense(3, activation="tanh")
  last = keras.layers.Dense(1)
  model = keras.Sequential([keras.Input((3,)), first, JaxLayer(hidden, {"w": PARAMS["w"]}), last])
  start = {
    "k": first.kernel.numpy(),
    "c": first.bias.numpy(),
    **PARAMS,
    "v": last.kernel.numpy(),
    "b": last.bias.numpy(),
  }
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **how)
  history = model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]

  def whole(params: Any, x: Any, y: Any) -> Any:
    return loss(params, jnp.tanh(x @ params["k"] + params["c"]), y)

  batches = [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)] * 3
  params, losses = train_in_jax(start, optax.sgd(0.1, momentum=0.9), batches, whole)
  # Keras' epoch is the mean of its batches
  np.testing.assert_allclose(history, np.reshape(losses, (3, 3)).mean(1), rtol=1e-5)
  names = ["k", "c", "w", "v", "b"]
  assert len(model.trainable_variables) == len(names)
  for variable, name in zip(model.trainable_variables, names, strict=True):
    np.testing.assert_allclose(variable.numpy(), params[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_loop_over_a_dataset_inside_a_tf_function():
  """The gradient stands in the body of a dataset's loop, with a last batch of another size."""
  variables = {name: tf.Variable(x) for name, x in PARAMS.items()}
  converted = jax2tf.convert(loss, polymorphic_shapes=[None, "b, _", "b, _"])
  normalise = jax2tf.convert(lambda x, y: (x / (1 + jnp.abs(x)), y), with_gradient=False)
  data = tf.data.Dataset.from_tensor_slices((X, Y)).map(normalise).batch(10).repeat(2)

  @tf.function  # AutoGraph makes the loop a loop of TensorFlow
  def train(data: Any) -> Any:
    total, count = 0.0, 0
    for x, y in data:
      with tf.GradientTape() as tape:
        value = converted(variables, x, y)
      for name, gradient in tape.gradient(value, variables).items():
        variables[name].assign_sub(0.1 * gradient)
      total, count = total + value, count + 1
    return total, count

  total, count = train(data)
  normalised = X / (1 + np.abs(X))
  params, losses = train_in_jax(
    PARAMS, optax.sgd(0.1), [(normalised[i : i + 10], Y[i : i + 10]) for i in (0, 10, 20)] * 2
  )
  assert count == 6
  np.testing.assert_allclose(total, np.sum(losses), rtol=1e-5)
  close(
    {name: v.read_value() for name, v in variables.items()}, params, rtol=1e-4, of_the_largest=True
  )


def half_loss(params: Any, x: Any, y: Any) -> Any:
  """Computed in f16 from parameters in f32, as mixed precision does."""
  half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
  return jnp.mean(
    (jnp.tanh(x.astype(jnp.float16) @ half["w"]) @ half["v"] + half["b"] - y.astype(jnp.float16))
    ** 2
  )


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("factor", [1.0, 1e-4], ids=["normal", "gradients_below_f16"])
def test_loss_scaling_gives_jaxs_scaled_gradients(wrap, factor):
  """The cotangents in f16 are those of the scaled loss; where a scale makes them overflow, the step
  is skipped and the scale halved."""
  variables = [tf.Variable(PARAMS[name]) for name in ("w", "v", "b")]
  converted = jax2tf.convert(half_loss)
  optimiser = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**10)
  optimiser.build(variables)

  def step(y: Any) -> Any:
    with tf.GradientTape() as tape:
      value = (
        tf.cast(converted(dict(zip(("w", "v", "b"), variables, strict=True)), X, y), tf.float32)
        * factor
      )
      scaled = optimiser.scale_loss(value)
    gradients = tape.gradient(scaled, variables)
    optimiser.apply(gradients)
    return gradients

  run = wrap(step)
  gradients = run(tf.constant(Y))
  scale = np.float16(2.0**10 * factor)
  expected = jax.grad(lambda p: half_loss(p, X, Y) * scale)(PARAMS)
  for name, gradient, variable in zip(("w", "v", "b"), gradients, variables, strict=True):
    # a few roundings of f16, 5e-4 each
    close(gradient, expected[name], rtol=5e-3, of_the_largest=True)
    np.testing.assert_allclose(
      variable, PARAMS[name] - 0.5 * gradient / 2**10, rtol=1e-5, atol=1e-6
    )
  before = [v.numpy() for v in variables]
  gradients = run(tf.constant(Y * 0 + 6e4))  # in f16, 2 * 6e4 is infinite
  assert not all(np.isfinite(g).all() for g in gradients)
  close([v.read_value() for v in variables], before)
  assert float(optimiser.dynamic_scale.numpy()) == 2.0**9


def test_keras_mixed_precision_policy():
  """Under mixed_float16 the layer is called with f16 inputs and f16 views of its f32 weights, and
  its gradients are f32."""
  layer = JaxLayer(lambda p, x: jnp.tanh(x @ p["w"]), {"w": PARAMS["w"]}, dtype="mixed_float16")
  with tf.GradientTape() as tape:
    y = layer(tf.constant(X))
    value = tf.reduce_sum(tf.cast(y, tf.float32))
  gradient = tape.gradient(value, layer.trainable_variables[0].value)
  assert y.dtype == tf.float16
  expected = jax.grad(
    lambda w: jnp.tanh(X.astype(np.float16) @ w.astype(jnp.float16)).astype(jnp.float32).sum()
  )(PARAMS["w"])
  close(gradient, expected, rtol=1e-2, of_the_largest=True)


def test_mirrored_replicas_average_to_jaxs_step():
  """Four logical devices, which TensorFlow only makes before it starts: in a process of their
  own."""
  here = Path(__file__).resolve().parents[1]
  environment = {**os.environ, "PYTHONPATH": str(here.parent)}
  command = [sys.executable, "-m", "tests.gradients.mirrored_replicas"]
  run = subprocess.run(
    command,
    cwd=here.parent,
    env=environment,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert run.returncode == 0, run.stderr[-4000:]
  assert run.stdout.split()[-1] == "equal"
