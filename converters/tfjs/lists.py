"""Lists of tensors, as one tensor: in the body of a loop TF.js 4.22 disposes of the elements that it has just set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def with_item(op: tf.Operation, items: tf.Tensor, index: tf.Tensor, item: tf.Tensor) -> Sequence[Any]:
  """The list with another element."""
  index = tf.reshape(index, [1, 1])
  if op.inputs[2].shape.is_fully_defined() and items.shape[1:].is_compatible_with(op.inputs[2].shape):
    return [tf.tensor_scatter_nd_update(items, index, item[None])]
  here = tf.equal(tf.range(tf.shape(items)[0]), index[0])
  return [tf.where(tf.reshape(here, [-1] + [1] * item.shape.rank), item[None], items)]


def item_of(op: tf.Operation, items: tf.Tensor, index: tf.Tensor, element_shape: tf.Tensor) -> Sequence[Any]:
  """An element."""
  item = tf.gather(items, index)
  item.set_shape(op.outputs[0].shape)
  return [item]


def stacked(op: tf.Operation, items: tf.Tensor, element_shape: tf.Tensor) -> Sequence[Any]:
  """The tensor itself."""
  rows = tf.identity(items)
  rows.set_shape(op.outputs[0].shape)
  return [rows]
