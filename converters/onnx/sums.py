"""Sums of few short rows, and of flags. Of short rows, ONNX Runtime 1.32 makes a product of
matrices of each group, which takes 5 times as long as sums of parts. Integers it adds in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..export import replay

_ROWS, _LENGTH = 8, 16  # at most
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
