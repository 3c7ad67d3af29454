"""Cumulative reductions along one axis."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf
from jax import lax
from jax import numpy as jnp

from jax2tf.context import RuleContext
from jax2tf.lowering._movement import any_dtype
from jax2tf.registry import lowers

# TF 2.21: XLA has no Cumsum of these; int32 and int64 wrap to the same bits. f32 because TensorFlow
# adds halves one by one in their own precision, where the error of XLA's tree grows with log n.
_COMPUTED_IN = {
  tf.int8: tf.int32,
  tf.int16: tf.int32,
  tf.uint8: tf.int32,
  tf.uint16: tf.int32,
  tf.uint32: tf.int32,
  tf.uint64: tf.int64,
  tf.float16: tf.float32,
  tf.bfloat16: tf.float32,
}


@lowers(P.cumsum_p)
@any_dtype
def _cumsum(ctx: RuleContext, operand: tf.Tensor, *, axis: int, reverse: bool) -> tf.Tensor:
  """operand f32[b,n] -> f32[b,n]."""
  cumsum = functools.partial(tf.cumsum, axis=axis, reverse=reverse)
  if operand.dtype.is_complex:  # TF 2.21: XLA has no Cumsum of complex numbers
    return tf.complex(cumsum(tf.math.real(operand)), cumsum(tf.math.imag(operand)))
  return tf.cast(
    cumsum(tf.cast(operand, _COMPUTED_IN.get(operand.dtype, operand.dtype))), operand.dtype
  )


@lowers(P.cumprod_p)
@any_dtype
def _cumprod(ctx: RuleContext, operand: tf.Tensor, *, axis: int, reverse: bool) -> tf.Tensor:
  """operand f32[b,n] -> f32[b,n]."""
  if operand.dtype.is_complex:  # TF 2.21: XLA has no Cumprod of complex numbers
    return _doubled(lax.mul, ctx, operand, axis=axis, reverse=reverse)
  wide = tf.cast(operand, _COMPUTED_IN.get(operand.dtype, operand.dtype))
  return tf.cast(tf.math.cumprod(wide, axis, reverse=reverse), operand.dtype)


def _doubled(
  combine: Callable[..., Any], ctx: RuleContext, operand: tf.Tensor, *, axis: int, reverse: bool
) -> tf.Tensor:
  """operand f32[b,n] -> f32[b,n]; after step k an element stands for the 2**k before it."""
  return ctx.lower_fun(functools.partial(_double, combine, axis, reverse), operand)


def _double(combine: Callable[..., Any], axis: int, reverse: bool, x: Any) -> Any:
  size = x.shape[axis]
  if not isinstance(size, int):
    return _double_in_loop(combine, axis, reverse, x)
  shift = 1
  while shift < size:
    early, late = (
      lax.slice_in_dim(x, 0, -shift, axis=axis),
      lax.slice_in_dim(x, shift, None, axis=axis),
    )
    ends = (
      [lax.slice_in_dim(x, -shift, None, axis=axis)]
      if reverse
      else [lax.slice_in_dim(x, 0, shift, axis=axis)]
    )
    both = [combine(early, late)]
    x = lax.concatenate(both + ends if reverse else ends + both, axis)
    shift *= 2
  return x


def _double_in_loop(combine: Callable[..., Any], axis: int, reverse: bool, x: Any) -> Any:
  size = jnp.array(x.shape[axis], jnp.int32)
  positions = lax.iota(jnp.int32, x.shape[axis])
  column = [-1 if d == axis else 1 for d in range(x.ndim)]

  def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
    shift, x = state
    partners = positions + shift if reverse else positions - shift
    inside = ((partners >= 0) & (partners < size)).reshape(column)
    return 2 * shift, jnp.where(
      inside, combine(jnp.take(x, partners, axis=axis, mode="clip"), x), x
    )

  return lax.while_loop(lambda state: state[0] < size, step, (jnp.int32(1), x))[1]


lowers(P.cummax_p)(functools.partial(_doubled, lax.max))
lowers(P.cummin_p)(functools.partial(_doubled, lax.min))


@lowers(P.cumlogsumexp_p)
def _cumlogsumexp(ctx: RuleContext, operand: tf.Tensor, *, axis: int, reverse: bool) -> tf.Tensor:
  """operand f32[b,n] -> f32[b,n]; JAX traces integers, but cannot compile them."""
  if operand.dtype.is_integer:
    ctx.refuse(
      "JAX itself cannot compile it for integers", "convert the operand to a floating dtype"
    )
  return _doubled(jnp.logaddexp, ctx, operand, axis=axis, reverse=reverse)
