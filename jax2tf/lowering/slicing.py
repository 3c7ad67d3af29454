"""Rectangular windows: slice and dynamic_slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf

from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW
from jax2tf.lowering._indexing import clamped
from jax2tf.lowering._movement import gathered, sliced
from jax2tf.registry import lowers


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
  ends = [limit == size for limit, size in zip(limit_indices, shape, strict=True)]
  limits = [0 if end else limit for end, limit in zip(ends, limit_indices, strict=True)]
  end_mask = sum(end << axis for axis, end in enumerate(ends))
  return tf.strided_slice(
    operand, ctx.shape(start_indices), ctx.shape(limits), strides, end_mask=end_mask
  )


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
