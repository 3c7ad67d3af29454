"""A Keras network, with KERAS_BACKEND=jax: convolutions, batch norm, maximum and mean of windows, transposed convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.models.entry import Entry
from tests.models.libraries import Function


def build() -> tuple[Function, Any]:
  """(apply, variables) of image f32[b,32,32,3] -> scores f32[b,10], heat map f32[b,16,16,1]."""
  import keras  # noqa: PLC0415  (its import takes seconds)
  from keras import layers  # noqa: PLC0415

  keras.utils.set_random_seed(0)
  image = keras.Input((32, 32, 3))
  x = layers.MaxPooling2D()(layers.Activation("elu")(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(image))))
  x = layers.AveragePooling2D(2)(layers.Activation("gelu")(layers.SeparableConv2D(16, 3, padding="same")(x)))
  heat = layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="softplus")(x)
  scores = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
  model = keras.Model(image, [scores, heat])
  values = [[np.asarray(v.value) for v in group] for group in (model.trainable_variables, model.non_trainable_variables)]
  return lambda params, image: model.stateless_call(*params, image)[0], values


ENTRY = Entry("keras_cnn", "Keras on JAX", build, {"image": "f32[b,32,32,3]"}, ["scores", "heat"], {"b": (1, 3)})
