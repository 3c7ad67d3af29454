"""TensorList ops as ops on one tensor of all rows. The converter's lists need static row sizes, and
copy all rows at each write.

The tensor has a dtype whose rows LiteRT can write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import lists, replay
from ..export.replay import Replacement
from ..export.scopes import own_name


def replacements(
  same: Callable[..., list[tf.Tensor]], wider: Mapping[tf.DType, tf.DType]
) -> dict[str, Replacement]:
  """The replacements of the TensorList ops.

  Args:
    same: copies the op unchanged.
    wider: {dtype: the dtype that holds it}.
  """

  def reserved(op: tf.Operation, element_shape: tf.Tensor, count: tf.Tensor) -> Sequence[Any]:
    if element_shape.shape.rank != 1:
      # the reserved list of a TensorArray that takes its rows from a tensor; nothing uses it
      return same(op, (element_shape, count))
    dtype = op.get_attr("element_dtype")
    # A size that is unknown before the first row is written, -1, becomes 1.
    known = tf.get_static_value(element_shape)
    sizes = (
      tf.where(element_shape < 0, 1, element_shape)
      if known is None
      else tf.constant(np.where(known < 0, 1, known))
    )
    return [
      tf.zeros(
        tf.concat([tf.reshape(count, [1]), tf.cast(sizes, tf.int32)], 0), wider.get(dtype, dtype)
      )
    ]

  def held(op: tf.Operation, x: tf.Tensor, element_shape: tf.Tensor) -> Sequence[Any]:
    return [apart(tf.cast(x, wider.get(x.dtype, x.dtype)))]

  def taken(function: Replacement) -> Replacement:
    return lambda op, *operands: [
      tf.cast(x, y.dtype) for x, y in zip(function(op, *operands), op.outputs, strict=True)
    ]

  return {
    "TensorListReserve": reserved,
    "TensorListFromTensor": held,
    "TensorListSetItem": _with_item,
    "TensorListGetItem": taken(lists.item_of),
    "TensorListStack": taken(lists.stacked),
    "TensorListLength": taken(lists.length),
  }


def apart(x: tf.Tensor) -> tf.Tensor:
  """The same tensor, with a Reshape after the Cast that made it.

  Otherwise the converter moves the Cast after an op that moves elements, and that op then has a
  dtype without a kernel.
  """
  if x.op.type != "Cast":
    return x
  return tf.squeeze(tf.cast(tf.expand_dims(x.op.inputs[0], -1), x.dtype), -1)


def _with_item(
  op: tf.Operation, items: tf.Tensor, index: tf.Tensor, item: tf.Tensor
) -> Sequence[Any]:
  """Writes a row by DynamicUpdateSlice, which LiteRT can run in place. Other ops copy all rows."""
  row = tf.cast(item, items.dtype)[None]
  if not op.inputs[2].shape.is_fully_defined():
    shape = tf.concat([tf.shape(items)[:1], tf.shape(item)], 0)
    items = tf.cond(
      tf.reduce_all(tf.equal(tf.shape(items), shape)),
      lambda: items,
      lambda: tf.zeros(shape, items.dtype),
    )
  start = tf.concat([tf.reshape(index, [1]), tf.zeros([item.shape.rank], tf.int32)], 0)
  written = (
    replay.graph()
    .create_op("XlaDynamicUpdateSlice", [items, row, start], [items.dtype], name=own_name(op))
    .outputs[0]
  )
  written.set_shape([None, *item.shape])
  return [written]
