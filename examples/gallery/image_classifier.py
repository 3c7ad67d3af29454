"""How do I fine-tune a JAX model in Keras?

A convolutional network in plain JAX learns clean images of handwritten digits. A worse camera blurs
images and adds noise. As a Keras layer the network trains on a few of these images: once from the
parameters of JAX, once from random ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from jax2tf.examples import quiet, train_step

with quiet.startup():
  import jax
  import keras
  import optax

  import jax2tf.keras
  from jax2tf.examples.gallery import chart
  from jax2tf.examples.palette import COLOURS

Params = dict[str, Any]


def init(seed: int) -> Params:
  shapes = {"conv_1": (3, 3, 1, 16), "conv_2": (3, 3, 16, 32), "dense": (512, 64), "head": (64, 10)}
  keys = jax.random.split(jax.random.key(seed), len(shapes))
  return {
    name: jax.nn.initializers.he_normal()(key, shape)
    for key, (name, shape) in zip(keys, shapes.items(), strict=True)
  }


def scores(params: Params, images: jax.Array) -> jax.Array:
  """images f32[b,8,8,1] -> f32[b,10]."""
  x = images
  for name, stride in (("conv_1", 1), ("conv_2", 2)):
    x = jax.nn.relu(
      jax.lax.conv_general_dilated(
        x, params[name], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
      )
    )
  return jax.nn.relu(x.reshape(x.shape[0], 512) @ params["dense"]) @ params["head"]


def train_in_jax(images: np.ndarray, labels: np.ndarray, steps: int) -> Params:
  def loss(params: Params, batch: dict[str, Any]) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(
      scores(params, batch["images"]), batch["labels"]
    ).mean()

  params, optimiser, rows = (
    init(0),
    optax.adam(1e-3),
    np.random.default_rng(0).integers(0, len(images), (steps, 64)),
  )
  batches = {"images": images[rows], "labels": labels[rows]}
  params, _, losses = train_step.train(
    train_step.make_step(loss, optimiser),
    params,
    optimiser.init(params),
    batches,
    "training in JAX",
  )
  print(f"JAX: loss {losses[-1]:.4f} on clean images")
  return params


def bad_camera(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Blurs images to the right and downwards, and adds noise."""
  blurred = (images + np.roll(images, 1, axis=1) + np.roll(images, 1, axis=2)) / 3
  return np.clip(blurred + 0.1 * rng.standard_normal(images.shape), 0, 1).astype(np.float32)


def classifier(params: Params) -> keras.Model:
  """A Keras model with the JAX function as a layer."""
  layer = jax2tf.keras.Layer(scores, params, inputs={"images": "f32[b,8,8,1]"})
  model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.GaussianNoise(0.1), layer])
  model.compile(
    keras.optimizers.Adam(1e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
  )
  return model


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
  """The accuracy on test images before the training and after each epoch, from the parameters of
  JAX and from random ones."""
  parser = chart.parser(__doc__, "image_classifier")
  parser.add_argument("--steps", type=int, default=400, help="in JAX")
  parser.add_argument("--epochs", type=int, default=25, help="in Keras")
  parser.add_argument("--images", type=int, default=40, help="of each digit, in Keras")
  options = parser.parse_args(arguments)
  images, labels = load_digits(return_X_y=True)
  images, labels = (images / 16).reshape(-1, 8, 8, 1).astype(np.float32), labels.astype(np.int32)
  train, test = np.arange(1000), np.arange(1000, len(images))
  pretrained = train_in_jax(images[train], labels[train], options.steps)
  few = np.concatenate([train[labels[train] == digit][: options.images] for digit in range(10)])
  images = bad_camera(images, np.random.default_rng(1))

  accuracies: dict[str, list[float]] = {}
  for name, params in {"random parameters": init(1), "parameters from JAX": pretrained}.items():
    keras.utils.set_random_seed(0)
    model = classifier(params)
    before = model.evaluate(images[test], labels[test], len(test), verbose=0, return_dict=True)[
      "accuracy"
    ]
    data = {"validation_data": (images[test], labels[test]), "validation_batch_size": len(test)}
    fitted = model.fit(images[few], labels[few], 10, options.epochs, verbose=0, **data)
    accuracies[name] = [before, *fitted.history["val_accuracy"]]
    print(
      f"Keras, from {name}: {before:.1%} -> {accuracies[name][-1]:.1%} of {len(test)} test images "
      "are right"
    )

  figure, (curves, grid) = chart.subplots(1, 2, size=(10, 4), width_ratios=(3, 2))
  for (name, values), colour in zip(
    accuracies.items(), (COLOURS["hand"], COLOURS["ours"]), strict=True
  ):
    curves.plot(100 * np.array(values), colour, label=f"{name}: {values[-1]:.1%}")
  curves.set(
    title=f"A bad camera: fine-tuned on {options.images} images of each digit",
    xlabel="epoch in Keras",
    ylabel="right on test images (%)",
    ylim=(0, 100),
  )
  curves.legend(loc="lower right")
  shown = test[np.linspace(0, len(test) - 1, 40, dtype=int)]
  guesses = model.predict(images[shown], verbose=0).argmax(axis=1)
  grid.imshow(
    np.pad(images[shown, ..., 0], ((0, 0), (0, 4), (0, 2)))
    .reshape(5, 8, 12, 10)
    .swapaxes(1, 2)
    .reshape(60, 80),
    cmap="gray_r",
    vmin=0,
  )
  for i, (guess, label) in enumerate(zip(guesses, labels[shown], strict=True)):
    colour = COLOURS["ours"] if guess == label else COLOURS["onnx"]
    grid.text(
      i % 8 * 10 + 3.5,
      i // 8 * 12 + 9.7,
      guess,
      ha="center",
      va="center",
      color=colour,
      fontsize="small",
    )
  grid.set_title("What it reads (red: wrong)")
  grid.axis("off")
  chart.save(figure, options.picture)
  return accuracies


if __name__ == "__main__":
  main()
