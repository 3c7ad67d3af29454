"""Index vectors that point at windows of an operand: the arithmetic that gather and scatter
share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf.context import RuleContext
from jax2tf.lowering._common import known
from jax2tf.lowering._movement import is_one


@dataclass(frozen=True)
class Windows:
  """Index vectors i32[*batch,c] and the window of the operand at which each points.

  Attributes:
    shape: sizes of the operand.
    sizes: sizes of a window, per dimension of the operand.
    dropped: dimensions of the operand that a window does not keep (their window size is 1).
    columns: the dimension of the operand that each component of an index vector addresses.
    batch: sizes of the indices without the index vector.
    batching: {dimension of the operand: dimension of `batch` with the same index}.
  """

  shape: Sequence[Any]
  sizes: Sequence[Any]
  dropped: frozenset[int]
  columns: tuple[int, ...]
  batch: Sequence[Any]
  batching: dict[int, int]

  @cached_property
  def window_dims(self) -> list[int]:
    """The dimensions of the operand that a window keeps."""
    return [d for d in range(len(self.shape)) if d not in self.dropped]

  @cached_property
  def addressed(self) -> list[int]:
    """The dimensions of the operand that a window does not fill, so that it matters where it
    starts."""
    return [
      d
      for d, (n, size) in enumerate(zip(self.shape, self.sizes, strict=True))
      if d in self.batching or size != n
    ]

  @cached_property
  def are_rows(self) -> bool:
    """Whether an index vector is the index of a row `operand[i, j, ...]`, which is what GatherNd
    and TensorScatterUpdate take."""
    leading = range(len(self.columns))
    return (
      not self.batching
      and self.columns == tuple(leading)
      and all(is_one(self.sizes[d]) for d in leading)
      and all(d in leading for d in self.addressed)
    )

  def vectors(self, indices: tf.Tensor) -> tf.Tensor:
    """The indices in int32 or int64; i32[*batch] for a single component."""
    indices = wide(indices)
    return tf.squeeze(indices, -1) if len(self.columns) == 1 else indices

  def clamped(self, ctx: RuleContext, vectors: tf.Tensor) -> tf.Tensor:
    """The vectors, moved so that the windows are inside the operand."""
    lasts = ctx.shape([self.shape[d] - self.sizes[d] for d in self.columns])
    return (
      clamped(vectors, lasts[0] if len(self.columns) == 1 else lasts) if self.columns else vectors
    )

  def known_start(self, indices: tf.Tensor, clip: bool) -> list[int] | None:
    """Where the only window starts, per dimension of the operand, if that is a constant of the
    graph and the addressed dimensions are static; with `clip`, moved inside."""
    extents = [(self.shape[d], self.sizes[d]) for d in self.addressed]
    is_static = all(isinstance(n, int) and isinstance(size, int) for n, size in extents)
    if self.batching or not is_static or not all(map(is_one, self.batch)):
      return None
    vector = known(indices) if self.columns else np.zeros(0, int)
    if vector is None:
      return None
    starts = [0] * len(self.shape)
    for d, start in zip(self.columns, vector.reshape(-1).tolist(), strict=True):
      last = self.shape[d] - self.sizes[d]
      starts[d] = min(max(start, 0), last) if clip else start
    return starts

  def holds(self, starts: Sequence[int]) -> bool:
    """Whether the window that starts there is inside of the operand."""
    return all(
      0 <= start <= n - size for start, n, size in zip(starts, self.shape, self.sizes, strict=True)
    )

  def inside(
    self, ctx: RuleContext, vectors: tf.Tensor, starts: tf.Tensor, shape: Sequence[Any]
  ) -> tf.Tensor:
    """Whether clamping had nothing to move, bool[*batch] in this shape."""
    inside = tf.equal(vectors, starts)
    inside = inside if len(self.columns) == 1 else tf.reduce_all(inside, -1)
    return inside if len(shape) == len(self.batch) else ctx.reshape(inside, shape)

  def linear(self, ctx: RuleContext, starts: tf.Tensor, first: int, last: int) -> tf.Tensor:
    """starts, clamped -> i32[*batch,*windows]: indices into dimensions first..last of the operand,
    flattened to one."""
    dims = range(first, last + 1)
    size = math.prod(self.shape[d] for d in dims)
    if len(dims) > 1 and not (isinstance(size, int) and size < 2**31):
      starts = tf.cast(starts, tf.int64)
    strides = {d: math.prod(self.shape[d + 1 : last + 1]) for d in dims}
    windows = [d for d in self.window_dims if d in dims]
    index = self._dot(
      ctx, starts, [strides[d] if d in strides and d in self.addressed else 0 for d in self.columns]
    )
    index = ctx.reshape(index, [*self.batch, *[1] * len(windows)]) if windows else index
    counted = [(d, axis, self.batch[axis]) for d, axis in self.batching.items() if d in dims]
    counted += [(d, len(self.batch) + i, self.sizes[d]) for i, d in enumerate(windows)]
    for d, axis, count in counted:
      if not is_one(count):
        steps = _multiples(ctx, count, strides[d], starts.dtype)
        trailing = len(self.batch) + len(windows) - 1 - axis
        index += tf.reshape(steps, [-1] + [1] * trailing) if trailing else steps
    return index

  def _dot(self, ctx: RuleContext, starts: tf.Tensor, strides: Sequence[Any]) -> tf.Tensor:
    """i32[*batch]: the starts times the strides."""
    if len(strides) != 1:
      return tf.reduce_sum(starts * tf.cast(ctx.shape(strides), starts.dtype), -1)
    return starts if is_one(strides[0]) else starts * tf.cast(ctx.dim(strides[0]), starts.dtype)


def on_device(ctx: RuleContext, indices: tf.Tensor) -> tf.Tensor:
  """The indices, in int64 for int32 where the graph may run on a GPU.

  TF 2.21: an op on int32 takes and leaves its values in host memory, so that each index that the
  device computes would be copied there and back.
  """
  is_on_host = indices.dtype == tf.int32 and ctx.destination.on_gpu
  return tf.cast(indices, tf.int64) if is_on_host else indices


def wide(indices: tf.Tensor) -> tf.Tensor:
  """The indices in int32 or int64; those that int64 cannot hold become its largest value."""
  if indices.dtype in (tf.int32, tf.int64):
    return indices
  if indices.dtype == tf.uint64:
    return tf.cast(tf.minimum(indices, tf.constant(tf.int64.max, tf.uint64)), tf.int64)
  return tf.cast(indices, tf.int64 if indices.dtype == tf.uint32 else tf.int32)


def clamped(indices: tf.Tensor, last: Any) -> tf.Tensor:
  """The indices, in int32 or int64, moved into [0, last]."""
  indices = wide(indices)
  # TF 2.21: of max(min(x, 6), 0) the TFLite converter makes Relu6, which has no kernel for
  # integers; not with the 0 first.
  return tf.maximum(
    tf.constant(0, indices.dtype), tf.minimum(indices, tf.cast(last, indices.dtype))
  )


def _multiples(ctx: RuleContext, count: Any, step: Any, dtype: tf.DType) -> tf.Tensor:
  """0, step, 2*step ... (count - 1)*step."""
  # TF 2.21: on GPUs a Range of int64 copies its bounds to the host, where that of int32 is made.
  numbers = tf.range(ctx.dim(count))
  numbers = numbers if dtype == tf.int32 else tf.cast(numbers, dtype)
  return numbers if is_one(step) else numbers * tf.cast(ctx.dim(step), dtype)
