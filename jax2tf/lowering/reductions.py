"""Reductions over axes: sums, products, extrema, their positions, and `reduce` with any reducer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
import tensorflow as tf
from jax import lax

from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW
from jax2tf.errors import ACROSS_DEVICES
from jax2tf.jaxprs import ClosedJaxpr
from jax2tf.lowering._as_written import apart, extrema_apart
from jax2tf.lowering._movement import as_rank3, is_one
from jax2tf.lowering._reducers import binary_primitive, combine_by, reduced
from jax2tf.registry import lowers

# TF 2.21: Sum, Prod and Max have GPU kernels of int64, and of int32 in host memory.
_NO_REDUCTION = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32)


@lowers(P.reduce_sum_p, lacks=NARROW, lacks_on_gpu=_NO_REDUCTION)
def _reduce_sum(ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
  """operand f32[b,n] -> f32[b]."""
  if all(is_one(ctx.avals_in[0].shape[axis]) for axis in axes):
    # JAX sums what it has broadcast along a size of 1
    return ctx.reshape(operand, ctx.aval_out.shape)
  return _sum(operand, list(axes))


def _sum(operand: tf.Tensor, axes: list[int]) -> tf.Tensor:
  """TF 2.21: Sum of f16 over leading axes adds one by one in f16, where 2048 + 1 is 2048. XLA adds
  partial sums."""
  if operand.dtype != tf.float16:
    return tf.reduce_sum(operand, axes)
  return tf.cast(tf.reduce_sum(tf.cast(operand, tf.float32), axes), tf.float16)


@lowers(P.reduce_prod_p, lacks=NARROW, lacks_on_gpu=_NO_REDUCTION)
def _reduce_prod(ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
  """operand f32[b,n] -> f32[b]."""
  return tf.reduce_prod(operand, list(axes))


@lowers(P.reduce_max_p, lacks=NARROW, lacks_on_gpu=_NO_REDUCTION)
def _reduce_max(ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
  """operand f32[b,n] -> f32[b]; NaN wins, but not under jit_compile: TF's XLA compiles reductions
  with fast min and max."""
  if operand.dtype == tf.bool:
    return tf.reduce_any(operand, list(axes))
  if operand.dtype.is_complex:
    return _reduced_by(ctx, lax.max, operand, axes)
  return tf.reduce_max(extrema_apart(operand), list(axes))


@lowers(P.reduce_min_p, lacks=NARROW, lacks_on_gpu=_NO_REDUCTION)
def _reduce_min(ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
  """operand f32[b,n] -> f32[b]; NaN wins, as in reduce_max."""
  if operand.dtype == tf.bool:
    return tf.reduce_all(operand, list(axes))
  if operand.dtype.is_complex:
    return _reduced_by(ctx, lax.min, operand, axes)
  if operand.dtype == tf.int64 and ctx.destination.on_gpu:  # TF 2.21: no Min of integers there
    return tf.bitwise.invert(tf.reduce_max(tf.bitwise.invert(operand), list(axes)))
  return tf.reduce_min(extrema_apart(operand), list(axes))


@lowers(P.reduce_and_p, lacks=NARROW)
def _reduce_and(ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
  """operand bool[b,n] -> bool[b]; of integers, bit by bit."""
  return (
    tf.reduce_all(operand, list(axes))
    if operand.dtype == tf.bool
    else _reduced_by(ctx, lax.bitwise_and, operand, axes)
  )


@lowers(P.reduce_or_p, lacks=NARROW)
def _reduce_or(ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
  """operand bool[b,n] -> bool[b]; of integers, bit by bit."""
  return (
    tf.reduce_any(operand, list(axes))
    if operand.dtype == tf.bool
    else _reduced_by(ctx, lax.bitwise_or, operand, axes)
  )


@lowers(P.reduce_xor_p, lacks=NARROW)
def _reduce_xor(ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
  """operand bool[b,n] -> bool[b], true where an odd number is true; of integers, bit by bit."""
  if operand.dtype != tf.bool:
    return _reduced_by(ctx, lax.bitwise_xor, operand, axes)
  # a wrapped sum keeps its parity
  odd = tf.bitwise.bitwise_and(tf.reduce_sum(tf.cast(operand, tf.int32), list(axes)), 1)
  return tf.cast(odd, tf.bool)


@lowers(P.psum_p, lacks=NARROW)
def _psum(ctx: RuleContext, operand: tf.Tensor, **axes: Any) -> tf.Tensor:
  """operand f32[b,n], axes (0,) -> f32[n], under `vmap(..., axis_name=...)`."""
  return _reduce_sum(ctx, operand, axes=_mapped_axes(ctx, **axes))


@lowers(P.pmax_p, lacks=NARROW)
def _pmax(ctx: RuleContext, operand: tf.Tensor, **axes: Any) -> tf.Tensor:
  """operand f32[b,n], axes (0,) -> f32[n], under `vmap(..., axis_name=...)`."""
  return _reduce_max(ctx, operand, axes=_mapped_axes(ctx, **axes))


@lowers(P.pmin_p, lacks=NARROW)
def _pmin(ctx: RuleContext, operand: tf.Tensor, **axes: Any) -> tf.Tensor:
  """operand f32[b,n], axes (0,) -> f32[n], under `vmap(..., axis_name=...)`."""
  return _reduce_min(ctx, operand, axes=_mapped_axes(ctx, **axes))


def _mapped_axes(ctx: RuleContext, *, axes: Sequence[Any], axis_index_groups: Any) -> Sequence[int]:
  """The axes that vmap has put in place of their name; a name that is left is that of devices."""
  if axis_index_groups is not None or any(isinstance(axis, str) for axis in axes):
    ctx.refuse(*ACROSS_DEVICES)
  return axes


@lowers(P.argmax_p, lacks=(*NARROW, tf.bool))
def _argmax(
  ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int], index_dtype: Any
) -> tf.Tensor:
  """operand f32[b,n] -> i32[b], the first of equals; the first NaN before all others."""
  return _position(ctx, tf.argmax, operand, axes)


@lowers(P.argmin_p, lacks=(*NARROW, tf.bool))
def _argmin(
  ctx: RuleContext, operand: tf.Tensor, *, axes: Sequence[int], index_dtype: Any
) -> tf.Tensor:
  """operand f32[b,n] -> i32[b], the first of equals; the first NaN before all others."""
  return _position(ctx, tf.argmin, operand, axes)


# TF 2.21: ArgMax and ArgMin have GPU kernels of floats only. These hold all the integers.
_FLOATS = {
  tf.int8: tf.float16,
  tf.uint8: tf.float16,
  tf.int16: tf.float32,
  tf.uint16: tf.float32,
  tf.int32: tf.float64,
  tf.uint32: tf.float64,
}


def _position(
  ctx: RuleContext, extremum: Callable[..., tf.Tensor], operand: tf.Tensor, axes: Sequence[int]
) -> tf.Tensor:
  axis = int(axes[0])  # JAX batches with NumPy integers, of 64 bits, which ArgMax refuses
  sizes = ctx.avals_in[0].shape
  if len(sizes) > 7:  # TF 2.21: ArgMax takes at most 7 dimensions
    operand, axis = as_rank3(ctx, operand, sizes, axis), 1
  index_dtype = ctx.dtype_out if ctx.dtype_out in (tf.int32, tf.int64) else tf.int64
  is_integer = operand.dtype.is_integer
  if is_integer and ctx.destination.on_gpu:
    operand = tf.cast(operand, _FLOATS.get(operand.dtype, operand.dtype))
  if is_integer:
    operand = apart(operand, "Neg", "Sign")  # Grappler would look for the extremum of their operand
  index = extremum(operand, axis, index_dtype)
  if not is_integer:
    # TF 2.21: ArgMax and ArgMin ignore NaN, or return an index after it.
    is_nan = tf.not_equal(operand, operand)
    first_nan = tf.argmax(tf.cast(is_nan, tf.float32), axis, index_dtype)
    index = tf.where(tf.reduce_any(is_nan, axis), first_nan, index)
  return tf.cast(ctx.reshape(index, ctx.aval_out.shape) if len(sizes) > 7 else index, ctx.dtype_out)


# Reducers of one equation that TensorFlow has a reduction and a binary op for.
_MONOIDS = {
  P.add_p: (_sum, tf.add),
  P.mul_p: (tf.reduce_prod, tf.multiply),
  P.max_p: (lambda x, axes: tf.reduce_max(extrema_apart(x), axes), tf.maximum),
  P.min_p: (lambda x, axes: tf.reduce_min(extrema_apart(x), axes), tf.minimum),
}
_LOGICAL_MONOIDS = {
  P.and_p: (tf.reduce_all, tf.logical_and),
  P.min_p: (tf.reduce_all, tf.logical_and),
  P.mul_p: (tf.reduce_all, tf.logical_and),
  P.or_p: (tf.reduce_any, tf.logical_or),
  P.max_p: (tf.reduce_any, tf.logical_or),
  P.add_p: (tf.reduce_any, tf.logical_or),
}


@lowers(P.reduce_p)
def _reduce(
  ctx: RuleContext,
  *operands: tf.Tensor,
  computation: Any,
  jaxpr: ClosedJaxpr,
  dimensions: Sequence[int],
) -> list[tf.Tensor]:
  """operands f32[b,n] ..., as many initial values f32[] ... -> f32[b] ..., by the reducer `jaxpr`.

  One known equation is TensorFlow's own reduction. The others combine neighbours in a tree of log n
  steps; a symbolic n takes a loop, in the order of the elements.
  """
  primitive = binary_primitive(jaxpr)
  monoids = _LOGICAL_MONOIDS if operands[0].dtype == tf.bool else _MONOIDS
  if primitive in monoids and not operands[0].dtype.is_complex and operands[0].dtype not in NARROW:
    reduction, combine = monoids[primitive]
    return [combine(reduction(operands[0], list(dimensions)), operands[1])]
  return ctx.lower_fun(functools.partial(_reduce_by_jaxpr, jaxpr, tuple(dimensions)), *operands)


def _reduced_by(
  ctx: RuleContext, combine: Callable[..., Any], operand: tf.Tensor, axes: Sequence[int]
) -> tf.Tensor:
  """A reduction that TensorFlow has only between two tensors."""
  return ctx.lower_fun(functools.partial(_reduce_by_monoid, combine, tuple(axes)), operand)


def _reduce_by_monoid(combine: Callable[..., Any], axes: tuple[int, ...], x: Any) -> Any:
  return reduced(lambda a, b: (combine(*a, *b),), [x], [_identity(combine, x.dtype)], axes)[0]


def _identity(combine: Callable[..., Any], dtype: Any) -> Any:
  if combine is lax.bitwise_and:
    return jnp.array(-1).astype(dtype)
  if combine in (lax.max, lax.min):  # of complex numbers
    return jnp.array(-jnp.inf if combine is lax.max else jnp.inf, dtype)
  return jnp.zeros((), dtype)


def _reduce_by_jaxpr(jaxpr: ClosedJaxpr, dimensions: tuple[int, ...], *operands: Any) -> list[Any]:
  count = len(operands) // 2
  combine = combine_by(jaxpr, operands[0].ndim - len(dimensions))
  return reduced(combine, operands[:count], operands[count:], dimensions)
