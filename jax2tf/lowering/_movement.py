"""Shared helpers for data movement: reshapes and slices by aval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from jax2tf.context import RuleContext

Moved = TypeVar("Moved", tf.Tensor, list[tf.Tensor])

# TF 2.21: few of the ops that move elements have a GPU kernel for integers. All have one for the
# floats of the same size, which keep the bits of each element, also of a signalling NaN. No float
# of 8 bits has them; a half holds all values of an integer of 8 bits. TensorFlow moves int32 in
# host memory.
CARRIERS = {
  tf.int8: tf.float16,
  tf.uint8: tf.float16,
  tf.int16: tf.float16,
  tf.uint16: tf.float16,
  tf.int32: tf.float32,
  tf.uint32: tf.float32,
  tf.int64: tf.float64,
  tf.uint64: tf.float64,
}
# TF 2.21: Slice, Split and Unpack have no GPU kernel for these, StridedSlice has one. On CPUs all
# take the same time.
_NO_SLICE = (tf.uint8, tf.int16, tf.uint16, tf.uint32, tf.uint64)
# TF 2.21: Fill has no GPU kernel for these. Below the size a Const is no larger than what fills it.
_NO_FILL = (tf.uint32, tf.uint64)
_SMALL_CONSTANT = 16


def carrier_of(ctx: RuleContext, dtype: tf.DType) -> tf.DType:
  """The dtype in which elements of this dtype are moved: where the graph may run on a GPU, one for
  which the ops have kernels there."""
  return CARRIERS.get(dtype, dtype) if ctx.destination.on_gpu else dtype


def converted(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """`x` in its carrier, or back: the same bits, or the same small integers."""
  if x.dtype == dtype:
    return x
  return tf.bitcast(x, dtype) if x.dtype.size == dtype.size else tf.cast(x, dtype)


def across(ctx: RuleContext, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The tensors as they enter and leave the body of a loop or a branch.

  TF 2.21: there an int32 is in host memory, where counters belong. Arrays are carried on the device
  as uint32.
  """
  return [
    converted(x, tf.uint32)
    if x.dtype == tf.int32 and x.shape.rank and ctx.destination.on_gpu
    else x
    for x in tensors
  ]


