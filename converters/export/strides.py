"""Slices with strides, which the lowering makes of rows (`lowering.slicing`), as one op again.

StridedSlice takes long in TensorFlow only; in other runtimes it is the shortest form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Strided:
  """`operand[start::stride]` of each dimension, up to `end`; an end of None is that of the
  operand."""

  operand: tf.Tensor
  starts: tuple[int, ...]
  ends: tuple[int | None, ...]
  strides: tuple[int, ...]

  def bounds(self) -> list[tf.Tensor]:
    """The operands of `sliced` after the first: the starts, the ends and the strides, i32[rank]."""
    ends = [-1 if end is None else end for end in self.ends]
    return [tf.constant(values, tf.int32) for values in (self.starts, ends, self.strides)]


def sliced(
  op: tf.Operation, x: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, strides: tf.Tensor
) -> list[tf.Tensor]:
  """The slice. An end of -1 is that of x."""
  mask = sum(1 << axis for axis, end in enumerate(tf.get_static_value(ends)) if end == -1)
  return [tf.strided_slice(x, starts, ends, strides, end_mask=mask)]


def found(op: tf.Operation) -> Strided | None:
  """The slice with strides whose last op this is: a Reshape of columns of a Reshape that makes rows
  of `stride` elements; None for another op."""
  if op.type != "Reshape" or (columns := op.inputs[0].op).type != "Slice":
    return None
  rows = columns.inputs[0].op
  if rows.type != "Reshape" or (window := _window(columns)) is None:
    return None
  whole = rows.inputs[0]
  taken = _columns(whole.shape, rows.outputs[0].shape, *window)
  if taken is None or not op.outputs[0].shape.is_compatible_with(taken[2]):
    return None
  starts, strides, result = taken
  if whole.op.type == "Pad":
    padded, whole = whole, whole.op.inputs[0]
    if not _are_behind(padded.op, starts, strides, result):
      return None
  inner = _window(whole.op) if whole.op.type == "Slice" else None
  if inner is None:
    return Strided(whole, tuple(starts), (None,) * len(starts), tuple(strides))
  offsets, sizes = inner
  ends = [None if n == -1 else offset + n for offset, n in zip(offsets, sizes, strict=True)]
  starts = [offset + start for offset, start in zip(offsets, starts, strict=True)]
  return Strided(whole.op.inputs[0], tuple(starts), tuple(ends), tuple(strides))


def _window(op: tf.Operation) -> tuple[list[int], list[int]] | None:
  """The begin and the sizes of a Slice, if they are constant."""
  values = [tf.get_static_value(x) for x in op.inputs[1:]]
  if any(value is None for value in values):
    return None
  begin, sizes = (value.tolist() for value in values)
  return begin, sizes


def _are_behind(
  pad: tf.Operation, starts: list[int], strides: list[int], counts: list[int | None]
) -> bool:
  """Whether zeros are added only behind the last elements that are taken."""
  paddings, sizes = tf.get_static_value(pad.inputs[1]), pad.inputs[0].shape.as_list()
  if paddings is None:
    return False
  for (before, behind), n, start, stride, count in zip(
    paddings.tolist(), sizes, starts, strides, counts, strict=True
  ):
    if before or (behind and (n is None or count != len(range(start, n, stride)))):
      return False
  return True


def _columns(
  shape: tf.TensorShape, rows: tf.TensorShape, begin: list[int], sizes: list[int]
) -> tuple[list[int], list[int], list[int | None]] | None:
  """(starts, strides, shape of the result) of the dimensions before they became rows."""
  if shape.rank is None or rows.rank is None or rows.rank <= shape.rank:
    return None
  starts, strides, result = [], [], []
  left: list[Any] = list(zip(rows.as_list(), begin, sizes, strict=True))
  for n in shape.as_list():
    if not left:
      return None
    count, first, size = left.pop(0)
    if first != 0 or size not in (-1, count):
      return None
    stride = 1
    start = 0
    if n != count:
      if not left or n is None or count is None or left[0][0] is None or count * left[0][0] != n:
        return None
      stride, start, size = left.pop(0)
      if size != 1:
        return None
    starts.append(start)
    strides.append(stride)
    result.append(count)
  return None if left else (starts, strides, result)
