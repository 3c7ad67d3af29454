"""JAX functions as layers of Keras 3 on the TensorFlow backend. Loading a layer from a file needs
no JAX."""

from jax2tf.converters.keras import (
  Layer,
  TFSMLayer,
  from_equinox,
  from_flax_linen,
  from_flax_nnx,
  from_haiku,
)

__all__ = ["Layer", "TFSMLayer", "from_equinox", "from_flax_linen", "from_flax_nnx", "from_haiku"]
