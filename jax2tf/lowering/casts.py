"""Conversions between dtypes: of values, of bits, and of precision."""

from __future__ import annotations

from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
import tensorflow as tf

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.lowering._common import NARROW, WIDER, cast, saturating_cast, scalar, where
from jax2tf.registry import lowers

# TF 2.21 on CPU casts nothing to or from these.
_NO_CAST = tuple(
  map(
    tf.as_dtype,
    ("int2", "uint2", "float4_e2m1fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz"),
  )
)
_BITS = {
  tf.float16: tf.uint16,
  tf.bfloat16: tf.uint16,
  tf.float32: tf.uint32,
  tf.float64: tf.uint64,
}


@lowers(P.convert_element_type_p)
def _convert_element_type(
  ctx: RuleContext, operand: tf.Tensor, *, new_dtype: Any, weak_type: bool
) -> tf.Tensor:
  """operand f32[...] -> i32[...]; floats saturate and NaN is 0, integers wrap, complex loses its
  imaginary part."""
  dtype = ctx.dtype_out
  if operand.dtype == dtype:
    return operand
  if operand.dtype in _NO_CAST or dtype in _NO_CAST:
    ctx.refuse(
      f"TensorFlow has no cast from {operand.dtype.name} to {dtype.name}",
      "convert to another dtype, or lower natively",
    )
  if operand.dtype.is_complex and not dtype.is_complex:
    operand = tf.math.real(operand)
  if operand.dtype.is_floating and dtype.is_integer:
    return saturating_cast(operand, dtype)
  return cast(operand, dtype)


@lowers(P.bitcast_convert_type_p)
def _bitcast_convert_type(ctx: RuleContext, operand: tf.Tensor, *, new_dtype: Any) -> tf.Tensor:
  """operand f32[...] -> u32[...], or u8[..., 4], or from i16[..., 2]: the same bits, least
  significant first."""
  dtype = ctx.dtype_out
  if operand.dtype == dtype:
    return operand
  if {operand.dtype, dtype} & {*NARROW, *_NO_CAST, tf.bool}:
    ctx.refuse(
      f"TensorFlow has no bitcast from {operand.dtype.name} to {dtype.name}",
      "bitcast between types of 8 bits and more",
    )
  return tf.bitcast(operand, dtype)


@lowers(P.reduce_precision_p)
def _reduce_precision(
  ctx: RuleContext, operand: tf.Tensor, *, exponent_bits: int, mantissa_bits: int
) -> tf.Tensor:
  """operand f32[...] -> f32[...], rounded to a float of so many bits (ties to even), small
  exponents flushed to zero.

  On the bits, not by a cast there and back: XLA may leave such pairs out.
  """
  x = tf.cast(operand, WIDER[operand.dtype]) if operand.dtype in NARROW else operand
  rounded = _round_bits(x, exponent_bits, mantissa_bits)
  return tf.cast(rounded, operand.dtype)


def _round_bits(x: tf.Tensor, exponent_bits: int, mantissa_bits: int) -> tf.Tensor:
  info = jnp.finfo(x.dtype.as_numpy_dtype)
  bits = tf.bitcast(x, _BITS[x.dtype])
  width, dropped = 8 * x.dtype.size, info.nmant - mantissa_bits
  if dropped > 0:  # add just under half of the last place that stays, plus one if that place is odd
    odd = tf.bitwise.bitwise_and(
      tf.bitwise.right_shift(bits, scalar(dropped, bits)), scalar(1, bits)
    )
    bits = tf.bitwise.bitwise_and(
      bits + odd + scalar((1 << (dropped - 1)) - 1, bits),
      scalar((1 << width) - (1 << dropped), bits),
    )
  if exponent_bits < info.nexp:
    sign = tf.bitwise.bitwise_and(bits, scalar(1 << (width - 1), bits))
    exponent = tf.bitwise.bitwise_and(bits, scalar(((1 << info.nexp) - 1) << info.nmant, bits))
    bias, new_bias = (1 << (info.nexp - 1)) - 1, (1 << (exponent_bits - 1)) - 1
    infinity = scalar(((1 << info.nexp) - 1) << info.nmant, bits)
    bits = where(
      exponent > scalar((bias + new_bias) << info.nmant, bits),
      tf.bitwise.bitwise_or(sign, infinity),
      bits,
    )
    bits = where(exponent <= scalar((bias - new_bias) << info.nmant, bits), sign, bits)
  return where(tf.math.is_nan(x), x, tf.bitcast(bits, x.dtype))


@lowers(_jax_compat.to_edtype_p, on_keys=True)
def _to_edtype(ctx: RuleContext, operand: tf.Tensor, *, edtype: Any) -> tf.Tensor:
  """operand u32[..., 2] -> key<fry>[...], the same data."""
  return operand


@lowers(_jax_compat.from_edtype_p, on_keys=True)
def _from_edtype(ctx: RuleContext, operand: tf.Tensor, *, dtype: Any) -> tf.Tensor:
  """operand key<fry>[...] -> u32[..., 2], the same data."""
  return operand
