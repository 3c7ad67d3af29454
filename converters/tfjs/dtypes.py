"""Representation of dtypes that TF.js lacks, and integer arithmetic that is right on all its
backends.

TF.js has float32, int32 and bool. A narrower integer is held as an int32 of the same value, uint32
as the int32 of the same bits, and 16-bit and 64-bit floats as float32. 64-bit integers occur only
inside a graph, as sizes and indices. They are held as int32; ops whose result could differ are
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

HELD: Mapping[tf.DType, tf.DType] = {
  **dict.fromkeys(
    (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.uint32, tf.int64, tf.uint64), tf.int32
  ),
  **dict.fromkeys((tf.float16, tf.bfloat16, tf.float64), tf.float32),
}
WIDE = (tf.int64, tf.uint64)
_READS_WORDS = ("StatelessRandomUniformFullIntV2",)
# Ops whose first operand has all elements of the result.
_MOVES = (
  "Reshape",
  "ExpandDims",
  "Squeeze",
  "StridedSlice",
  "GatherV2",
  "Identity",
  "BroadcastTo",
  "Transpose",
)
_LEAST = -(2**31)
_POWERS = np.array([*(2**k for k in range(31)), _LEAST], np.int32)


def wrapped(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Wraps an int32 to the range of `dtype`, in held form."""
  if dtype.size >= 4:
    return x
  low = _low_bits(x, 8 * dtype.size)
  return tf.where(low > dtype.max, low - (1 << 8 * dtype.size), low) if dtype.min else low


