"""gather: a plain Gather or GatherNd where JAX's dimension numbers describe one, else a Gather with
linear indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf
from jax import lax
from jax.export import is_symbolic_dim

from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW
from jax2tf.lowering._common import where
from jax2tf.lowering._indexing import Windows, on_device
from jax2tf.lowering._movement import broadcast, carried, gathered, sliced, transposed
from jax2tf.registry import lowers

# An axis of the gathered windows: ("batch", dimension of the indices) or ("window", dimension of
# the operand).
_Axis = tuple[str, int]


@lowers(P.gather_p, lacks=NARROW)
def _gather(
  ctx: RuleContext,
  operand: tf.Tensor,
  indices: tf.Tensor,
  *,
  dimension_numbers: lax.GatherDimensionNumbers,
  slice_sizes: Sequence[Any],
  indices_are_sorted: bool,
  unique_indices: bool,
  mode: lax.GatherScatterMode,
  fill_value: Any,
) -> tf.Tensor:
  """operand f32[n,m], indices i32[*batch,c] -> f32[*batch,*window], batch and window interleaved by
  `offset_dims`.

  Windows that leave the operand are moved inside (clip; promise_in_bounds too, as on JAX's CPU) or
  filled (fill_or_drop).
  """
  if mode == lax.GatherScatterMode.ONE_HOT:
    ctx.refuse(
      "JAX itself has no lowering of gather with mode 'one_hot'", "use mode 'clip' or 'fill'"
    )
  # TensorFlow refuses indices into an empty tensor
  if 0 in ctx.dimensions.static_shape(ctx.aval_out.shape):
    return tf.zeros(ctx.shape(ctx.aval_out.shape), operand.dtype)
  numbers, shape, batch = dimension_numbers, ctx.avals_in[0].shape, ctx.avals_in[1].shape[:-1]
  fill = mode == lax.GatherScatterMode.FILL_OR_DROP and len(numbers.start_index_map) > 0
  if fill and all(isinstance(n, int) and n < 2**31 for n in shape):
    indices = tf.cast(indices, tf.int32)  # wraps, as in JAX's own lowering
  indices = on_device(ctx, indices)
  movable = {*numbers.start_index_map, *numbers.operand_batching_dims}
  sizes = [
    n if d in movable else size for d, (n, size) in enumerate(zip(shape, slice_sizes, strict=True))
  ]
  if tuple(sizes) != tuple(shape):  # a window without an index starts at 0
    operand = sliced(ctx, operand, shape, [0] * len(shape), sizes)
  dropped = frozenset((*numbers.collapsed_slice_dims, *numbers.operand_batching_dims))
  batching = dict(
    zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
  )
  windows = Windows(sizes, slice_sizes, dropped, tuple(numbers.start_index_map), batch, batching)
  starts = windows.clamped(ctx, vectors := windows.vectors(indices))
  at_starts, axes = _windows_at(ctx, operand, starts, windows)
  axes_out = _interleaved(
    dict(zip(numbers.offset_dims, windows.window_dims, strict=True)), len(axes)
  )
  result = transposed(at_starts, [axes.index(axis) for axis in axes_out])
  if not fill:
    return result
  inside = windows.inside(
    ctx, vectors, starts, [1 if kind == "window" else batch[i] for kind, i in axes_out]
  )
  return where(inside, result, _filling(ctx, fill_value, result.dtype))


def _filling(ctx: RuleContext, value: Any, dtype: tf.DType) -> tf.Tensor:
  """The number for what is outside, which may be a size, such as x.size of jnp.intersect1d."""
  return tf.cast(ctx.dim(value), dtype) if is_symbolic_dim(value) else tf.constant(value, dtype)


def _interleaved(window_dims: dict[int, int], rank: int) -> list[_Axis]:
  """The axes of a result in their order: {where in it: dimension of the window}, and those of the
  batch between."""
  batch_axes = itertools.count()
  return [
    ("window", window_dims[i]) if i in window_dims else ("batch", next(batch_axes))
    for i in range(rank)
  ]


def _windows_at(
  ctx: RuleContext, operand: tf.Tensor, starts: tf.Tensor, windows: Windows
) -> tuple[tf.Tensor, list[_Axis]]:
  """(the windows that start there, their axes)."""
  shape, batch, window_dims = windows.shape, windows.batch, windows.window_dims
  batch_axes, sizes = _axes("batch", range(len(batch))), [windows.sizes[d] for d in window_dims]
  if not windows.addressed:
    ones = [*[1] * len(batch), *sizes]
    return broadcast(ctx, ctx.reshape(operand, ones), ones, [*batch, *sizes]), batch_axes + _axes(
      "window", window_dims
    )
  # TF 2.21: GatherNd on CPU takes 7 components
  if windows.are_rows and 1 < len(windows.columns) <= 7:
    rows = carried(ctx, lambda x: tf.gather_nd(x, starts), operand)
    return rows if windows.dropped == {*windows.columns} else ctx.reshape(
      rows, [*batch, *sizes]
    ), batch_axes + _axes("window", window_dims)
  aligned = 0  # leading dimensions that operand and indices share: batch_dims of Gather
  while windows.batching.get(aligned) == aligned and windows.addressed[-1] > aligned:
    aligned += 1
  first, last = min(d for d in windows.addressed if d >= aligned), windows.addressed[-1]
  before, inner, after = (
    [d for d in window_dims if d in dims]
    for dims in (range(first), range(first, last + 1), range(last + 1, len(shape)))
  )
  flat = [
    *shape[:aligned],
    *(shape[d] for d in before),
    math.prod(shape[first : last + 1]),
    *(shape[d] for d in after),
  ]
  operand = operand if len(flat) == len(shape) else ctx.reshape(operand, flat)
  indices = windows.linear(ctx, starts, first, last)
  return gathered(ctx, operand, indices, aligned + len(before), aligned), [
    *batch_axes[:aligned],
    *_axes("window", before),
    *batch_axes[aligned:],
    *_axes("window", [*inner, *after]),
  ]


def _axes(kind: str, dims: Sequence[int]) -> list[_Axis]:
  return [(kind, d) for d in dims]
