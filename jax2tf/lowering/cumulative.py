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
from jax2tf.dtypes import HALF, NARROW
from jax2tf.lowering._common import as_signed
from jax2tf.registry import lowers

# TF 2.21: XLA has no Cumsum of 8 and 16 bits; TensorFlow adds halves one by one in their own
# precision, where the error of XLA's tree grows with log n.
_LACKS = (*NARROW, tf.int8, tf.uint8, tf.int16, tf.uint16, *HALF)


@lowers(P.cumsum_p, lacks=_LACKS)
def _cumsum(ctx: RuleContext, operand: tf.Tensor, *, axis: int, reverse: bool) -> tf.Tensor:
  """operand f32[b,n] -> f32[b,n]."""
  cumsum = functools.partial(tf.cumsum, axis=axis, reverse=reverse)
  if operand.dtype.is_complex:  # TF 2.21: XLA has no Cumsum of complex numbers
    return tf.complex(cumsum(tf.math.real(operand)), cumsum(tf.math.imag(operand)))
  # TF 2.21: XLA has no Cumsum of unsigned integers; signed ones wrap to the same bits.
  return tf.cast(cumsum(as_signed(operand)), operand.dtype)


@lowers(P.cumprod_p, lacks=_LACKS)
def _cumprod(ctx: RuleContext, operand: tf.Tensor, *, axis: int, reverse: bool) -> tf.Tensor:
  """operand f32[b,n] -> f32[b,n]."""
  if operand.dtype.is_complex:  # TF 2.21: XLA has no Cumprod of complex numbers
    return _doubled(lax.mul, ctx, operand, axis=axis, reverse=reverse)
  product = tf.math.cumprod(as_signed(operand), axis, reverse=reverse)  # as in _cumsum
  return tf.cast(product, operand.dtype)


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
