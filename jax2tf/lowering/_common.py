"""Shared helpers of lowering rules: casts between all dtypes, computation in a wider dtype,
constants."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

# JAX computes in these; TF 2.21 on CPU has little more than Cast for them.
_INT4, _UINT4, _E4M3, _E5M2 = map(tf.as_dtype, ("int4", "uint4", "float8_e4m3fn", "float8_e5m2"))
NARROW = (_INT4, _UINT4, _E4M3, _E5M2)
HALF = (tf.float16, tf.bfloat16)
UNSIGNED = (tf.uint8, tf.uint16, tf.uint32, tf.uint64)

# dtype -> one that holds all its values (and the products of two of them, for integers under 32
# bits).
WIDER = {
  tf.bool: tf.uint8,
  _INT4: tf.int8,
  _UINT4: tf.uint8,
  tf.int8: tf.int32,
  tf.uint8: tf.int32,
  tf.int16: tf.int32,
  tf.uint16: tf.int32,
  tf.int32: tf.int64,
  tf.uint32: tf.int64,
  _E4M3: tf.float32,
  _E5M2: tf.float32,
  tf.float16: tf.float32,
  tf.bfloat16: tf.float32,
}

_SIGNED_OF = {
  _UINT4: _INT4,
  tf.uint8: tf.int8,
  tf.uint16: tf.int16,
  tf.uint32: tf.int32,
  tf.uint64: tf.int64,
}
_UNSIGNED_OF = {signed: unsigned for unsigned, signed in _SIGNED_OF.items()}


def widened(op: Callable[..., tf.Tensor], *lacking: tf.DType) -> Callable[..., tf.Tensor]:
  """`op`, computed in a wider dtype for operands of the dtypes `lacking`; a bool result stays
  bool."""

  def wide_op(*operands: tf.Tensor) -> tf.Tensor:
    dtype = operands[-1].dtype  # the first operand of a select is its predicate
    if dtype not in lacking:
      return op(*operands)
    result = op(*(tf.cast(x, WIDER[dtype]) if x.dtype == dtype else x for x in operands))
    return result if result.dtype == tf.bool else tf.cast(result, dtype)

  return wide_op


def scalar(value: Any, like: tf.Tensor) -> tf.Tensor:
  """A constant of the dtype of `like`."""
  return tf.constant(value, like.dtype)


def is_known(condition: Callable[[np.ndarray], Any], tensor: tf.Tensor) -> bool:
  """True if `tensor` is a small constant of the graph and `condition` holds for all its
  elements."""
  if (tensor.shape.num_elements() or 0) not in range(1, 65):
    return False
  try:
    with np.errstate(all="ignore"), warnings.catch_warnings():  # it folds casts with NumPy
      # TF 2.21 reads f16 and bf16 in a way that NumPy 2.5 deprecates
      warnings.simplefilter("ignore", DeprecationWarning)
      value = tf.get_static_value(tensor)
  except TypeError:  # NumPy has no cast between 4-bit integers
    return False
  return value is not None and bool(np.all(condition(value)))


def where(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """`x` where the condition holds, else `y`; one of the two has the shape of the result."""
  if (rank := max(condition.shape.rank, x.shape.rank, y.shape.rank)) <= 8:
    return tf.where(condition, x, y)
  # TF 2.21: SelectV2 takes at most 8 dimensions. Select takes more, but broadcasts nothing.
  shape = tf.shape(x if x.shape.rank == rank else y)
  condition = tf.logical_or(condition, tf.fill(shape, False))
  return tf.raw_ops.Select(
    condition=condition,
    x=x if x.shape.rank else tf.fill(shape, x),
    y=y if y.shape.rank else tf.fill(shape, y),
  )


def bit_width(dtype: tf.DType) -> int:
  """The bits of an integer dtype: 4 for uint4."""
  return 4 if dtype in NARROW else 8 * dtype.size


def as_signed(x: tf.Tensor) -> tf.Tensor:
  """The same bits as a signed integer."""
  return tf.cast(x, _SIGNED_OF.get(x.dtype, x.dtype))


def as_unsigned(x: tf.Tensor) -> tf.Tensor:
  """The same bits as an unsigned integer."""
  return tf.cast(x, _UNSIGNED_OF.get(x.dtype, x.dtype))


def saturating_cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """f32[...] -> i32[...] towards zero; what does not fit becomes the nearest bound and NaN becomes
  0.

  This is XLA's conversion; TensorFlow's Cast leaves these values undefined.
  """
  if x.dtype.size < 4:
    x = tf.cast(x, tf.float32)  # so that the bounds below have values
  least, most = dtype.min, dtype.max
  zero = scalar(0, x)  # NaN > 0 is False
  x = (
    where(x > zero, x, zero)
    if least == 0
    else tf.maximum(where(tf.math.is_nan(x), zero, x), scalar(least, x))
  )
  if int(x.dtype.as_numpy_dtype(most)) == most:
    return cast(tf.minimum(x, scalar(most, x)), dtype)
  # most + 1 is a power of two, the first value that does not fit.
  return where(x < scalar(most + 1, x), tf.cast(x, dtype), tf.constant(most, dtype))


def cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """tf.cast for all pairs of dtypes but float to integer; integers wrap, other values become bool
  by `x != 0`."""
  if x.dtype == dtype:
    return x
  # TF 2.21: no Cast between int4 and floats or bool, nor between float8 and integers or bool.
  if not (x.dtype.is_floating and dtype.is_floating):
    if x.dtype in NARROW:
      x = tf.cast(x, WIDER[x.dtype])
    if dtype in NARROW:
      x = tf.cast(x, WIDER[dtype])
  return tf.cast(x, dtype)
