"""Division, remainder, shifts and bits: what TensorFlow leaves undefined for some integers, XLA
defines."""

from __future__ import annotations

from collections.abc import Callable, Collection

import jax.extend.core.primitives as P
import tensorflow as tf
from jax import lax

from jax2tf.context import RuleContext
from jax2tf.dtypes import HALF, NARROW, ON_HOST_OF_GPU
from jax2tf.lowering._as_written import divide
from jax2tf.lowering._common import (
  as_signed,
  as_unsigned,
  bit_width,
  cast,
  float_bits,
  is_known,
  scalar,
  sign_bit,
  where,
  widened,
)
from jax2tf.lowering._kernels import subtract
from jax2tf.registry import lowers

# TF 2.21: TruncateMod has CPU kernels for these integers only.
_REMAINDER_KERNELS = (tf.int32, tf.int64)


@lowers(P.div_p, lacks=NARROW, lacks_on_gpu=ON_HOST_OF_GPU)
def _div(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y f32[...] -> f32[...]; integers truncate, and x / 0 is -1 (all ones for unsigned)."""
  if not x.dtype.is_integer:
    return divide(x, y)
  if x.dtype == tf.int32 and ctx.destination.on_gpu:  # scalars: TF 2.21 has no TruncateDiv there
    return tf.cast(_truncate_div(tf.cast(x, tf.int64), tf.cast(y, tf.int64)), tf.int32)
  return _truncate_div(x, y)


def _truncate_div(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  if is_known(lambda value: value != 0, y):
    return tf.raw_ops.TruncateDiv(x=x, y=y)
  by_zero = tf.equal(y, scalar(0, y))  # TensorFlow raises an error for it
  quotient = tf.raw_ops.TruncateDiv(x=x, y=where(by_zero, scalar(1, y), y))
  return where(by_zero, scalar(-1 if y.dtype.min else y.dtype.max, y), quotient)


# TF 2.21: no half TruncateMod on CPU
@lowers(P.rem_p, lacks=(*NARROW, *HALF), lacks_on_gpu=ON_HOST_OF_GPU)
def _rem(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y f32[...] -> f32[...] with the sign of x; for integers x rem 0 is x."""
  if x.dtype.is_floating:
    return _remainder_on_gpu(x, y) if ctx.destination.on_gpu else _truncate_mod(x, y)
  # TF 2.21: on GPUs TruncateMod has the kernel of int32 only, of scalars in host memory.
  return _integer_rem(x, y, (tf.int32,) if ctx.destination.on_gpu else _REMAINDER_KERNELS)


def _integer_rem(x: tf.Tensor, y: tf.Tensor, kernels: Collection[tf.DType]) -> tf.Tensor:
  by_zero = None if is_known(lambda value: value != 0, y) else tf.equal(y, scalar(0, y))
  divisor = y if by_zero is None else where(by_zero, scalar(1, y), y)
  if x.dtype not in kernels:
    return subtract(x, tf.raw_ops.TruncateDiv(x=x, y=divisor) * y)
  remainder = _truncate_mod(x, divisor)
  return remainder if by_zero is None else where(by_zero, x, remainder)


def _truncate_mod(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.TruncateMod(x=x, y=y)


def _remainder_on_gpu(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """By FloorMod, which is equal for positive operands: TF 2.21 has no TruncateMod of floats on
  GPUs."""
  size, bits = tf.math.floormod(tf.abs(x), tf.abs(y)), float_bits(x, "uint")
  sign = tf.bitwise.bitwise_and(bits, sign_bit(bits))
  return tf.bitcast(tf.bitwise.bitwise_or(float_bits(size, "uint"), sign), x.dtype)


@lowers(lax.mulhi_p)
def _mulhi(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y u32[...] -> u32[...], the upper half of the 64-bit product."""
  width = bit_width(x.dtype)
  if width == 64:
    return _mulhi_64(x, y)
  wide = tf.int64 if x.dtype.min else tf.uint64
  product = cast(x, wide) * cast(y, wide)
  return cast(tf.bitwise.right_shift(product, scalar(width, product)), x.dtype)


def _mulhi_64(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  a, b = as_unsigned(x), as_unsigned(y)
  half, mask = scalar(32, a), scalar(2**32 - 1, a)
  a_high, a_low = tf.bitwise.right_shift(a, half), tf.bitwise.bitwise_and(a, mask)
  b_high, b_low = tf.bitwise.right_shift(b, half), tf.bitwise.bitwise_and(b, mask)
  middle = a_high * b_low + tf.bitwise.right_shift(a_low * b_low, half)
  carry = a_low * b_high + tf.bitwise.bitwise_and(middle, mask)
  high = cast(
    a_high * b_high + tf.bitwise.right_shift(middle, half) + tf.bitwise.right_shift(carry, half),
    x.dtype,
  )
  if not x.dtype.min:
    return high
  zero = scalar(0, x)  # a negative factor was read as 2**64 too much
  return high - where(x < zero, y, zero) - where(y < zero, x, zero)


def _logic(
  on_bools: Callable[..., tf.Tensor], on_bits: Callable[..., tf.Tensor]
) -> Callable[..., tf.Tensor]:
  def rule(ctx: RuleContext, *operands: tf.Tensor) -> tf.Tensor:
    """bool[...] or i32[...], logical or bit by bit."""
    return (on_bools if operands[0].dtype == tf.bool else on_bits)(*operands)

  return rule


lowers(P.and_p, lacks=NARROW)(_logic(tf.logical_and, tf.bitwise.bitwise_and))
lowers(P.or_p, lacks=NARROW)(_logic(tf.logical_or, tf.bitwise.bitwise_or))
lowers(P.xor_p, lacks=NARROW)(_logic(tf.not_equal, tf.bitwise.bitwise_xor))
# Not LogicalNot: TF 2.21's Grappler rewrites not (x > 0) as x <= 0, which differs for NaN.
lowers(P.not_p, lacks=NARROW)(_logic(lambda x: tf.equal(x, tf.constant(False)), tf.bitwise.invert))


def _in_range(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor | None:
  """count i32[...] -> bool[...]: is it less than the width of x, a negative one being huge; None if
  that is known."""
  width = bit_width(x.dtype)
  if is_known(lambda value: (value >= 0) & (value < width), count):
    return None
  unsigned = as_unsigned(count)
  return unsigned < scalar(width, unsigned)


def _shift_or_zero(shift: Callable[..., tf.Tensor], x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  in_range = _in_range(x, count)  # TensorFlow clamps the count
  shifted = shift(x, count)
  return shifted if in_range is None else where(in_range, shifted, scalar(0, x))


@lowers(P.shift_left_p, lacks=NARROW)
def _shift_left(ctx: RuleContext, x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """x, count i32[...] -> i32[...]; 0 for counts beyond the width."""
  return _shift_or_zero(tf.bitwise.left_shift, x, count)


@lowers(P.shift_right_logical_p)
def _shift_right_logical(ctx: RuleContext, x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """x, count i32[...] -> i32[...], zeros come in; 0 for counts beyond the width."""
  return cast(_shift_or_zero(tf.bitwise.right_shift, _bits(x), _bits(count)), x.dtype)


@lowers(P.shift_right_arithmetic_p)
def _shift_right_arithmetic(ctx: RuleContext, x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """x, count i32[...] -> i32[...], copies of the upper bit come in, also for unsigned x."""

  def shift(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    in_range = _in_range(x, count)
    last = scalar(bit_width(x.dtype) - 1, count)
    return tf.bitwise.right_shift(x, count if in_range is None else where(in_range, count, last))

  return cast(widened(shift)(as_signed(x), as_signed(count)), x.dtype)


@lowers(P.population_count_p)
def _population_count(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x i32[...] -> i32[...], the number of ones."""
  return cast(_ones(ctx, _bits(x)), x.dtype)


@lowers(P.clz_p)
def _clz(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x i32[...] -> i32[...], the number of zeros above the highest one; the width for 0."""
  bits, width = _bits(x), bit_width(x.dtype)
  shift = 1
  while shift < width:  # copies the highest one into all bits below it
    bits = tf.bitwise.bitwise_or(bits, tf.bitwise.right_shift(bits, scalar(shift, bits)))
    shift *= 2
  ones = _ones(ctx, bits)
  return cast(subtract(scalar(width, ones), ones), x.dtype)


def _ones(ctx: RuleContext, bits: tf.Tensor) -> tf.Tensor:
  """u32[...] -> u8[...], the number of ones."""
  if bits.dtype.size >= 4 and ctx.destination.on_gpu:
    bits = as_signed(bits)  # TF 2.21: PopulationCount has no GPU kernels of uint32 and uint64
  return tf.raw_ops.PopulationCount(x=bits)


def _bits(x: tf.Tensor) -> tf.Tensor:
  """x as an unsigned integer that TensorFlow computes with, without the sign extension of an
  int4."""
  if x.dtype in NARROW:
    bits = tf.cast(x, tf.uint8)
    return tf.bitwise.bitwise_and(bits, scalar(2 ** bit_width(x.dtype) - 1, bits))
  return as_unsigned(x)