def in_order(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Maps held values to int32s in the order of `dtype`. It is its own inverse."""
  return x + _LEAST if dtype == tf.uint32 else x


def is_size(tensor: tf.Tensor) -> bool:
  """Whether this tensor of the original graph depends only on constants and shapes."""
  sources = ("Shape", "ShapeN", "Size", "Rank", "Const")
  if tensor.op.type in sources:
    return True
  through = (
    "StridedSlice",
    "Pack",
    "Unpack",
    "ConcatV2",
    "Prod",
    "Mul",
    "AddV2",
    "Add",
    "Sub",
    "Cast",
    "Reshape",
    "Maximum",
    "Minimum",
  )
  return tensor.op.type in (
    *through,
    "FloorDiv",
    "GatherV2",
    "Identity",
    "Squeeze",
    "ExpandDims",
  ) and all(map(is_size, tensor.op.inputs))


def is_exact(tensor: tf.Tensor) -> bool:
  """Whether this 64-bit integer of the original graph is known to fit in int32."""
  op = tensor.op
  if op.type == "Const":
    value = tf.get_static_value(tensor)
    return bool(np.all((value >= _LEAST) & (value <= 2**31 - 1)))
  if op.type == "Cast":
    source = op.inputs[0].dtype
    return source == tf.bool or (
      source.is_integer and source != tf.uint32 and (source not in WIDE or is_exact(op.inputs[0]))
    )
  if op.type in ("ArgMax", "ArgMin", "Shape", "Size", "Rank"):
    return True
  if op.type in (*_MOVES, "RightShift"):
    return all(is_exact(x) for x in op.inputs if x.dtype in WIDE)
  if op.type == "Range":  # a limit beyond int32 exceeds the number of elements of any TF.js tensor
    start, _, delta = op.inputs
    return is_exact(start) and is_exact(delta)
  if op.type == "Minimum" and is_bounded_index(op):
    return True
  if op.type in ("Maximum", "Minimum", "ConcatV2", "Pack", "SelectV2"):
    return all(is_exact(x) for x in op.inputs if x.dtype in WIDE)
  return is_size(tensor)


def is_bounded_index(op: tf.Operation) -> bool:
  """Whether a Minimum of the original graph is that of a uint32, cast to 64 bits, and a bound from
  0 on, as of an index."""
  index, bound = op.inputs
  while index.op.type in _MOVES:
    index = index.op.inputs[0]
  is_index = index.op.type == "Cast" and index.op.inputs[0].dtype == tf.uint32
  value = tf.get_static_value(bound)
  return is_index and value is not None and bool(np.all((value >= 0) & (value < 2**31)))


def bounded_index(index: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
  """The Minimum of `is_bounded_index`, of held operands."""
  return tf.where(index < 0, bound, tf.minimum(index, bound))


def are_words_enough(op: tf.Operation) -> bool:
  """Whether u64[n] may be held as i32[n, 2], its words: if only generators of random bits read
  it."""
  readers = op.outputs[0].consumers()
  is_result = any(y is op.outputs[0] for y in getattr(op.graph, "outputs", ()))
  return bool(readers) and not is_result and all(x.type in _READS_WORDS for x in readers)


def _known(x: tf.Tensor, test: Callable[[Any], Any]) -> bool:
  value = tf.get_static_value(x)
  return value is not None and bool(np.all(test(value)))


def multiply(x: tf.Tensor, y: tf.Tensor, dtype: tf.DType = tf.int32) -> tf.Tensor:
  """The low 32 bits of the product. The cpu backend multiplies in float64, which is exact below
  2**53."""
  if dtype.size < 4 or any(
    _known(a, lambda v: np.abs(v.astype(np.int64)) <= 2**21) for a in (x, y)
  ):
    return tf.multiply(x, y)
  high, low = _halves(x)
  return tf.multiply(tf.multiply(high, y), 2**16) + tf.multiply(low, y)


def _low_bits(x: tf.Tensor, count: int) -> tf.Tensor:
  """The low `count` bits. FloorMod of integers is right on all backends; BitwiseAnd is on none in a
  graph model."""
  return tf.math.floormod(x, 1 << count)


def _halves(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """x = 2**16 * high + low with 0 <= low. The wasm backend divides in float32, which is exact for
  the 16 upper bits."""
  low = _low_bits(x, 16)
  return tf.math.floordiv(x - low, 2**16), low


_BITS = np.array([2**k for k in range(16)], np.int32)


def _bits(x: tf.Tensor) -> tf.Tensor:
  """i32[...] -> i32[...,2,16], the bits as zeros and ones."""
  high, low = _halves(x)
  halves = tf.stack([low, _low_bits(high, 16)], -1)
  return tf.math.floormod(tf.math.floordiv(halves[..., None], _BITS), 2)


def _of_bits(bits: tf.Tensor) -> tf.Tensor:
  halves = tf.reduce_sum(tf.multiply(bits, _BITS), -1)
  return tf.multiply(halves[..., 1], 2**16) + halves[..., 0]


def bitwise_and(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x & y, by FloorMod for masks 2**k - 1, otherwise bit by bit."""
  for one, other in ((x, y), (y, x)):
    value = tf.get_static_value(one)
    if (
      value is not None
      and value.size == 1
      and (mask := int(value.flat[0])) > 0
      and mask & (mask + 1) == 0
      and mask < 2**30
    ):
      return tf.broadcast_to(
        _low_bits(other, mask.bit_length()), tf.broadcast_dynamic_shape(tf.shape(x), tf.shape(y))
      )
  return _of_bits(_bits(x) * _bits(y))


def bitwise_or(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x | y, bit by bit."""
  return _of_bits(tf.maximum(_bits(x), _bits(y)))


def exclusive_or(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x ^ y, by a sum for masks that flip the sign bit or all other bits, otherwise bit by bit."""
  for one, other in ((x, y), (y, x)):
    if _known(one, lambda v: v == _LEAST):
      return other + one
    if _known(one, lambda v: v == 2**31 - 1):
      return (-1 - other) + (one + 1)
  return _of_bits(tf.abs(_bits(x) - _bits(y)))


def shift_left(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """x << count, for counts from 0 to 31."""
  return tf.multiply(x, _power(count))  # a product with a power of two is exact in float64


def shift_right(x: tf.Tensor, count: tf.Tensor, logical: bool) -> tf.Tensor:
  """x >> count, for counts from 0 to 31. Shifts in zeros if `logical`, and otherwise copies of the
  sign."""
  high, low = _halves(x)
  if logical:
    high = _low_bits(high, 16)
  far = tf.math.floordiv(high, _power(tf.maximum(count - 16, 0)))
  near = tf.multiply(high, _power(tf.maximum(16 - count, 0))) + tf.math.floordiv(
    low, _power(tf.minimum(count, 16))
  )
  value = tf.get_static_value(count)
  if value is not None and value.size and np.all(value.flat[0] == value):
    return far if value.flat[0] > 16 else near
  return tf.where(count > 16, far, near)


def _power(count: tf.Tensor) -> tf.Tensor:
  value = tf.get_static_value(count)
  return (
    tf.gather(_POWERS, tf.clip_by_value(count, 0, 31))
    if value is None
    else tf.constant(_POWERS[np.clip(value, 0, 31)])
  )


def divide(x: tf.Tensor, y: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
  """(quotient rounded down, remainder). Unspecified where y is 0.

  The wasm backend divides in float32: the quotient has an error of up to 2**8, which a second
  division corrects.
  """
  if dtype == tf.uint32:
    return _divide_unsigned(x, y)
  # wasm fails for a divisor of zero
  y = y if _known(y, lambda v: v != 0) else tf.where(tf.equal(y, 0), 1, y)
  rest = tf.math.floormod(x, y)
  short = tf.logical_and(tf.not_equal(rest, 0), tf.not_equal(x < 0, y < 0))
  whole = x - tf.where(short, rest - y, rest)  # towards zero, where it fits
  quotient = tf.math.floordiv(whole, y)
  if dtype.size >= 4:
    more = tf.cast(whole - multiply(quotient, y), tf.float32) / tf.cast(y, tf.float32)
    quotient = quotient + tf.cast(tf.round(more), tf.int32)
  quotient = tf.where(short, quotient - 1, quotient)
  return quotient, rest


def _divide_unsigned(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Divides half of x, which is nonnegative. For a divisor of 2**31 or more the quotient is 0 or
  1."""
  half, _ = divide(shift_right(x, tf.constant(1), True), y, tf.int32)
  quotient = tf.where(y < 0, 0, tf.multiply(half, 2))
  rest = x - multiply(quotient, y)
  once = in_order(rest, tf.uint32) >= in_order(y, tf.uint32)
  return tf.where(once, quotient + 1, quotient), tf.where(once, rest - y, rest)


def to_float(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """int32 that holds a `dtype` -> f32, rounded once."""
  if dtype != tf.uint32:
    return tf.cast(x, tf.float32)
  high, low = _halves(x)
  return tf.cast(_low_bits(high, 16), tf.float32) * 2.0**16 + tf.cast(low, tf.float32)


def bits_of_float(x: tf.Tensor) -> tf.Tensor:
  """f32 -> i32 of the same bits. Every NaN becomes the canonical one."""
  size = tf.abs(x)
  ordinary = tf.logical_and(size >= 2.0**-126, size < np.inf)
  safe = tf.where(ordinary, size, 1.0)
  # The integer part of the logarithm may be off by one near a power of two.
  exponent = tf.clip_by_value(
    tf.cast(tf.floor(tf.math.log(safe) * np.float32(1 / np.log(2))), tf.int32), -126, 127
  )
  exponent = tf.where(safe < tf.gather(_FLOAT_POWERS, exponent + 127), exponent - 1, exponent)
  exponent = tf.where(
    tf.logical_and(
      exponent < 127, safe >= tf.gather(_FLOAT_POWERS, tf.minimum(exponent + 1, 127) + 127)
    ),
    exponent + 1,
    exponent,
  )
  half = tf.math.floordiv(exponent, 2)  # in two steps, because 2**-127 is subnormal
  fraction = (
    safe * tf.gather(_FLOAT_POWERS, 127 - half) * tf.gather(_FLOAT_POWERS, 127 - (exponent - half))
  )
  bits = tf.multiply(exponent + 127, 2**23) + tf.cast((fraction - 1.0) * 2.0**23, tf.int32)
  # Abs prevents Grappler from multiplying the constants: 2**149 is infinite, 2**-149 is subnormal.
  small = tf.cast(tf.abs(tf.where(size < 2.0**-126, size, 0.0) * 2.0**100) * 2.0**49, tf.int32)
  bits = tf.where(ordinary, bits, tf.where(size < 2.0**-126, small, 0x7F800000))
  bits = tf.where(tf.not_equal(x, x), 0x7FC00000, bits)
  negative = tf.logical_or(x < 0, tf.logical_and(tf.equal(x, 0), tf.math.reciprocal(x) < 0))
  return tf.where(negative, bits + _LEAST, bits)


_FLOAT_POWERS = np.ldexp(np.float32(1), np.arange(-127, 128)).astype(np.float32)


def float_of_bits(x: tf.Tensor) -> tf.Tensor:
  """i32 -> f32 of the same bits."""
  exponent = _low_bits(shift_right(x, tf.constant(23), True), 8)
  mantissa = _low_bits(x, 23)
  size = tf.cast(mantissa, tf.float32)
  power = tf.gather(_FLOAT_POWERS, tf.clip_by_value(exponent, 0, 254))
  value = tf.where(
    tf.equal(exponent, 0), tf.abs(size * 2.0**-126) * 2.0**-23, (size * 2.0**-23 + 1.0) * power
  )
  value = tf.where(
    tf.equal(exponent, 255),
    tf.where(tf.equal(mantissa, 0), np.float32(np.inf), np.float32(np.nan)),
    value,
  )
  return tf.where(x < 0, -value, value)
