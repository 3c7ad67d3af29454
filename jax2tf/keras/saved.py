"""Keras' layer around a SavedModel, as every optimiser takes it."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable("jax2tf")
class TFSMLayer(keras.layers.TFSMLayer):
  """`keras.layers.TFSMLayer` whose weights have names that Adam and others can make names of.

  Keras 3.15 calls a weight as TensorFlow does its variable, `kernel:0`. A slot of an optimiser would be `kernel:0_momentum`, and TensorFlow
  takes no such name.
  """

  def _add_existing_weight(self, weight: Any) -> None:
    name = weight.name.partition(":")[0].replace("/", "_")
    self._track_variable(keras.Variable(weight, dtype=weight.dtype, trainable=weight.trainable, name=name))
