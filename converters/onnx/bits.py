"""Integer ops for ONNX Runtime: division, shifts and bit patterns, in ops that it has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..export.registry import replaces
from . import opsets

_SIGNED = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}
# Dtypes of 32 bits, which ONNX Runtime 1.32 casts to one another by BitCast.
_CAST_BY_BITS = {tf.float32, tf.int32, tf.uint32}
_UNSIGNED = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


@replaces(
  "TruncateDiv", on="onnx", because="ONNX Runtime 1.31: dies of the smallest integer over -1"
)
def truncate_div(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """x, y i32[...] -> i32[...]; the smallest integer over -1 aborts ONNX Runtime, and wraps in
  XLA."""
  del op
  minus, divisor = _without_minus_one(y)
  quotient = tf.raw_ops.TruncateDiv(x=x, y=divisor)
  return [quotient if minus is None else tf.where(minus, -x, quotient)]


@replaces(
  "TruncateMod", on="onnx", because="tf2onnx 1.17: no handler; ONNX Runtime 1.31: int64 in float64"
)
def truncate_mod(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """x, y i32[...] or f32[...] -> the same, with the sign of x; ONNX Runtime computes int64 in
  float64."""
  if x.dtype.is_floating:
    return [tf.raw_ops.TruncateMod(x=x, y=y)]
  (quotient,) = truncate_div(op, x, y)
  return [x - quotient * y]


@replaces("FloorDiv", on="onnx", because="tf2onnx 1.17: rounds integers towards zero")
def floor_div(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """x, y i32[...] or f32[...] -> the same, rounded down; tf2onnx rounds integers towards zero."""
  if x.dtype.is_floating:
    return [tf.floor(x / y)]
  (quotient,) = truncate_div(op, x, y)
  return [quotient - tf.cast(_crosses(x - quotient * y, y), x.dtype)]


@replaces("FloorMod", on="onnx", because="ONNX Runtime 1.31: dies of the smallest integer over -1")
def floor_mod(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """x, y i32[...] or f32[...] -> the same, with the sign of y."""
  (remainder,) = truncate_mod(op, x, y)
  crosses = _crosses(remainder, y)
  return [
    remainder + tf.cast(crosses, x.dtype) * y
    if x.dtype.is_integer
    else tf.where(crosses, remainder + y, remainder)
  ]


def _crosses(remainder: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Where rounding towards zero rounded the quotient up."""
  zero = tf.constant(0, y.dtype)
  return tf.not_equal(remainder, zero) & tf.not_equal(remainder < zero, y < zero)


def _without_minus_one(y: tf.Tensor) -> tuple[tf.Tensor | None, tf.Tensor]:
  """(where y is -1, y with 1 there). The first is None if y cannot be -1."""
  known = tf.get_static_value(y)
  if y.dtype not in (tf.int32, tf.int64) or (known is not None and np.all(known != -1)):
    return None, y
  minus = tf.equal(y, tf.constant(-1, y.dtype))
  return minus, tf.where(minus, tf.constant(1, y.dtype), y)


