"""Sums of few short rows, and of flags. Of short rows, ONNX Runtime 1.32 makes a product of
matrices of each group, which takes 5 times as long as sums of parts, or as a pool of averages.
Integers it adds in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import replay

_ROWS, _LENGTH = 8, 16  # at most
_WIDTH = 32  # of images; sums of wider rows are fast
_FEW = 4096  # elements for which one node is faster than several
_COUNTED = 2**24  # float32 has all integers up to it


def of_rows(op: Any, x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
  """Sum: x f32[..., 4, 8] -> f32[..., 8]."""
  known = tf.get_static_value(axes)
  if known is None or known.size != 1 or not x.shape.rank:
    return replay.again(op, (x, axes))
  axis = int(known.item()) % x.shape.rank
  if not _are_short(x, axis):
    return replay.again(op, (x, axes))
  total = functools.reduce(tf.add, tf.split(x, x.shape[axis], axis))
  return [total if op.get_attr("keep_dims") else tf.squeeze(total, axis)]


def mean_of_groups(total: tf.Tensor, count: tf.Tensor) -> tf.Tensor | None:
  """`total / count` as a pool of averages, if the total is that of groups of neighbours along the
  height or the width of images f32[n,c,h,w], as in Equinox' adaptive pools; else None.

  Args:
    total: the sum in the new graph, of groups f32[n,c,h/k,k,w] or f32[n,c,h,w/k,k].
    count: the divisor, k.
  """
  if total.op.type == "Transpose":
    mean = mean_of_groups(total.op.inputs[0], count)
    return None if mean is None else tf.transpose(mean, total.op.inputs[1])
  operand, axis = _summed(total)
  if operand is None or operand.op.type != "Reshape" or operand.dtype != tf.float32:
    return None
  images = operand.op.inputs[0]
  if images.shape.rank != 4:
    return None
  shape, grouped = images.shape.as_list(), operand.shape.as_list()
  size, place = grouped[axis], axis - 1
  if place < 2 or None in shape[1:] or shape[3] > _WIDTH:
    return None
  split = [*shape[:place], shape[place] // size, size, *shape[place + 1 :]]
  if grouped != split or shape[place] % size or not np.all(tf.get_static_value(count) == size):
    return None
  window = [size if place == dimension else 1 for dimension in range(4)]
  return tf.nn.avg_pool2d(images, window, window, "VALID", data_format="NCHW")


def _summed(total: tf.Tensor) -> tuple[tf.Tensor | None, int]:
  """(operand, axis) of a sum along one axis, as `of_rows` writes it or TensorFlow; (None, 0) for
  another value."""
  op = total.op
  if op.type == "Sum" and op.inputs[0].shape.rank and not op.get_attr("keep_dims"):
    axes = tf.get_static_value(op.inputs[1])
    is_one = axes is not None and axes.size == 1
    return (op.inputs[0], int(axes.item()) % op.inputs[0].shape.rank) if is_one else (None, 0)
  if op.type != "Squeeze":
    return None, 0
  parts: list[tf.Tensor] = []
  part = op.inputs[0]
  while part.op.type == "AddV2":
    parts.append(part.op.inputs[1])
    part = part.op.inputs[0]
  parts.append(part)
  split = part.op
  if split.type != "Split" or not part.shape.rank:
    return None, 0
  axis = int(tf.get_static_value(split.inputs[0])) % part.shape.rank
  are_all = [x.ref() for x in reversed(parts)] == [x.ref() for x in split.outputs]
  is_squeezed = part.shape[axis] == 1 and list(op.get_attr("squeeze_dims")) == [axis]
  return (split.inputs[1], axis) if are_all and is_squeezed else (None, 0)


def of_flags(x: tf.Tensor, reduce: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor | None:
  """`reduce(x)`, the sum of flags as integers i32[...] along axes, of which float32 has all; None
  of other integers, and of perhaps more flags.

  Args:
    x: the integers in the new graph.
    reduce: sums along the axes.
  """
  flags, size = x, x.shape.num_elements()
  while flags.op.type == "Cast" and flags.dtype.is_integer:
    flags = flags.op.inputs[0]
  if flags.dtype != tf.bool or size is None or size > _COUNTED:
    return None
  return tf.cast(reduce(tf.cast(flags, tf.float32)), x.dtype)


def _are_short(x: tf.Tensor, axis: int) -> bool:
  """Whether the rows along the axis are few, and short, in an array that is not small."""
  count, row, size = x.shape[axis] or 0, x.shape[axis + 1 :], x.shape.num_elements()
  is_float = x.dtype in (tf.float32, tf.float64)
  is_short = row.is_fully_defined() and 1 < math.prod(row.as_list()) <= _LENGTH
  return is_float and is_short and 1 < count <= _ROWS and (size is None or size >= _FEW)
