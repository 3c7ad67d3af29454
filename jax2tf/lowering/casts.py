"""Conversions between dtypes: of values, of bits, and of precision."""

from __future__ import annotations

from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
import tensorflow as tf

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW, NO_CAST
from jax2tf.lowering._common import cast, float_bits, saturating_cast, scalar, where
from jax2tf.registry import lowers


@lowers(P.convert_element_type_p)
def _convert_element_type(
  ctx: RuleContext, operand: tf.Tensor, *, new_dtype: Any, weak_type: bool
) -> tf.Tensor:
  """operand f32[...] -> i32[...]; floats saturate and NaN is 0, integers wrap, complex loses its
  imaginary part."""
  dtype = ctx.dtype_out
  if operand.dtype == dtype:
    return operand
  if operand.dtype in NO_CAST or dtype in NO_CAST:
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
  if {operand.dtype, dtype} & {*NARROW, *NO_CAST, tf.bool}:
    ctx.refuse(
      f"TensorFlow has no bitcast from {operand.dtype.name} to {dtype.name}",
      "bitcast between types of 8 bits and more",
    )
  return tf.bitcast(operand, dtype)


@lowers(P.reduce_precision_p, lacks=NARROW)
def _reduce_precision(
  ctx: RuleContext, operand: tf.Tensor, *, exponent_bits: int, mantissa_bits: int
) -> tf.Tensor:
  """operand f32[...] -> f32[...], rounded to a float of so many bits (ties to even), small
  exponents flushed to zero.

  On the bits, not by a cast there and back: XLA may leave such pairs out.
  """
  info = jnp.finfo(operand.dtype.as_numpy_dtype)
  bits = float_bits(operand, "uint")
  width, dropped = 8 * operand.dtype.size, info.nmant - mantissa_bits
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
  return where(tf.math.is_nan(operand), operand, tf.bitcast(bits, operand.dtype))


@lowers(_jax_compat.to_edtype_p, on_keys=True)
def _to_edtype(ctx: RuleContext, operand: tf.Tensor, *, edtype: Any) -> tf.Tensor:
  """operand u32[..., 2] -> key<fry>[...], the same data."""
  return operand


@lowers(_jax_compat.from_edtype_p, on_keys=True)
def _from_edtype(ctx: RuleContext, operand: tf.Tensor, *, dtype: Any) -> tf.Tensor:
  """operand key<fry>[...] -> u32[..., 2], the same data."""
  return operand
