"""Cumulative maxima and minima by one MaxPool, whose time in ONNX Runtime (1.31, 1.32) does not
depend on the size of its window if there is one axis.

The lowering takes maxima of pairs 1, 2, 4 ... elements apart (`jax2tf.lowering.cumulative`): three
Slices, a Max and a Concat for each distance.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ..export import replay
from . import composites, extremes

_SHORT = 4  # elements along the axis for which the pairs take fewer nodes


@dataclass(frozen=True)
class _Step:
  """Maxima of pairs `distance` elements apart, and the elements without a partner.

  Attributes:
    source: f32[...,n,...].
    kind: the type of the op, Maximum or Minimum.
    is_reversed: whether the partner comes after an element.
  """

  source: tf.Tensor
  distance: int
  kind: str
  is_reversed: bool


def extreme(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor | None:
  """The cumulative extreme of f32[...,n,...] along the axis, of which these parts of the new graph
  are the last step; None of another concatenation."""
  step = last = _step(parts, axis)
  if step is None or last is None or not step.source.dtype.is_floating:
    return None
  size = step.source.shape[axis]
  if step.source.dtype == tf.float16 or size < _SHORT or 2 * step.distance < size:
    return None
  while step.distance > 1:
    joined = _passed(step.source).op
    before = _step(joined.inputs[:-1], axis) if _is_join(joined, axis) else None
    if before is None or before.distance * 2 != step.distance:
      return None
    if (before.kind, before.is_reversed) != (last.kind, last.is_reversed):
      return None
    step = before
  return _pooled(step.source, axis, last)


def _step(parts: Sequence[tf.Tensor], axis: int) -> _Step | None:
  if len(parts) != 2:
    return None
  both, end = parts if parts[0].op.type in ("Maximum", "Minimum") else parts[::-1]
  if both.op.type not in ("Maximum", "Minimum"):
    return None
  is_reversed = both is parts[0]
  slices = [_passed(x) for x in (*both.op.inputs, end)]  # the early ones, the late ones, the rest
  cuts = [cut for x in slices if (cut := _cut(x, axis)) is not None]
  if len(cuts) != len(slices) or any(cut[0] is not cuts[0][0] for cut in cuts):
    return None
  source = cuts[0][0]
  size, distance = source.shape[axis], cuts[1][1]
  start = size - distance if is_reversed else 0
  expected = [(0, size - distance), (distance, size - distance), (start, distance)]
  is_step = distance > 0 and [cut[1:] for cut in cuts] == expected
  return _Step(source, distance, both.op.type, is_reversed) if is_step else None


def _cut(x: tf.Tensor, axis: int) -> tuple[tf.Tensor, int, int] | None:
  """(source, start, size) of a slice along this axis alone."""
  if x.op.type != "Slice" or x.op.inputs[0].shape.rank is None:
    return None
  source, *numbers = x.op.inputs
  begin, sizes = (tf.get_static_value(number) for number in numbers)
  whole = source.shape.as_list()
  if begin is None or sizes is None or whole[axis] is None:
    return None
  for i, (start, size) in enumerate(zip(begin, sizes, strict=True)):
    if i != axis and (start != 0 or size not in (-1, whole[i])):
      return None
  size = sizes[axis] if sizes[axis] >= 0 else whole[axis] - begin[axis]
  return source, int(begin[axis]), int(size)


def _passed(x: tf.Tensor) -> tf.Tensor:
  while x.op.type == "Identity":
    x = x.op.inputs[0]
  return x


def _is_join(op: tf.Operation, axis: int) -> bool:
  return op.type == "ConcatV2" and tf.get_static_value(op.inputs[-1]) == axis


def _pooled(x: tf.Tensor, axis: int, step: _Step) -> tf.Tensor:
  """The cumulative extreme."""
  order = [i for i in range(x.shape.rank) if i != axis] + [axis]
  back = [order.index(i) for i in range(x.shape.rank)]
  is_last = axis == x.shape.rank - 1
  rows = x if is_last else tf.transpose(x, order)
  rows = rows if step.kind == "Maximum" else -rows
  pool = functools.partial(_maxima, is_reversed=step.is_reversed)
  chosen = extremes.pooled(x, rows, pool(rows), pool)
  chosen = chosen if step.kind == "Maximum" else -chosen
  return chosen if is_last else tf.transpose(chosen, back)


def _maxima(rows: tf.Tensor, is_reversed: bool) -> tf.Tensor:
  """f32[...,n] -> the maxima of the elements up to each, or from each on."""
  size = rows.shape[-1]
  pads = [0, size - 1] if is_reversed else [size - 1, 0]
  flat = tf.reshape(rows, [-1, 1, size])
  pooled = composites.composite("MaxPool", [flat], kernel_shape=[size], strides=[1], pads=pads)
  known = [-1 if n is None else n for n in rows.shape.as_list()]
  return tf.reshape(pooled, known if known.count(-1) <= 1 else replay.sizes_of(rows))
