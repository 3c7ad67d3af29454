"""Reductions over windows that select one element of each: the derivatives of pooling by max and by
min."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf._jax_compat.shape_poly import dimension_bounds
from jax2tf.context import RuleContext
from jax2tf.lowering._pooling import Axis, max_pool_gradient, window_axes
from jax2tf.lowering._reducers import binary_primitive
from jax2tf.registry import lowers
from jax2tf.traits import SUMS


@lowers(P.select_and_scatter_add_p)
def _select_and_scatter_add(
  ctx: RuleContext, source: tf.Tensor, operand: tf.Tensor, *, select_prim: Any, **geometry: Any
) -> tf.Tensor:
  """source f32[b,h',w',c], operand f32[b,h,w,c] -> f32[b,h,w,c]: each source added where its window
  has its first maximum."""
  axes = window_axes(ctx.avals_in[1], ctx.avals_in[0], **geometry)
  gradient = max_pool_gradient(ctx, operand, source, axes, 1 if select_prim is P.ge_p else -1)
  return (
    ctx.lower_fun(functools.partial(_scattered, select_prim is P.ge_p, axes), source, operand)
    if gradient is None
    else gradient
  )


@lowers(P.select_and_scatter_p)
def _select_and_scatter(
  ctx: RuleContext,
  operand: tf.Tensor,
  source: tf.Tensor,
  init_value: tf.Tensor,
  *,
  select_jaxpr: Any,
  select_consts: Sequence[Any],
  scatter_jaxpr: Any,
  scatter_consts: Sequence[Any],
  **geometry: Any,
) -> tf.Tensor:
  """operand f32[b,n], source f32[b,n'], init_value f32[] -> f32[b,n]; the reducers are those of
  select_and_scatter_add."""
  select = binary_primitive(select_jaxpr)
  if select not in (P.ge_p, P.le_p) or binary_primitive(scatter_jaxpr) not in SUMS:
    ctx.refuse(
      "only `>=` and `<=` select, and only `+` scatters",
      "write it with gather and scatter, or lower natively",
    )
  axes = window_axes(ctx.avals_in[0], ctx.avals_in[1], **geometry)
  avals = [ctx.avals_in[1], ctx.avals_in[0]]
  return (
    ctx.lower_fun(
      functools.partial(_scattered, select is P.ge_p, axes), source, operand, avals=avals
    )
    + init_value
  )


@lowers(P.select_and_gather_add_p)
def _select_and_gather_add(
  ctx: RuleContext, tangents: tf.Tensor, operand: tf.Tensor, *, select_prim: Any, **geometry: Any
) -> tf.Tensor:
  """tangents f32[b,n], operand f32[b,n] -> f32[b,n'], the tangent of the first maximum of each
  window."""
  axes = window_axes(ctx.avals_in[1], ctx.aval_out, **geometry)
  return ctx.lower_fun(functools.partial(_gathered, select_prim is P.ge_p, axes), tangents, operand)


def _scattered(greatest: bool, axes: Sequence[Axis], source: Any, operand: Any) -> Any:
  # an empty operand or source, for which `_selected` has no shape
  if 0 in (*operand.shape, *source.shape):
    return jnp.zeros(operand.shape, source.dtype)
  positions, _ = _selected(greatest, axes, operand)
  if source.dtype == bool:  # whose sum is `or`
    return _scattered(greatest, axes, source.astype(jnp.int32), operand).astype(bool)
  return jnp.zeros(operand.shape, source.dtype).at[positions].add(source, mode="drop")


def _gathered(greatest: bool, axes: Sequence[Axis], tangents: Any, operand: Any) -> Any:
  out = tuple(axis.out for axis in axes)
  if 0 in (*operand.shape, *out):
    return jnp.zeros(out, tangents.dtype)
  positions, beats_nothing = _selected(greatest, axes, operand)
  # JAX takes nothing from an axis that may be empty; with one zero more it is not.
  padded = lax.pad(
    tangents,
    jnp.zeros((), tangents.dtype),
    [(0, int(dimension_bounds(axis.size)[0] < 1), 0) for axis in axes],
  )
  selected = padded.at[positions].get(mode="fill", fill_value=0)
  return jnp.where(beats_nothing, jnp.zeros((), tangents.dtype), selected)


def _selected(greatest: bool, axes: Sequence[Axis], operand: Any) -> tuple[tuple[Any, ...], Any]:
  """(by axis, the position of the element that each window selects; where that is no better than
  the initial value).

  XLA scans a window and keeps its element only if that is `>=` the next one: so a NaN is selected
  and then replaced by the element after it, and the first of equal elements wins. A window outside
  the operand selects a position past its end.
  """
  rank, out = len(axes), tuple(axis.out for axis in axes)
  windows = tuple(axis.window for axis in axes)
  # (position in the operand, whether an element stands there), both of shape [out, window]
  of_windows = [_positions(axis) for axis in axes]
  view, inside = operand, jnp.ones((), bool)
  for i in reversed(range(rank)):
    position, valid = of_windows[i]
    view = (
      jnp.expand_dims(view, i + 1)
      if axes[i].is_trivial
      else jnp.take(view, position, axis=i, mode="clip")
    )
    inside = inside & valid.reshape([1] * (2 * i) + list(valid.shape) + [1] * (2 * (rank - 1 - i)))
  interleaved = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
  view = view.transpose(interleaved).reshape((*out, -1))
  inside = (
    jnp.broadcast_to(inside, [d for pair in zip(out, windows, strict=True) for d in pair])
    .transpose(interleaved)
    .reshape(view.shape)
  )
  steps = lax.broadcasted_iota(jnp.int32, view.shape, rank)
  last_nan = jnp.max(jnp.where(inside & (view != view), steps, -1), -1, keepdims=True)
  eligible = inside & (steps > last_nan)
  worst = _worst(view.dtype, greatest)
  best = (jnp.max if greatest else jnp.min)(jnp.where(eligible, view, worst), -1, keepdims=True)
  hit = (eligible & (view == best)) | ((steps == last_nan) & ~jnp.any(eligible, -1, keepdims=True))
  step = jnp.where(jnp.any(hit, -1), jnp.argmax(hit, -1), -1)
  beats_nothing = ((best == worst) & (last_nan < 0))[..., 0]
  positions = []
  for i, axis in enumerate(axes):
    within = step // math.prod(windows[i + 1 :]) % windows[i]
    window = lax.broadcasted_iota(jnp.int32, out, i)
    positions.append(jnp.where(step < 0, axis.size, _position(axis, window, within)))
  return tuple(positions), beats_nothing


def _positions(axis: Axis) -> tuple[Any, Any]:
  """([out, window] positions in the operand, whether an element stands there)."""
  window, within = (lax.broadcasted_iota(jnp.int32, (axis.out, axis.window), d) for d in (0, 1))
  position, valid = (
    _position(axis, window, within),
    _dilated(axis, window, within) % axis.base_dilation == 0,
  )
  return position, valid & (position >= 0) & (position < axis.size)


def _position(axis: Axis, window: Any, within: Any) -> Any:
  """The position in the operand of an element of a window, both i32[...]."""
  return _dilated(axis, window, within) // axis.base_dilation


def _dilated(axis: Axis, window: Any, within: Any) -> Any:
  return window * axis.stride - axis.padding[0] + within * axis.window_dilation


def _worst(dtype: Any, greatest: bool) -> Any:
  """What every element is at least as good as."""
  if jnp.issubdtype(dtype, jnp.inexact):
    return jnp.array(-jnp.inf if greatest else jnp.inf, dtype)
  if dtype == np.bool_:
    return jnp.array(not greatest)
  return jnp.array(jnp.iinfo(dtype).min if greatest else jnp.iinfo(dtype).max, dtype)
