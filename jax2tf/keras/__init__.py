"""JAX functions as layers of Keras 3 on the TensorFlow backend. Loading a layer from a file needs
no JAX."""

import keras

if keras.backend.backend() != "tensorflow":
  raise ImportError(
    f"jax2tf.keras makes layers of TensorFlow graphs, and Keras runs on {keras.backend.backend()} "
    "here; set KERAS_BACKEND=tensorflow. "
    "Keras' own JaxLayer and FlaxLayer run on the JAX backend"
  )

from jax2tf.keras.layer import Layer
from jax2tf.keras.libraries import from_equinox, from_flax_linen, from_flax_nnx, from_haiku
from jax2tf.keras.saved import TFSMLayer

__all__ = ["Layer", "TFSMLayer", "from_equinox", "from_flax_linen", "from_flax_nnx", "from_haiku"]
