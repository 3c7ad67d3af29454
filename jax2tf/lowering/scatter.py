"""scatter, its variants and dynamic_update_slice: one TensorScatter op, on rows of the operand or
with linear indices."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax import lax
from jax.extend.core import jaxpr_as_fun

from jax2tf import _tf_compat
from jax2tf._jax_compat.shape_poly import dimension_bounds
from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW, ON_HOST_OF_GPU
from jax2tf.jaxprs import ClosedJaxpr, closed
from jax2tf.lowering._common import where
from jax2tf.lowering._indexing import Windows, on_device, wide
from jax2tf.lowering._kernels import stacked
from jax2tf.lowering._movement import carried, is_one, transposed
from jax2tf.registry import lowers

# (ctx, operand f32[*sizes], rows i32[*batch,c], updates f32[*batch,*sizes[c:]], sizes, policy for
# rows outside) -> f32[*sizes]
_Combine = Callable[..., tf.Tensor]


def _scatter(
  ctx: RuleContext,
  operand: tf.Tensor,
  indices: tf.Tensor,
  updates: tf.Tensor,
  *,
  combine: _Combine,
  dimension_numbers: lax.ScatterDimensionNumbers,
  indices_are_sorted: bool,
  unique_indices: bool,
  mode: lax.GatherScatterMode,
  update_jaxpr: Any,
  update_consts: Sequence[Any],
) -> tf.Tensor:
  """operand f32[n,m], indices i32[*batch,c], updates f32[*batch,*window] -> f32[n,m].

  Updates that leave the operand are moved inside (clip) or dropped (other modes). Those of one
  element are applied in order.
  """
  shape, batch, update_sizes = (
    ctx.avals_in[0].shape,
    ctx.avals_in[1].shape[:-1],
    ctx.avals_in[2].shape,
  )
  if any(0 in ctx.dimensions.static_shape(sizes) for sizes in (shape, update_sizes)):
    return operand  # TensorFlow refuses indices into an empty tensor
  numbers = dimension_numbers
  dropped = frozenset((*numbers.inserted_window_dims, *numbers.operand_batching_dims))
  window_sizes = (update_sizes[d] for d in numbers.update_window_dims)
  sizes = [1 if d in dropped else next(window_sizes) for d in range(len(shape))]
  batching = dict(
    zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
  )
  windows = Windows(
    shape, sizes, dropped, tuple(numbers.scatter_dims_to_operand_dims), batch, batching
  )
  if update_jaxpr is not None and (
    combine is _replaced or (operand.dtype.is_complex and combine in (_minimum, _maximum))
  ):
    function = functools.partial(_elementwise, closed(update_jaxpr, update_consts))
    combine = functools.partial(
      _applied, function=function, unique=unique_indices or all(map(is_one, batch))
    )
  elif combine is _multiplied and all(map(is_one, batch)):
    combine = functools.partial(_applied, function=lax.mul, unique=True)
  in_batch = [d for d in range(len(update_sizes)) if d not in numbers.update_window_dims]
  updates = transposed(updates, [*in_batch, *numbers.update_window_dims])
  clip = mode == lax.GatherScatterMode.CLIP
  change = None if update_jaxpr is None else closed(update_jaxpr, update_consts)
  is_laid_out = ctx.destination.dtensor_mesh is not None  # of which the guide lists the errors
  if not (windows.are_rows or is_laid_out) and (change is not None or combine is _replaced):
    starts = windows.known_start(indices, clip)
    if starts is not None:
      return _at(ctx, operand, updates, windows, starts, change)
  return _scattered(ctx, operand, indices, updates, windows, combine, clip=clip)


def _at(
  ctx: RuleContext,
  operand: tf.Tensor,
  updates: tf.Tensor,
  windows: Windows,
  starts: Sequence[int],
  change: ClosedJaxpr | None,
) -> tf.Tensor:
  """The operand with the updates in the window that starts there, or as it is if the window leaves
  it."""
  if not windows.holds(starts):
    return operand
  ends = tuple(start + size for start, size in zip(starts, windows.sizes, strict=True))
  return ctx.lower_fun(
    functools.partial(_with_window, tuple(starts), ends, change),
    operand,
    ctx.reshape(updates, windows.sizes),
    avals=[ctx.avals_in[0], jax.ShapeDtypeStruct(windows.sizes, ctx.avals_in[2].dtype)],
  )


def _with_window(
  starts: tuple[int, ...],
  ends: tuple[Any, ...],
  change: ClosedJaxpr | None,
  operand: Any,
  update: Any,
) -> Any:
  """operand f32[n,m], update f32[k,l] -> f32[n,m]: what is before the window, the window and what
  is behind it, along one axis after the other. It has no indices, and moves whole rows."""
  shape = operand.shape
  if change is not None:
    update = _elementwise(change, lax.slice(operand, starts, ends), update)
  cut = [axis for axis, n in enumerate(shape) if update.shape[axis] != n]
  for axis in reversed(cut):
    # Along the axes before this one, the update still has the size of the window.
    begin, end = (*starts[:axis], *[0] * len(shape[axis:])), (*ends[:axis], *shape[axis:])
    before = lax.slice(operand, begin, _replaced_at(end, axis, starts[axis]))
    behind = lax.slice(operand, _replaced_at(begin, axis, ends[axis]), end)
    parts = [part for part in (before, update, behind) if part.shape[axis]]
    update = lax.concatenate(parts, axis)
  return update


def _replaced_at(values: tuple[Any, ...], position: int, value: int) -> tuple[Any, ...]:
  return (*values[:position], value, *values[position + 1 :])


@lowers(P.dynamic_update_slice_p, lacks=NARROW, lacks_on_gpu=ON_HOST_OF_GPU)
def _dynamic_update_slice(
  ctx: RuleContext, operand: tf.Tensor, update: tf.Tensor, *start_indices: tf.Tensor
) -> tf.Tensor:
  """operand f32[n,m], update f32[k,l], a scalar index per dimension -> f32[n,m]; starts are clamped
  so that the update fits.

  TensorStridedSliceUpdate would be the plain op and update in place, but XLA wants its bounds
  constant and no exporter knows it.
  """
  shape, sizes = ctx.avals_in[0].shape, ctx.avals_in[1].shape
  if tuple(shape) == tuple(sizes):
    return update
  if 0 in ctx.dimensions.static_shape(sizes):
    return operand
  moved = tuple(d for d, (n, size) in enumerate(zip(shape, sizes, strict=True)) if n != size)
  windows = Windows(shape, sizes, frozenset(), moved, (), {})
  if not windows.are_rows:  # TF 2.21: a segmentation fault, for replicated operands too
    ctx.refuse_under_dtensor(
      "DTensor crashes when a part of a row is updated",
      "update whole rows, or slice with constant bounds, as x[:, 1:3]",
    )
  starts = stacked([on_device(ctx, start_indices[d]) for d in moved])
  return _scattered(ctx, operand, starts, update, windows, _replaced, clip=True)


def _scattered(
  ctx: RuleContext,
  operand: tf.Tensor,
  indices: tf.Tensor,
  updates: tf.Tensor,
  windows: Windows,
  combine: _Combine,
  *,
  clip: bool,
) -> tf.Tensor:
  """updates f32[*batch,*window] -> the operand with them."""
  indices = on_device(ctx, indices)
  is_one_window = not windows.batch and combine is _replaced
  window = [size if isinstance(size, int) else None for size in windows.sizes]
  if not windows.batch:  # TF 2.21: the scatters on CPU need at least one dimension of indices
    windows = dataclasses.replace(windows, batch=(1,))
    indices, updates = tf.expand_dims(indices, 0), tf.expand_dims(updates, 0)
  shape, batch, policy = windows.shape, windows.batch, "" if clip else "IGNORE"
  # TF 2.21: the scatters on CPU take 5 components
  if combine in _TAKE_VECTORS and windows.are_rows and 0 < len(windows.columns) <= 5:
    rows = wide(indices)
    if clip:
      rows = windows.clamped(ctx, windows.vectors(indices))
      rows = tf.expand_dims(rows, -1) if len(windows.columns) == 1 else rows
    if windows.dropped != {*windows.columns}:
      updates = ctx.reshape(updates, [*batch, *shape[len(windows.columns) :]])
    result = combine(ctx, operand, rows, updates, shape, policy)
    if is_one_window:
      _tf_compat.mark_window(result, window)
    return result
  flat = max(windows.addressed, default=-1) + 1  # the leading dimensions, made one
  vectors = windows.vectors(indices)
  starts = windows.clamped(ctx, vectors)
  rows = windows.linear(ctx, starts, 0, flat - 1)
  row_windows = [d for d in windows.window_dims if d < flat]
  if not clip and windows.columns:
    inside = windows.inside(ctx, vectors, starts, [*batch, *[1] * len(row_windows)])
    rows = where(inside, rows, tf.constant(-1, rows.dtype))
  if any(d >= flat for d in windows.dropped):
    updates = ctx.reshape(
      updates, [*batch, *(windows.sizes[d] for d in row_windows), *shape[flat:]]
    )
  sizes = [math.prod(shape[:flat]), *shape[flat:]]
  operand = operand if flat == 1 else ctx.reshape(operand, sizes)
  result = combine(ctx, operand, tf.expand_dims(rows, -1), updates, sizes, policy)
  if is_one_window:
    _tf_compat.mark_window(result, window)
  return result if flat == 1 else ctx.reshape(result, shape)


def _into_some(
  operand: tf.Tensor, rows: tf.Tensor, updates: tf.Tensor, sizes: Sequence[Any]
) -> tuple[tf.Tensor, tf.Tensor]:
  """(rows, updates), or none of them where the operand is empty: TF 2.21 refuses indices into an
  empty tensor."""
  if all(dimension_bounds(n)[0] >= 1 for n in sizes):
    return rows, updates
  count = tf.where(tf.size(operand) > 0, tf.shape(rows)[0], 0)
  return rows[:count], updates[:count]


def _tensor_scatter(op: Callable[..., tf.Tensor]) -> _Combine:
  def combine(
    ctx: RuleContext,
    operand: tf.Tensor,
    rows: tf.Tensor,
    updates: tf.Tensor,
    sizes: Sequence[Any],
    policy: str,
  ) -> tf.Tensor:
    rows, updates = _into_some(operand, rows, updates, sizes)
    scatter = functools.partial(op, indices=rows, bad_indices_policy=policy)
    if op is tf.raw_ops.TensorScatterUpdate:
      return carried(ctx, lambda x, y: scatter(tensor=x, updates=y), operand, updates)
    return scatter(tensor=operand, updates=updates)

  return combine


_replaced = _tensor_scatter(tf.raw_ops.TensorScatterUpdate)
_added = _tensor_scatter(tf.raw_ops.TensorScatterAdd)
_subtracted = _tensor_scatter(tf.raw_ops.TensorScatterSub)


def _extremal(op: Callable[..., tf.Tensor]) -> _Combine:
  def combine(
    ctx: RuleContext,
    operand: tf.Tensor,
    rows: tf.Tensor,
    updates: tf.Tensor,
    sizes: Sequence[Any],
    policy: str,
  ) -> tf.Tensor:
    scatter = functools.partial(_tensor_scatter(op), ctx, rows=rows, sizes=sizes, policy=policy)
    if operand.dtype == tf.bool:
      return tf.cast(
        scatter(tf.cast(operand, tf.uint8), updates=tf.cast(updates, tf.uint8)), tf.bool
      )
    result = scatter(operand, updates=updates)
    if not operand.dtype.is_floating:
      return result
    # TF 2.21: TensorScatterMax and Min skip a NaN among the updates. Adding -0.0 changes nothing.
    nans = where(tf.math.is_nan(updates), updates, tf.constant(-0.0, updates.dtype))
    return _added(ctx, result, rows, nans, sizes, policy)

  return combine


_minimum, _maximum = _extremal(tf.raw_ops.TensorScatterMin), _extremal(tf.raw_ops.TensorScatterMax)


def _multiplied(
  ctx: RuleContext,
  operand: tf.Tensor,
  rows: tf.Tensor,
  updates: tf.Tensor,
  sizes: Sequence[Any],
  policy: str,
) -> tf.Tensor:
  """TensorFlow has no TensorScatterMul: the product of each row and its updates, in order. Rows -1
  are skipped."""
  count, *row = sizes
  rows, updates = _into_some(
    operand, tf.reshape(rows, [-1]), tf.reshape(updates, ctx.shape([-1, *row])), sizes
  )
  ids = tf.concat([tf.cast(tf.range(ctx.dim(count)), rows.dtype), rows], 0)
  factors = tf.concat([operand, updates], 0)
  return tf.math.unsorted_segment_prod(factors, ids, ctx.dim(count))


def _applied(
  ctx: RuleContext,
  operand: tf.Tensor,
  rows: tf.Tensor,
  updates: tf.Tensor,
  sizes: Sequence[Any],
  policy: str,
  *,
  function: Callable[..., Any],
  unique: bool,
) -> tf.Tensor:
  """operand[row] = function(operand[row], update): all rows at once if they are `unique`, else one
  after the other."""
  row = sizes[1:]
  rows, updates = tf.reshape(rows, [-1, 1]), tf.reshape(updates, ctx.shape([-1, *row]))
  count = math.prod(ctx.avals_in[2].shape) // math.prod(row)

  def update(operand: tf.Tensor, rows: tf.Tensor, updates: tf.Tensor, count: Any) -> tf.Tensor:
    aval = jax.ShapeDtypeStruct((count, *row), operand.dtype.as_numpy_dtype)
    old = tf.gather(_with_a_row(operand, sizes), tf.maximum(tf.squeeze(rows, -1), 0))
    return _replaced(
      ctx, operand, rows, ctx.lower_fun(function, old, updates, avals=[aval, aval]), sizes, "IGNORE"
    )

  def step(i: tf.Tensor, operand: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return i + 1, update(operand, tf.gather(rows, [i]), tf.gather(updates, [i]), 1)

  if unique:
    return update(operand, rows, updates, count)
  return tf.while_loop(lambda i, _: i < ctx.dim(count), step, (tf.constant(0), operand))[1]


def _with_a_row(operand: tf.Tensor, sizes: Sequence[Any]) -> tf.Tensor:
  """The operand, and one row more where it may have none: TF 2.21 refuses to gather from an empty
  tensor."""
  return (
    operand
    if dimension_bounds(sizes[0])[0] >= 1
    else tf.pad(operand, [[0, 1], *[[0, 0]] * (len(sizes) - 1)])
  )


def _elementwise(jaxpr: ClosedJaxpr, old: Any, update: Any) -> Any:
  fun = jaxpr_as_fun(jaxpr)
  for _ in old.shape:
    fun = jax.vmap(fun)
  (new,) = fun(old, update)
  return new


# Those that take index vectors; the others take linear indices only.
_TAKE_VECTORS = (_replaced, _added, _subtracted, _minimum, _maximum)

# TF 2.21: TensorScatterAdd and similar ops have GPU kernels of int64, and of int32 in host memory.
_NO_SCATTER = (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32)

for _primitive, _combine in {
  P.scatter_p: _replaced,
  P.scatter_add_p: _added,
  lax.scatter_sub_p: _subtracted,
  P.scatter_mul_p: _multiplied,
  P.scatter_min_p: _minimum,
  P.scatter_max_p: _maximum,
}.items():
  lacks_on_gpu = () if _combine is _multiplied else _NO_SCATTER
  lowers(_primitive, lacks=NARROW, lacks_on_gpu=lacks_on_gpu)(
    functools.partial(_scatter, combine=_combine)
  )