def _shifted(
  shift: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
  """x, count u32[...] -> u32[...]; ONNX Runtime has no BitShift of uint16."""
  if x.dtype != tf.uint16:
    return shift(x, count)
  return tf.cast(shift(tf.cast(x, tf.uint32), tf.cast(count, tf.uint32)), x.dtype)


@replaces("LeftShift", on="onnx", because="ONNX: BitShift is of unsigned integers")
def left_shift(op: Any, x: tf.Tensor, count: tf.Tensor) -> list[tf.Tensor]:
  """x, count i32[...] -> i32[...]; BitShift takes unsigned integers only, so the bits are shifted
  as unsigned."""
  del op
  unsigned = _UNSIGNED[x.dtype.size]
  return [
    tf.cast(
      _shifted(tf.bitwise.left_shift, tf.cast(x, unsigned), tf.cast(count, unsigned)), x.dtype
    )
  ]


@replaces("RightShift", on="onnx", because="ONNX: BitShift is of unsigned integers")
def right_shift(op: Any, x: tf.Tensor, count: tf.Tensor) -> list[tf.Tensor]:
  """x, count i32[...] -> i32[...]; BitShift takes unsigned integers only and shifts in zeros, which
  become copies of the sign."""
  del op
  if not x.dtype.min:
    return [_shifted(tf.bitwise.right_shift, x, count)]
  unsigned = _UNSIGNED[x.dtype.size]
  count = tf.cast(count, unsigned)
  # the sign bit after the shift
  sign = _shifted(tf.bitwise.right_shift, tf.constant(1 << (8 * x.dtype.size - 1), unsigned), count)
  return [
    tf.cast((_shifted(tf.bitwise.right_shift, tf.cast(x, unsigned), count) ^ sign) - sign, x.dtype)
  ]


@replaces("PopulationCount", on="onnx", because="tf2onnx 1.17: no handler")
def population_count(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x u32[...] -> u8[...], the number of ones: sums of adjacent groups of 1, 2, 4 ... bits."""
  bits = tf.cast(x, _UNSIGNED[x.dtype.size])
  width = 8 * x.dtype.size
  bits = tf.cast(bits, tf.uint64)
  group = 1
  while group < width:
    mask = tf.constant(sum((2**group - 1) << bit for bit in range(0, 64, 2 * group)), tf.uint64)
    bits = (bits & mask) + (tf.bitwise.right_shift(bits, tf.constant(group, tf.uint64)) & mask)
    group *= 2
  return [tf.cast(bits, op.outputs[0].dtype)]


@replaces("Bitcast", on="onnx", because="tf2onnx 1.17: no handler")
def bitcast(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x of any real dtype -> the same bits in another; without BitCast the sign and the payload of a
  NaN are lost."""
  to = op.get_attr("type")
  if any(dtype.is_floating and dtype not in _LAYOUT for dtype in (x.dtype, to)):
    return [tf.bitcast(x, to)]  # bfloat16 and similar dtypes: the translation refuses them by name
  if opsets.has("BitCast") and {x.dtype, to} <= _CAST_BY_BITS:
    return [tf.bitcast(x, to)]
  if (fraction := _fraction_of_one(x)) is not None and to == tf.float32:
    return [fraction * tf.constant(2.0**-23, to) + tf.constant(1, to)]
  bits = of_float(x) if x.dtype.is_floating else x
  if x.dtype.size == to.size:
    return [_float(bits, to) if to.is_floating else tf.cast(bits, to)]
  small, large = _UNSIGNED[min(x.dtype.size, to.size)], _UNSIGNED[max(x.dtype.size, to.size)]
  width, parts = 8 * small.size, large.size // small.size
  if to.size < x.dtype.size:  # [...] -> [..., parts], lowest part first
    shifts = tf.constant([width * i for i in range(parts)], tf.uint64)
    wide = tf.cast(tf.cast(bits, large), tf.uint64)[..., tf.newaxis]
    result = tf.cast(tf.bitwise.right_shift(wide, shifts), small)
  else:
    shifts = tf.constant([width * i for i in range(parts)], tf.uint64)
    words = tf.bitwise.left_shift(tf.cast(tf.cast(bits, small), tf.uint64), shifts)
    result = tf.cast(_sum_of_parts(words, parts), large)
  return [_float(result, to) if to.is_floating else tf.cast(result, to)]


def _fraction_of_one(x: tf.Tensor) -> tf.Tensor | None:
  """f32[...], the lower 23 bits, if x u32[...] is known to be a word below 2**23 with the bits of
  1.0: so `jax.random.uniform` makes numbers in [1, 2)."""
  if x.dtype != tf.uint32 or x.op.type != "BitwiseOr":
    return None
  for word, one in (x.op.inputs, x.op.inputs[::-1]):
    count = tf.get_static_value(word.op.inputs[1]) if word.op.type == "RightShift" else None
    number = tf.get_static_value(one)  # an array where a StableHLO module has it in full
    is_one = number is not None and np.all(number == 0x3F800000)
    if count is not None and np.all(count >= 9) and is_one and word.shape == x.shape:
      return tf.cast(word, tf.float32)
  return None


def _sum_of_parts(words: tf.Tensor, parts: int) -> tf.Tensor:
  total = words[..., 0]
  for i in range(1, parts):
    total = total | words[..., i]
  return total


# Bits of the significand and of the exponent.
_LAYOUT = {tf.float16: (10, 15), tf.float32: (23, 127), tf.float64: (52, 1023)}


def of_float(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> i32[...], exact: computes sign, exponent and significand in float64; by BitCast
  where the opset has it."""
  if opsets.has("BitCast"):
    return tf.bitcast(x, _SIGNED[x.dtype.size])
  digits, bias = _LAYOUT[x.dtype]
  integer = _SIGNED[x.dtype.size]
  wide = tf.cast(x, tf.float64)
  size = tf.abs(wide)
  finite = size < tf.constant(math.inf, tf.float64)
  size = tf.where(finite, size, tf.constant(0, tf.float64))
  # scaled, so that the logarithm of a subnormal is that of a normal number
  lift = 64 if x.dtype == tf.float64 else 0
  subnormal = size < tf.constant(2.0 ** (1 - bias), tf.float64)
  raised = tf.where(subnormal, size * tf.constant(2.0**lift, tf.float64), size)
  lowest, highest = 1 - bias, bias
  guess = tf.floor(tf.math.log(raised) * tf.constant(1 / math.log(2), tf.float64))
  guess = tf.minimum(
    tf.maximum(guess, tf.constant(lowest, tf.float64)), tf.constant(highest, tf.float64)
  )
  guess = tf.cast(guess, tf.int64)
  guess = tf.where(subnormal, tf.constant(lowest, tf.int64), guess)
  powers = tf.constant([2.0**e for e in range(lowest, highest + 1)], tf.float64)
  power = tf.gather(powers, guess - tf.constant(lowest, tf.int64))
  exponent = guess + tf.cast(size / power >= tf.constant(2.0, tf.float64), tf.int64)
  below = ~subnormal & (size < power)
  exponent = exponent - tf.cast(below, tf.int64)
  # [1, 2), or [0, 1) if subnormal
  significand = size / tf.gather(powers, exponent - tf.constant(lowest, tf.int64))
  fraction = tf.cast(significand * tf.constant(2.0**digits, tf.float64), tf.int64)
  # one less, because the fraction includes the leading digit
  biased = exponent + tf.constant(bias - 1, tf.int64)
  bits = fraction + biased * tf.constant(2**digits, tf.int64)
  infinity = (2 * bias + 1) << digits
  nan = tf.not_equal(x, x)
  bits = tf.where(
    finite,
    bits,
    tf.where(
      nan, tf.constant(infinity | 1 << (digits - 1), tf.int64), tf.constant(infinity, tf.int64)
    ),
  )
  # A comparison ignores the sign of a zero; the reciprocal shows it.
  one, zero = tf.constant(1, x.dtype), tf.constant(0, x.dtype)
  negative = (x < zero) | (tf.equal(x, zero) & (one / x < zero))
  sign = tf.constant(-(2 ** (8 * x.dtype.size - 1)), tf.int64)
  return tf.cast(tf.where(negative, bits + sign, bits), integer)


def _float(bits: tf.Tensor, to: tf.DType) -> tf.Tensor:
  """bits i32[...] -> f32[...], exact: tables hold scale and offset for each sign and exponent; by
  BitCast where the opset has it."""
  if opsets.has("BitCast"):
    return tf.bitcast(tf.cast(bits, _SIGNED[to.size]), to)
  digits, bias = _LAYOUT[to]
  word = tf.cast(bits, _UNSIGNED[to.size])
  powers = [2.0 ** (max(e, 1) - bias) for e in range(2 * bias + 1)]
  (exponent,) = right_shift(None, word, tf.constant(digits, word.dtype))
  scale, offset = (
    tf.gather(tf.constant([*table, *(-x for x in table)], tf.float64), tf.cast(exponent, tf.int32))
    for table in ([*powers, 1.0], [0.0, *powers[1:], math.inf])
  )
  # In two steps, because 2 ** -1074 is subnormal.
  fraction = tf.cast(word & tf.constant(2**digits - 1, word.dtype), tf.float64) * tf.constant(
    2.0**-digits, tf.float64
  )
  nan = (fraction > tf.constant(0, tf.float64)) & tf.equal(
    tf.abs(offset), tf.constant(math.inf, tf.float64)
  )
  return tf.cast(tf.where(nan, tf.constant(math.nan, tf.float64), fraction * scale + offset), to)


@replaces("NextAfter", on="onnx", because="tf2onnx 1.17: no handler")
def next_after(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """x, y f32[...] -> f32[...], the next float after x towards y."""
  del op
  first, last = _place(x), _place(y)
  ordinal = first + tf.cast(first < last, tf.int64) - tf.cast(first > last, tf.int64)
  smallest = tf.constant(-(2 ** (8 * x.dtype.size - 1)), tf.int64)
  bits = tf.where(ordinal < tf.constant(0, tf.int64), smallest - ordinal, ordinal)
  result = _float(bits, x.dtype)
  return [
    tf.where(tf.not_equal(x, x) | tf.not_equal(y, y), x + y, tf.where(tf.equal(x, y), y, result))
  ]


def _place(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> i64[...]: adjacent floats map to adjacent integers, both zeros to 0."""
  bits = tf.cast(of_float(x), tf.int64)
  smallest = tf.constant(-(2 ** (8 * x.dtype.size - 1)), tf.int64)
  return tf.where(bits < tf.constant(0, tf.int64), smallest - bits, bits)
