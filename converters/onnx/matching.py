"""What is known of tensors in a graph that is being built."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export.registry import MOVES

# Of known operands, the value of an index.
_COMPUTED: Mapping[str, Callable[..., Any]] = {
  "AddV2": np.add,
  "ConcatV2": lambda *values: np.concatenate(values[:-1], int(values[-1])),
  "Maximum": np.maximum,
  "Minimum": np.minimum,
  "Mul": np.multiply,
}


def known(x: tf.Tensor) -> Any:
  """The value of an integer tensor that is computed from constants, or None."""
  if (value := tf.get_static_value(x)) is not None:
    return value
  if not x.dtype.is_integer or not x.shape.is_fully_defined():
    return None
  if x.op.type in ("Reshape", "Squeeze", "ExpandDims"):
    value = known(x.op.inputs[0])
    return None if value is None else value.reshape(x.shape.as_list())
  if x.op.type == "BroadcastTo":
    value = known(x.op.inputs[0])
    return None if value is None else np.broadcast_to(value, x.shape.as_list())
  if x.op.type not in _COMPUTED:
    return None
  values = [known(y) for y in x.op.inputs]
  return None if any(value is None for value in values) else _COMPUTED[x.op.type](*values)


def is_last(axis: tf.Tensor, of: tf.Tensor) -> bool:
  """Whether an operand names the last axis of a tensor."""
  known = tf.get_static_value(axis)
  return known is not None and of.shape.rank is not None and int(known) in (-1, of.shape.rank - 1)


def are_equal(x: tf.Tensor, y: tf.Tensor) -> bool:
  """Whether two tensors are known to have the same elements: moves of equal tensors."""
  if x.ref() == y.ref():
    return True
  values = tf.get_static_value(x), tf.get_static_value(y)
  if values[0] is not None and values[1] is not None:
    return x.dtype == y.dtype and np.array_equal(*values)
  one, two = x.op, y.op
  if one.type != two.type or one.type not in MOVES or x.value_index != y.value_index:
    return False
  attributes = [
    {name: value for name, value in op.node_def.attr.items() if name[0] != "_"} for op in (one, two)
  ]
  return attributes[0] == attributes[1] and all(map(are_equal, one.inputs, two.inputs))


def squeezed(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
  """x without these axes of size 1; of no axes TensorFlow would squeeze all."""
  return tf.squeeze(x, axes) if axes else x


def product_of(sizes: Sequence[Any], axes: Sequence[int]) -> Any:
  """The number of elements along the axes, or None."""
  along = [sizes[axis] for axis in axes]
  return None if None in along else math.prod(along)


def grouped(x: tf.Tensor, groups: Sequence[Sequence[int]]) -> tf.Tensor:
  """x with one axis for each group of adjacent axes. Axes of size 1 need not be in a group."""
  if list(groups) == [[axis] for axis in range(x.shape.rank)]:
    return x
  sizes: list[Any] = [product_of(x.shape.as_list(), axes) for axes in groups]
  unknown = [i for i, size in enumerate(sizes) if size is None]
  if len(unknown) > 1 and all(len(axes) < 2 for axes in groups):
    kept = {axis for axes in groups for axis in axes}
    x = squeezed(x, [axis for axis in range(x.shape.rank) if axis not in kept])
    for i, axes in enumerate(groups):
      x = x if axes else tf.expand_dims(x, i)
    return x
  if unknown:
    counts = tf.shape(x, tf.int64)
    for i in unknown[1:]:
      sizes[i] = functools.reduce(operator.mul, [counts[axis] for axis in groups[i]])
    sizes[unknown[0]] = -1
  return tf.reshape(x, sizes)
