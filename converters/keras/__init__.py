"""JAX functions as layers of Keras 3 on the TensorFlow backend; `jax2tf.keras` has the public
names."""

import keras

if keras.backend.backend() != "tensorflow":
  raise ImportError(
    f"jax2tf.keras makes layers of TensorFlow graphs, and Keras runs on {keras.backend.backend()} "
    "here; set KERAS_BACKEND=tensorflow. "
    "Keras' own JaxLayer and FlaxLayer run on the JAX backend"
  )

from .layer import Layer as Layer
from .libraries import from_equinox as from_equinox
from .libraries import from_flax_linen as from_flax_linen
from .libraries import from_flax_nnx as from_flax_nnx
from .libraries import from_haiku as from_haiku
from .saved import TFSMLayer as TFSMLayer
