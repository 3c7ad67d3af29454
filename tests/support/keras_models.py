"""Keras models of the JAX backend to SavedModels, unmodified; test_drop_in.py runs this, and loads
them.

KERAS_BACKEND=jax python -m jax2tf.install tests/support/keras_models.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import keras
import numpy as np
from jax.experimental import jax2tf
from keras import layers


def attention() -> keras.Model:
  x = keras.Input((6, 8))
  return keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x))


# name -> (model, shape of a batch)
MODELS = {
  "dense": (
    lambda: keras.Sequential(
      [keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(3)]
    ),
    (5, 4),
  ),
  "convolution": (
    lambda: keras.Sequential(
      [
        keras.Input((16, 16, 3)),
        layers.Conv2D(8, 3),
        layers.BatchNormalization(),
        layers.Dropout(0.2),
        layers.Flatten(),
        layers.Dense(3),
      ]
    ),
    (2, 16, 16, 3),
  ),
  "lstm": (lambda: keras.Sequential([keras.Input((7, 4)), layers.LSTM(6)]), (3, 7, 4)),
  "attention": (attention, (2, 6, 8)),
}


def export(folder: Path) -> None:
  """Each model as Keras exports it, an input of another batch size, and what the model makes of it,
  with the gradient of its sum."""
  assert jax2tf.convert.__module__ == "jax2tf.api"
  for name, (build, shape) in MODELS.items():
    model = build()
    model.export(str(folder / name), format="tf_saved_model", verbose=False)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    gradient = jax.grad(lambda x, model=model: model(x).sum())(x)
    np.savez(folder / f"{name}.npz", x=x, y=model(x), gradient=gradient)


if __name__ == "__main__":
  export(Path(sys.argv[1]))
