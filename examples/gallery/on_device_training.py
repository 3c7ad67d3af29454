"""How does a model train on the user's device?

JAX trains a classifier of handwritten digits. The user holds the device sideways, so the images are
rotated and the classifier fails. LiteRT continues the training with the user's images. The file
contains the training step with JAX's gradient, so no image leaves the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import jax.numpy as jnp
  from ai_edge_litert.interpreter import Interpreter

  from jax2tf.converters import tflite
  from jax2tf.examples.gallery import chart
  from jax2tf.examples.palette import COLOURS

BATCH, LEARNING_RATE = 16, 0.1
Params = dict[str, dict[str, Any]]


def init(rng: np.random.Generator) -> Params:
  def layer(n: int, m: int) -> dict[str, np.ndarray]:
    return {
      "kernel": (rng.standard_normal((n, m)) * np.sqrt(2 / n)).astype(np.float32),
      "bias": np.zeros(m, np.float32),
    }

  return {"first": layer(64, 64), "last": layer(64, 10)}


def scores(params: Params, images: jax.Array) -> jax.Array:
  """images f32[b,8,8] -> f32[b,10]."""
  first, last = params["first"], params["last"]
  return (
    jax.nn.relu(images.reshape(-1, 64) @ first["kernel"] + first["bias"]) @ last["kernel"]
    + last["bias"]
  )


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
  chosen = jax.nn.one_hot(labels, 10)
  return -jnp.mean(jnp.sum(jax.nn.log_softmax(scores(params, images)) * chosen, axis=1))


@jax.jit
def step(params: Params, images: jax.Array, labels: jax.Array) -> tuple[Params, jax.Array]:
  value, gradient = jax.value_and_grad(loss)(params, images, labels)
  return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradient), value


def main(arguments: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray, list[float]]:
  """(losses on the device, losses in JAX, accuracy on the device after some of the steps)."""
  parser = chart.parser(__doc__, "on_device_training")
  parser.add_argument("--steps", type=int, default=300, help="on the device")
  parser.add_argument("--pretraining", type=int, default=1500, help="steps in JAX, before")
  options = parser.parse_args(arguments)
  rng = np.random.default_rng(0)
  images, labels = load_digits(return_X_y=True)
  images, labels = (images / 16).reshape(-1, 8, 8).astype(np.float32), labels.astype(np.int32)
  sideways = np.rot90(images, axes=(1, 2)).copy()

  params = init(rng)
  for rows in rng.integers(0, 800, (options.pretraining, BATCH)):
    params, _ = step(params, images[rows], labels[rows])

  options.picture.parent.mkdir(parents=True, exist_ok=True)
  exported = tflite.save_training(
    loss,
    scores,
    params,
    options.picture.with_suffix(".tflite"),
    batch={"images": f"f32[{BATCH},8,8]", "labels": f"i32[{BATCH}]"},
    inputs={"images": "f32[b,8,8]"},
    outputs=["scores"],
    learning_rate=LEARNING_RATE,
    examples={"labels": lambda rng, shape, dtype: rng.integers(0, 10, shape)},
    overwrite=True,
  )
  print(f"{exported.path}: {exported.size / 1e3:.0f} kB, with the step of training")

  device = Interpreter(str(exported.path))
  train, infer = device.get_signature_runner("train"), device.get_signature_runner("infer")

  def accuracy() -> float:
    return float(np.mean(infer(images=sideways[1200:])["scores"].argmax(axis=1) == labels[1200:]))

  accuracies, on_device, in_jax, every = [accuracy()], [], [], max(options.steps // 30, 1)
  for i, rows in enumerate(rng.integers(800, 1200, (options.steps, BATCH)), 1):
    on_device.append(float(train(images=sideways[rows], labels=labels[rows])["loss"]))
    params, value = step(params, sideways[rows], labels[rows])
    in_jax.append(float(value))
    if i % every == 0:
      accuracies.append(accuracy())
  print(
    f"right on new images: {accuracies[0]:.1%} before, {accuracies[-1]:.1%} after {options.steps} "
    "steps on the device"
  )
  print(
    f"the losses differ from JAX's by {np.abs(np.subtract(on_device, in_jax)).max():.1e} at most"
  )

  figure, (losses, right, shown) = chart.subplots(1, 3, size=(12, 3.8), width_ratios=(3, 3, 1.5))
  losses.plot(in_jax, COLOURS["jax"], lw=4, alpha=0.25, label="JAX, to compare")
  losses.plot(on_device, COLOURS["tflite"], lw=1, label="LiteRT, on the device")
  losses.set(
    title="The same steps on the same batches", xlabel="step", ylabel="loss (nats)", yscale="log"
  )
  losses.legend()
  right.plot(
    every * np.arange(len(accuracies)), 100 * np.array(accuracies), COLOURS["tflite"], marker="."
  )
  right.set(
    title="New images of this user", xlabel="steps on the device", ylabel="right (%)", ylim=(0, 100)
  )
  shown.imshow(
    np.pad(sideways[1200:1221], ((0, 0), (1, 1), (1, 1)))
    .reshape(7, 3, 10, 10)
    .swapaxes(1, 2)
    .reshape(70, 30),
    cmap="gray_r",
  )
  shown.set_title("Some of them")
  shown.axis("off")
  chart.save(figure, options.picture)
  return np.array(on_device), np.array(in_jax), accuracies


if __name__ == "__main__":
  main()
