"""Shared helpers for data movement: reshapes and slices by aval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from jax2tf.context import RuleContext


def transposed(x: tf.Tensor, permutation: Sequence[int]) -> tf.Tensor:
  """`x` itself where the permutation moves nothing."""
  return x if tuple(permutation) == tuple(range(len(permutation))) else tf.transpose(x, permutation)


def keeps_order(sizes: Sequence[Any], order: Sequence[int]) -> bool:
  """Whether a permutation of dimensions of these sizes moves none but those of size 1, so that it
  moves no element."""
  wide = [d for d in order if not is_one(sizes[d])]
  return wide == sorted(wide)


def resized(
  ctx: RuleContext, x: tf.Tensor, sizes: Sequence[Any], target: Sequence[Any]
) -> tf.Tensor:
  """`x` of these sizes, reshaped. If only sizes of 1 come and go, no symbolic size is computed in
  the graph."""
  several = sum(not isinstance(size, int) for size in target) > 1
  if not several or [size for size in sizes if not is_one(size)] != [
    size for size in target if not is_one(size)
  ]:
    return ctx.reshape(x, target)
  if list(sizes) == list(target):
    return x
  if ones := [axis for axis, size in enumerate(sizes) if is_one(size)]:
    x = tf.squeeze(x, ones)
  for axis, size in enumerate(target):
    if is_one(size):
      x = tf.expand_dims(x, axis)
  return x


def broadcast(
  ctx: RuleContext, x: tf.Tensor, sizes: Sequence[Any], shape: Sequence[Any]
) -> tf.Tensor:
  """`x` of these sizes, each 1 or that of `shape`, with the sizes 1 repeated."""
  if tuple(sizes) == tuple(shape):
    return x
  if len(shape) <= 5:
    return tf.broadcast_to(x, ctx.shape(shape))
  # TF 2.21: BroadcastTo on CPU takes at most 5 dimensions, Tile has no limit.
  return tiled(
    x, ctx.shape([1 if old == new else new for old, new in zip(sizes, shape, strict=True)])
  )


def as_rank3(ctx: RuleContext, x: tf.Tensor, sizes: Sequence[Any], axis: int) -> tf.Tensor:
  """`x` of these sizes with `axis` as dimension 1, and what is before and after it as one dimension
  each."""
  return ctx.reshape(x, [math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])])


def flipped_kernel(kernel: tf.Tensor, spatial: Sequence[int]) -> tf.Tensor:
  """A convolution's kernel, backwards along its spatial dimensions."""
  rank = len(spatial)
  if rank < 2 or max(spatial) - min(spatial) >= rank or not kernel.shape.is_fully_defined():
    return tf.reverse(kernel, spatial)
  # Adjacent dimensions are merged, because OpenVINO 2026.4 supports ReverseV2 of one dimension
  # only.
  first, sizes = min(spatial), kernel.shape.as_list()
  merged = tf.reshape(
    kernel, [*sizes[:first], math.prod(sizes[first : first + rank]), *sizes[first + rank :]]
  )
  return tf.reshape(tf.reverse(merged, [first]), sizes)


def tiled(x: tf.Tensor, repeats: list[int] | tf.Tensor) -> tf.Tensor:
  """`x` repeated along each axis."""
  # TF 2.21: Tile on CPU has no uint16 kernel.
  return (
    tf.cast(tf.tile(tf.cast(x, tf.int32), repeats), x.dtype)
    if x.dtype == tf.uint16
    else tf.tile(x, repeats)
  )


def sliced(
  ctx: RuleContext, x: tf.Tensor, shape: Sequence[Any], begin: Sequence[Any], sizes: Sequence[Any]
) -> tf.Tensor:
  """`x[begin:begin + sizes]` of an `x` of this shape; `begin` may hold int32 scalars."""
  if not shape:
    return x
  starts = [b if isinstance(b, tf.Tensor) else ctx.dim(b) for b in begin]
  # -1 is "to the end", so most slices need no size computed in the graph. Static sizes are given:
  # if another start is a tensor, XLA treats all starts as dynamic, and TF 2.21 then pads and masks
  # every dimension with -1.
  ends = [
    not isinstance(b, tf.Tensor) and b + size == n
    for b, size, n in zip(begin, sizes, shape, strict=True)
  ]
  counts = [
    -1 if end and not isinstance(size, int) else size for end, size in zip(ends, sizes, strict=True)
  ]
  if len(shape) <= 8:
    return tf.slice(x, starts, ctx.shape(counts))
  for axis, (start, end) in enumerate(zip(starts, ends, strict=True)):
    if not (end and isinstance(start, int) and start == 0):
      # TF 2.21: Slice on CPU takes at most 8 dimensions, Gather has no limit.
      x = tf.gather(x, start + tf.range(ctx.dim(sizes[axis])), axis=axis)
  return x


def is_zero(dim: Any) -> bool:
  """Whether a dimension is the known 0."""
  return isinstance(dim, int) and dim == 0


def is_one(dim: Any) -> bool:
  """Whether a dimension is the known 1."""
  return isinstance(dim, int) and dim == 1
