"""jax2tf: a JAX function goes in, a TensorFlow function made of ordinary TensorFlow ops comes out."""

from jax2tf import lowering as _lowering  # noqa: F401  (registers the lowering rules)
from jax2tf.api import DisabledSafetyCheck, PolyShape, convert, dtype_of_val, eval_polymorphic_shape, split_to_logical_devices
from jax2tf.drop_in import install
from jax2tf.errors import LoweringError

__all__ = [
  "DisabledSafetyCheck",
  "LoweringError",
  "PolyShape",
  "convert",
  "dtype_of_val",
  "eval_polymorphic_shape",
  "install",
  "split_to_logical_devices",
]
