"""Scatter ops. LiteRT fails at an out-of-bounds row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ..export.registry import replaces_each
from ..export.replay import with_shape
from ..export.scatters import Rows, drops, is_zeros
from . import lists, windows
from .rule import widened


def _scatter(op: tf.Operation, *operands: tf.Tensor) -> Sequence[tf.Tensor]:
  """ScatterNd and similar ops. LiteRT fails at an out-of-bounds row."""
  indices, updates, shape = (
    operands if op.type == "ScatterNd" else (*operands[1:], tf.shape(operands[0]))
  )
  if is_sum := op.type == "ScatterNd" or (op.type == "TensorScatterAdd" and is_zeros(op.inputs[0])):
    operands = indices, updates, shape
  if op.type in _SCATTERS and not drops(op, indices):
    return [_SCATTERS["ScatterNd" if is_sum else op.type](*operands)]
  rows = Rows.of(indices, lists.apart(updates), shape)
  if is_sum:
    result = tf.scatter_nd(rows.vectors, rows.updates, rows.extended_shape)
  elif op.type == "TensorScatterUpdate":
    result = _last_of_each(operands[0], rows)
  elif op.type in _SCATTERS:
    result = _SCATTERS[op.type](rows.extended(operands[0]), rows.vectors, rows.updates)
  else:
    return [_extreme(op, operands[0], rows)]
  return [with_shape(rows.cut(result), op.outputs[0].shape)]


_any_scatter = widened(_scatter)


def _scatter_update(op: tf.Operation, *operands: tf.Tensor) -> Sequence[tf.Tensor]:
  """One window is written in place; a dtype that only moves is not widened for it."""
  return windows.written(op, *operands) or _any_scatter(op, *operands)


def _last_of_each(x: tf.Tensor, rows: Rows) -> tf.Tensor:
  """Replaces each row by its last update. The converter would add all updates of a row, and
  subtract the row as often."""
  last = tf.math.unsorted_segment_max(
    tf.range(tf.shape(rows.numbers)[0]), rows.numbers, rows.places + 1
  )[: rows.places]
  updated = tf.reshape(last >= 0, tf.concat([[rows.places], tf.ones_like(rows.inner)], 0))
  return tf.where(updated, tf.gather(rows.updates, tf.maximum(last, 0)), rows.of_tensor(x))


def _extreme(op: tf.Operation, x: tf.Tensor, rows: Rows) -> tf.Tensor:
  """TensorScatterMax and -Min by segment ops over all rows. A segment without updates has the least
  (largest) number."""
  largest = op.type == "TensorScatterMax"
  segment = tf.math.unsorted_segment_max if largest else tf.math.unsorted_segment_min
  result = rows.cut(segment(rows.updates, rows.numbers, rows.places + 1))
  none = tf.constant(x.dtype.min if largest else x.dtype.max, x.dtype)
  return tf.where(
    tf.equal(result, none), x, tf.maximum(x, result) if largest else tf.minimum(x, result)
  )


def _subtracted(x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
  return tf.tensor_scatter_nd_add(x, indices, -updates)


_SCATTERS: Mapping[str, Callable[..., tf.Tensor]] = {
  "ScatterNd": tf.scatter_nd,
  "TensorScatterAdd": tf.tensor_scatter_nd_add,
  "TensorScatterSub": _subtracted,
}
replaces_each(
  dict.fromkeys(_SCATTERS, _any_scatter)
  | {"TensorScatterUpdate": _scatter_update}
  | {name: widened(_scatter, ordered=True) for name in ("TensorScatterMax", "TensorScatterMin")},
  on="tflite",
  because="LiteRT 2.3: stops at a row outside",
)
