"""TensorLists as one tensor of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def item_of(
  op: tf.Operation, items: tf.Tensor, index: tf.Tensor, element_shape: tf.Tensor
) -> Sequence[Any]:
  """An element."""
  item = tf.gather(items, index)
  item.set_shape(op.outputs[0].shape)
  return [item]


def stacked(op: tf.Operation, items: tf.Tensor, element_shape: tf.Tensor) -> Sequence[Any]:
  """The tensor itself."""
  rows = tf.identity(items)
  rows.set_shape(op.outputs[0].shape)
  return [rows]


def length(op: tf.Operation, items: tf.Tensor) -> Sequence[Any]:
  """The number of elements."""
  return [tf.shape(items)[0]]
