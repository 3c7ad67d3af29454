"""The lists of tensors in which scans gather rows, as one tensor: the converter's own need rows of a static size, and copy all at each.

A tensor is held in a dtype that LiteRT writes rows of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import lists, replay
from ..export.replay import Replacement


def replacements(same: Callable[..., list[tf.Tensor]], wider: Mapping[tf.DType, tf.DType]) -> dict[str, Replacement]:
  """The table's part.

  Args:
    same: makes the op once more.
    wider: {dtype: the one that holds it}.
  """

  def reserved(op: tf.Operation, element_shape: tf.Tensor, count: tf.Tensor) -> Sequence[Any]:
    if element_shape.shape.rank != 1:
      return same(op, (element_shape, count))  # of a TensorArray that takes a tensor's rows, where nothing uses it
    dtype = op.get_attr("element_dtype")
    # A size that is not known yet, -1, is 1 until the first row is written.
    known = tf.get_static_value(element_shape)
    sizes = tf.where(element_shape < 0, 1, element_shape) if known is None else tf.constant(np.where(known < 0, 1, known))
    return [tf.zeros(tf.concat([tf.reshape(count, [1]), tf.cast(sizes, tf.int32)], 0), wider.get(dtype, dtype))]

  def held(op: tf.Operation, x: tf.Tensor, element_shape: tf.Tensor) -> Sequence[Any]:
    return [apart(tf.cast(x, wider.get(x.dtype, x.dtype)))]

  def taken(function: Replacement) -> Replacement:
    return lambda op, *operands: [tf.cast(x, y.dtype) for x, y in zip(function(op, *operands), op.outputs, strict=True)]

  return {
    "TensorListReserve": reserved,
    "TensorListFromTensor": held,
    "TensorListSetItem": _with_item,
    "TensorListGetItem": taken(lists.item_of),
    "TensorListStack": taken(lists.stacked),
    "TensorListLength": taken(lists.length),
  }


def apart(x: tf.Tensor) -> tf.Tensor:
  """The same tensor, with a Reshape behind the Cast that made it.

  The converter would take the Cast behind an op that moves numbers, and then have that op in a dtype for which there is no kernel.
  """
  if x.op.type != "Cast":
    return x
  return tf.squeeze(tf.cast(tf.expand_dims(x.op.inputs[0], -1), x.dtype), -1)


def _with_item(op: tf.Operation, items: tf.Tensor, index: tf.Tensor, item: tf.Tensor) -> Sequence[Any]:
  """By DynamicUpdateSlice, which writes one row in place where LiteRT can; the other ways write all of them."""
  row = tf.cast(item, items.dtype)[None]
  if not op.inputs[2].shape.is_fully_defined():
    shape = tf.concat([tf.shape(items)[:1], tf.shape(item)], 0)
    items = tf.cond(tf.reduce_all(tf.equal(tf.shape(items), shape)), lambda: items, lambda: tf.zeros(shape, items.dtype))
  start = tf.concat([tf.reshape(index, [1]), tf.zeros([item.shape.rank], tf.int32)], 0)
  written = replay.graph().create_op("XlaDynamicUpdateSlice", [items, row, start], [items.dtype], name=op.name).outputs[0]
  written.set_shape([None, *item.shape])
  return [written]
