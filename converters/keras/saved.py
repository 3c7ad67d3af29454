"""Keras' layer around a SavedModel, with weight names that every optimiser accepts."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable("jax2tf")
class TFSMLayer(keras.layers.TFSMLayer):  # type: ignore[misc]
  """`keras.layers.TFSMLayer` whose weights have names that optimisers can extend.

  Keras 3.15 gives a weight the name of its TensorFlow variable, `kernel:0`. The name of an
  optimiser's slot would be `kernel:0_momentum`, which TensorFlow rejects.

  Args:
    filepath: the SavedModel.
    call_endpoint: the signature for inference.
    call_training_endpoint: the signature for training, if it is another one.
    trainable, name, dtype: as for keras.layers.Layer.

  Raises:
    ValueError: the SavedModel has no such signature.

  Examples:
    >>> import os
    >>> os.environ["KERAS_BACKEND"] = "tensorflow"
    >>> import numpy as np
    >>> from jax2tf.converters import saved_model
    >>> import jax2tf.keras
    >>> options = {"inputs": {"x": "f32[b,4]"}, "outputs": ["y"], "with_gradient": True}
    >>> path = saved_model.save(lambda w, x: x @ w, np.ones((4, 2), np.float32), "model", **options)
    >>> layer = jax2tf.keras.TFSMLayer(str(path), call_endpoint="serving_default")
    >>> [tuple(weight.shape) for weight in layer.trainable_weights]
    [(4, 2)]
  """

  def _add_existing_weight(self, weight: Any) -> None:
    name = weight.name.partition(":")[0].replace("/", "_")
    self._track_variable(
      keras.Variable(weight, dtype=weight.dtype, trainable=weight.trainable, name=name)
    )
