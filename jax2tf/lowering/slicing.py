"""Rectangular windows: slice and dynamic_slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf

from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW
from jax2tf.lowering._indexing import clamped
from jax2tf.lowering._movement import carried, gathered, sliced
from jax2tf.registry import lowers

_FEW = 1024  # elements for which several ops take longer than one


@lowers(P.slice_p, lacks=NARROW)
def _slice(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  start_indices: Sequence[Any],
  limit_indices: Sequence[Any],
  strides: Sequence[int] | None,
) -> tf.Tensor:
  """operand f32[n] -> f32[(limit - start + stride - 1) // stride]."""
  shape = ctx.avals_in[0].shape
  if strides is None or all(stride == 1 for stride in strides):
    return sliced(ctx, operand, shape, start_indices, ctx.aval_out.shape)
  if len(shape) > 8:  # TF 2.21: StridedSlice on CPU takes at most 8 dimensions, Gather has no limit
    for axis, bounds in enumerate(zip(start_indices, limit_indices, strides, strict=True)):
      operand = gathered(ctx, operand, tf.range(*map(ctx.dim, bounds)), axis)
    return operand
  if (columns := _columns(ctx, operand, start_indices, strides)) is not None:
    return columns
  ends = [limit == size for limit, size in zip(limit_indices, shape, strict=True)]
  limits = [0 if end else limit for end, limit in zip(ends, limit_indices, strict=True)]
  end_mask = sum(end << axis for axis, end in enumerate(ends))
  return tf.strided_slice(
    operand, ctx.shape(start_indices), ctx.shape(limits), strides, end_mask=end_mask
  )


def _columns(
  ctx: RuleContext, operand: tf.Tensor, starts: Sequence[Any], strides: Sequence[int]
) -> tf.Tensor | None:
  """The slice as the columns of rows of `stride` elements, or None.

  TF 2.21: on CPU StridedSlice computes the place of each element, where Slice copies rows, and
  takes up to 60 times as long.
  """
  shape, results = ctx.avals_in[0].shape, ctx.aval_out.shape
  unknown = [n for n in shape if not isinstance(n, int)]
  known = math.prod(n for n in shape if isinstance(n, int))
  cut = [axis for axis, stride in enumerate(strides) if stride > 1]
  is_short = len(shape) == 1 or (not unknown and known <= _FEW)
  is_elsewhere = ctx.destination.on_gpu or ctx.destination.dtensor_mesh is not None
  if is_elsewhere or is_short or len(unknown) > 1 or len(shape) + len(cut) > 8:
    return None
  begin, sizes, missing = list(starts), list(results), [0] * len(shape)
  columns, rows, offsets = [], [], []
  for axis, (n, count, stride) in enumerate(zip(shape, results, strides, strict=True)):
    offset = 0
    if stride > 1:
      if not (isinstance(n, int) and isinstance(begin[axis], int) and count > 0):
        return None
      # Rows may start before the first element, and end behind the operand.
      first = max(min(begin[axis], n - count * stride), 0)
      offset, begin[axis] = begin[axis] - first, first
      sizes[axis] = min(count * stride, n - first)
      missing[axis] = count * stride - sizes[axis]
    rows += [count, stride] if stride > 1 else [count]
    offsets += [0, offset] if stride > 1 else [0]
    columns += [count, 1] if stride > 1 else [count]
  is_whole = all(size == n for size, n in zip(sizes, shape, strict=True))
  window = operand if is_whole else sliced(ctx, operand, shape, begin, sizes)
  if any(missing):
    window = carried(ctx, lambda x: tf.pad(x, [[0, more] for more in missing]), window)
  return ctx.reshape(sliced(ctx, ctx.reshape(window, rows), rows, offsets, columns), results)


@lowers(P.dynamic_slice_p, lacks=NARROW)
def _dynamic_slice(
  ctx: RuleContext, operand: tf.Tensor, *start_indices: tf.Tensor, slice_sizes: Sequence[Any]
) -> tf.Tensor:
  """operand f32[n,m], a scalar index per dimension -> f32[*slice_sizes]; starts are clamped so that
  the slice fits."""
  shape = ctx.avals_in[0].shape
  starts = [
    0 if size == n else tf.cast(clamped(index, ctx.dim(n - size)), tf.int32)
    for index, size, n in zip(start_indices, slice_sizes, shape, strict=True)
  ]
  return sliced(ctx, operand, shape, starts, slice_sizes)
