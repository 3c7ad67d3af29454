"""Reductions over sliding windows: TensorFlow's pooling where it fits, else one axis after the
other."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW
from jax2tf.jaxprs import ClosedJaxpr, closed
from jax2tf.lowering._as_written import extrema_apart
from jax2tf.lowering._movement import is_zero
from jax2tf.lowering._pooling import Axis, max_pool, mean_pool, sum_pool, whole_axes, window_axes
from jax2tf.lowering._reducers import Combine, binary_primitive, combine_by
from jax2tf.registry import lowers


@lowers(P.reduce_window_max_p, lacks=NARROW)
def _reduce_window_max(
  ctx: RuleContext, operand: tf.Tensor, *, plain: bool = False, **geometry: Any
) -> tf.Tensor:
  """operand f32[b,h,w,c] -> f32[b,h',w',c], the maxima; what is outside does not count. `plain` is
  MaxPool alone, for a fused idiom."""
  axes = window_axes(ctx.avals_in[0], ctx.aval_out, **geometry)
  if operand.dtype != tf.bool and (whole := whole_axes(axes)):
    return tf.reduce_max(extrema_apart(operand), whole, keepdims=True)
  pooled = max_pool(ctx, operand, axes, 1, plain=plain)
  return _by_monoid(ctx, operand, axes, lax.max, -np.inf) if pooled is None else pooled


@lowers(P.reduce_window_min_p, lacks=NARROW)
def _reduce_window_min(ctx: RuleContext, operand: tf.Tensor, **geometry: Any) -> tf.Tensor:
  """operand f32[b,h,w,c] -> f32[b,h',w',c], the minima; what is outside does not count."""
  axes = window_axes(ctx.avals_in[0], ctx.aval_out, **geometry)
  if operand.dtype != tf.bool and (whole := whole_axes(axes)):
    return tf.reduce_min(extrema_apart(operand), whole, keepdims=True)
  pooled = max_pool(ctx, operand, axes, -1)
  return _by_monoid(ctx, operand, axes, lax.min, np.inf) if pooled is None else pooled


@lowers(P.reduce_window_sum_p, lacks=NARROW)
def _reduce_window_sum(
  ctx: RuleContext, operand: tf.Tensor, *, mean: bool = False, **geometry: Any
) -> tf.Tensor:
  """operand f32[b,h,w,c] -> f32[b,h',w',c], the sums, or with `mean`, for a fused idiom, the
  means."""
  axes = window_axes(ctx.avals_in[0], ctx.aval_out, **geometry)
  size = math.prod(axis.window for axis in axes)
  if whole := whole_axes(axes):
    return (tf.reduce_mean if mean else tf.reduce_sum)(operand, whole, keepdims=True)
  if (pooled := (mean_pool if mean else sum_pool)(ctx, operand, axes)) is not None:
    return pooled
  total = _by_monoid(ctx, operand, axes, lax.add, 0)
  return total / size if mean else total


@lowers(P.reduce_window_p)
def _reduce_window(
  ctx: RuleContext, *operands: tf.Tensor, jaxpr: Any, consts: Sequence[Any], **geometry: Any
) -> list[tf.Tensor]:
  """operands f32[b,n] ..., as many initial values f32[] ... -> f32[b,n'] ..., by an associative
  reducer."""
  axes = window_axes(ctx.avals_in[0], ctx.avals_out[0], **geometry)
  reducer = closed(jaxpr, consts)
  return ctx.lower_fun(functools.partial(_windows_by_jaxpr, reducer, axes), *operands)


def _by_monoid(
  ctx: RuleContext,
  operand: tf.Tensor,
  axes: tuple[Axis, ...],
  combine: Callable[..., Any],
  fill: float,
) -> tf.Tensor:
  return ctx.lower_fun(functools.partial(_windows_by_monoid, combine, fill, axes), operand)


def _windows_by_monoid(
  combine: Callable[..., Any], fill: float, axes: Sequence[Axis], x: Any
) -> Any:
  outside = fill
  if np.isinf(fill) and not jnp.issubdtype(x.dtype, np.inexact):
    outside = (
      fill > 0
      if x.dtype == bool
      else jnp.iinfo(x.dtype).max
      if fill > 0
      else jnp.iinfo(x.dtype).min
    )
  return _windows(lambda a, b: [combine(*a, *b)], [x], [jnp.array(outside, x.dtype)], axes)[0]


def _windows_by_jaxpr(reducer: ClosedJaxpr, axes: Sequence[Axis], *operands: Any) -> list[Any]:
  """The initial value comes first, once; what is outside does not count, even where the initial
  value is no identity."""
  xs, inits = operands[: len(operands) // 2], operands[len(operands) // 2 :]
  combine, primitive = combine_by(reducer, len(axes)), binary_primitive(reducer)
  if primitive in _IDENTITIES:
    results = [_windows_by_monoid(primitive.bind, _IDENTITIES[primitive], axes, *xs)]
    return list(combine([jnp.broadcast_to(inits[0], results[0].shape)], results))

  def combine_elements(lefts: Sequence[Any], rights: Sequence[Any]) -> list[Any]:
    (*ls, left), (*rs, right) = lefts, rights  # the last ones mark where there is an element
    both = combine(ls, rs)
    return [
      *(
        jnp.where(left & right, z, jnp.where(left, x, y))
        for x, y, z in zip(ls, rs, both, strict=True)
      ),
      left | right,
    ]

  *results, has_element = _windows(
    combine_elements, [*xs, jnp.ones(xs[0].shape, bool)], [*inits, jnp.zeros((), bool)], axes
  )
  inits = tuple(jnp.broadcast_to(init, has_element.shape) for init in inits)
  return [
    jnp.where(has_element, y, init) for y, init in zip(combine(inits, results), inits, strict=True)
  ]


_IDENTITIES = {P.add_p: 0, P.mul_p: 1, P.max_p: -np.inf, P.min_p: np.inf}


def _windows(
  combine: Combine, xs: Sequence[Any], outside: Sequence[Any], axes: Sequence[Axis]
) -> list[Any]:
  """The reduced windows, innermost axis first, so that elements meet in their order."""
  shape = [axis.out for axis in axes]
  # no window fits, and the spans of `_windows_along` would be of negative size
  if any(map(is_zero, shape)):
    return [jnp.zeros(shape, x.dtype) for x in xs]
  axes = [axis.with_a_window.ending_with_a_window for axis in axes]
  config = [(*axis.padding, axis.base_dilation - 1) for axis in axes]
  if set(config) != {(0, 0, 0)}:
    xs = [lax.pad(x, value, config) for x, value in zip(xs, outside, strict=True)]
  for i, axis in reversed(list(enumerate(axes))):
    if axis.window != 1 or axis.stride != 1:
      along = _windows_along if isinstance(axis.window, int) else _symbolic_windows_along
      xs = along(combine, xs, i, axis)
  return [lax.slice(x, [0] * x.ndim, shape) for x in xs]


def _windows_along(combine: Combine, xs: Sequence[Any], i: int, axis: Axis) -> Any:
  """Spans of 1, 2, 4 ... elements, of which those in the binary digits of the window make it up:
  log w steps."""

  def part(x: Any, start: Any, count: Any, stride: int = 1) -> Any:
    return lax.slice_in_dim(x, start, start + (count - 1) * stride + 1, stride, axis=i)

  result: Any = None
  done, span = 0, 1
  while True:
    if axis.window & span:
      piece = [part(x, done * axis.window_dilation, axis.out, axis.stride) for x in xs]
      result = piece if result is None else combine(result, piece)
      done += span
    if done == axis.window:
      return result
    step = span * axis.window_dilation
    count = xs[0].shape[i] - step
    xs = combine([part(x, 0, count) for x in xs], [part(x, step, count) for x in xs])
    span *= 2


def _symbolic_windows_along(combine: Combine, xs: Sequence[Any], i: int, axis: Axis) -> Any:
  """One element of each window after the other: w steps of a loop."""

  def part(k: Any) -> list[Any]:
    span = (axis.out - 1) * axis.stride + 1
    return [
      lax.slice_in_dim(
        lax.dynamic_slice_in_dim(x, k * axis.window_dilation, span, i), 0, None, axis.stride, i
      )
      for x in xs
    ]

  return lax.fori_loop(1, axis.window, lambda k, result: list(combine(result, part(k))), part(0))