def as_before(tensors: Sequence[tf.Tensor], before: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The tensors `across` a boundary, in the dtypes that they had before."""
  return [converted(x, old.dtype) for x, old in zip(tensors, before, strict=True)]


def carried(ctx: RuleContext, move: Callable[..., Moved], *operands: tf.Tensor) -> Moved:
  """`move(*operands)`, of an op that moves elements and computes nothing, in the carrier of their
  dtype."""
  dtype = operands[0].dtype
  if (carrier := carrier_of(ctx, dtype)) == dtype:
    return move(*operands)
  moved = move(*(converted(x, carrier) for x in operands))
  if isinstance(moved, list):
    return [converted(part, dtype) for part in moved]
  return converted(moved, dtype)


def arranged(
  ctx: RuleContext, arrange: Callable[..., tf.Tensor], *operands: tf.Tensor
) -> tf.Tensor:
  """`arrange(*operands)`, of an op such as Reshape that has GPU kernels of all dtypes but int32."""
  if operands[0].dtype != tf.int32:
    return arrange(*operands)
  return carried(ctx, arrange, *operands)


def filled(ctx: RuleContext, x: tf.Tensor, shape: Sequence[Any]) -> tf.Tensor:
  """x f32[] -> f32[*shape], this element everywhere."""
  sizes = ctx.shape(shape)
  if x.dtype in _NO_FILL and isinstance(sizes, list) and math.prod(sizes) <= _SMALL_CONSTANT:
    if (value := tf.get_static_value(x)) is not None:
      # TensorFlow cannot read a constant of no elements that it makes of a value and a shape.
      return tf.constant(value if math.prod(sizes) else np.full(sizes, value), x.dtype, sizes)
    if math.prod(sizes) == 1:
      return ctx.reshape(x, sizes)
  return carried(ctx, lambda x: tf.fill(sizes, x), x)


def gathered(
  ctx: RuleContext, x: tf.Tensor, indices: tf.Tensor, axis: int, batch_dims: int = 0
) -> tf.Tensor:
  """The slices of `x` along `axis` at these indices, which are inside."""
  return carried(ctx, lambda x: tf.gather(x, indices, axis=axis, batch_dims=batch_dims), x)


def reversed_along(ctx: RuleContext, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
  """`x` backwards along these axes."""
  return carried(ctx, lambda x: tf.reverse(x, axes), x)


def unstacked(ctx: RuleContext, x: tf.Tensor, count: int, axis: int = 0) -> list[tf.Tensor]:
  """The `count` slices of `x` along `axis`, without this axis."""
  if not _is_cut_by_strides(ctx, x):
    return carried(ctx, lambda x: list(tf.unstack(x, count, axis)), x)
  constant, before = ctx.dimensions.constant_shape, [0] * axis
  ones, all_before = constant([1] * (axis + 1)), (1 << axis) - 1
  return [
    tf.strided_slice(
      x,
      constant([*before, i]),
      constant([*before, i + 1]),
      ones,
      begin_mask=all_before,
      end_mask=all_before,
      shrink_axis_mask=1 << axis,
    )
    for i in range(count)
  ]


def split(
  ctx: RuleContext, x: tf.Tensor, shape: Sequence[Any], sizes: Sequence[Any], axis: int
) -> list[tf.Tensor]:
  """`x` of this shape in parts of these sizes along `axis`, at least two."""
  if _is_cut_by_strides(ctx, x):
    parts, start = [], 0
    for size in sizes:
      begin = [0] * axis + [start] + [0] * (len(shape) - axis - 1)
      parts.append(sliced(ctx, x, shape, begin, [*shape[:axis], size, *shape[axis + 1 :]]))
      start = start + size
    return parts
  equal = all(size is sizes[0] or size == sizes[0] for size in sizes)
  counts = len(sizes) if equal else ctx.shape(sizes)
  return carried(ctx, lambda x: list(tf.split(x, counts, axis, num=len(sizes))), x)


def _is_cut_by_strides(ctx: RuleContext, x: tf.Tensor) -> bool:
  """Whether StridedSlice stands for Split and Unpack."""
  # TF 2.21: no Split of bool on GPUs.
  is_cut = x.dtype in _NO_SLICE or (x.dtype == tf.bool and ctx.destination.on_gpu)
  return is_cut and x.shape.rank <= 8


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
    return carried(ctx, lambda x: tf.broadcast_to(x, ctx.shape(shape)), x)
  # TF 2.21: BroadcastTo on CPU takes at most 5 dimensions, Tile has no limit.
  repeats = [1 if old == new else new for old, new in zip(sizes, shape, strict=True)]
  return tiled(ctx, x, ctx.shape(repeats))


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


def tiled(ctx: RuleContext, x: tf.Tensor, repeats: list[int] | tf.Tensor) -> tf.Tensor:
  """`x` repeated along each axis."""
  if x.dtype == tf.uint16 and not ctx.destination.on_gpu:  # TF 2.21: Tile on CPU has no kernel
    return tf.cast(tf.tile(tf.cast(x, tf.int32), repeats), x.dtype)
  return carried(ctx, lambda x: tf.tile(x, repeats), x)


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
  if len(shape) <= 8:
    if x.dtype in _NO_SLICE and not any(isinstance(b, tf.Tensor) for b in begin):
      return _strided(ctx, x, begin, sizes, ends)
    counts = [
      -1 if end and not isinstance(size, int) else size
      for end, size in zip(ends, sizes, strict=True)
    ]
    return carried(ctx, lambda x: tf.slice(x, starts, ctx.shape(counts)), x)
  for axis, (start, end) in enumerate(zip(starts, ends, strict=True)):
    if not (end and isinstance(start, int) and start == 0):
      # TF 2.21: Slice on CPU takes at most 8 dimensions, Gather has no limit.
      x = gathered(ctx, x, start + tf.range(ctx.dim(sizes[axis])), axis)
  return x


def _strided(
  ctx: RuleContext, x: tf.Tensor, begin: Sequence[Any], sizes: Sequence[Any], ends: Sequence[bool]
) -> tf.Tensor:
  """`x[begin:begin + sizes]`, to the end where `ends` says so."""
  limits = [0 if end else b + size for b, size, end in zip(begin, sizes, ends, strict=True)]
  return tf.strided_slice(
    x,
    _shape_operand(ctx, begin),
    _shape_operand(ctx, limits),
    ctx.dimensions.constant_shape([1] * len(sizes)),
    end_mask=sum(end << axis for axis, end in enumerate(ends)),
  )


def _shape_operand(ctx: RuleContext, sizes: Sequence[Any]) -> Any:
  """The sizes as one operand, which equal ones of the graph share if they are known."""
  values = ctx.shape(sizes)
  return ctx.dimensions.constant_shape(values) if isinstance(values, list) else values


def is_zero(dim: Any) -> bool:
  """Whether a dimension is the known 0."""
  return isinstance(dim, int) and dim == 0


def is_one(dim: Any) -> bool:
  """Whether a dimension is the known 1."""
  return isinstance(dim, int) and dim == 1
