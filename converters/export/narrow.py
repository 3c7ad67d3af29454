"""int4, uint4 and float8 for targets that do not know them. Values are in wider dtypes.

The targets only move these and convert them, and so does TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..bundle import graphs
from . import freezing, replay
from .registry import MOVES
from .replay import Replacement

INT4, UINT4 = tf.as_dtype("int4"), tf.as_dtype("uint4")
IN_A_BYTE = (INT4, UINT4)
# {dtype of 4 bits: the one that holds its values}
OF_4_BITS: Mapping[tf.DType, tf.DType] = {INT4: tf.int8, UINT4: tf.uint8}
# Ops whose first operand has the elements of the result. TensorFlow has most for int8 only.
_MOVING_FIRST = {"BroadcastTo", "ExpandDims", "GatherNd", "GatherV2", "Identity", "Reshape"}
_MOVING_FIRST |= {"ReverseV2", "Slice", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unpack"}
_LISTS = {f"TensorList{name}" for name in ("FromTensor", "GetItem", "Reserve", "SetItem", "Stack")}
_MOVES = MOVES | _LISTS | replay.REPLAYED | {"Cast", "Const", "Placeholder"}


class Table(Mapping[str, Replacement]):
  """Replaces every op except calls, loops, branches and identities."""

  def __init__(
    self,
    dtypes: Mapping[tf.DType, tf.DType],
    rounded: Callable[[tf.Tensor, tf.DType], tf.Tensor] | None = None,
  ):
    """
    Args:
      dtypes: {dtype: the one that holds its values}.
      rounded: (x, dtype of float8) -> x with the values of this dtype.
    """
    self.dtypes, self._rounded = dtypes, rounded
    self._special: Mapping[str, Replacement] = {
      "Cast": self._cast,
      "Const": self._constant,
      "ReadVariableOp": self._read,
    }

  def __contains__(self, op_type: object) -> bool:
    return op_type == "ReadVariableOp" or op_type not in replay.REPLAYED

  def __getitem__(self, op_type: str) -> Replacement:
    return self._special.get(op_type, self._moved)

  def __iter__(self) -> Iterator[str]:
    return iter(self._special)

  def __len__(self) -> int:
    return len(self._special)

  def held(self, function: Any) -> Any:
    """The ConcreteFunction without these dtypes; itself if it has none. Its variables are kept."""
    return freezing.frozen(function, self, self.dtypes) if any(self._uses(function)) else function

  def computing(self, function: Any) -> set[str]:
    """The types of ops that compute in these dtypes, for which there are no kernels."""
    return {op for op in self._uses(function) if op not in _MOVES}

  def _uses(self, function: Any) -> Iterator[str]:
    """The types of the ops that have one of these dtypes."""
    numbers = {dtype.as_datatype_enum for dtype in self.dtypes}
    for node in graphs.nodes(function.graph.as_graph_def()):
      for value in node.attr.values():
        if not numbers.isdisjoint((value.type, *value.list.type)):
          yield node.op

  def _moved(self, op: tf.Operation, *operands: tf.Tensor) -> list[tf.Tensor]:
    return replay.again(op, operands, self.dtypes)

  def _cast(self, op: tf.Operation, x: tf.Tensor) -> list[tf.Tensor]:
    before, after = op.inputs[0].dtype, op.outputs[0].dtype
    if after not in self.dtypes:
      return [tf.cast(x, after)]
    if before == after or (after in IN_A_BYTE and _has_values_of(op.inputs[0], after)):
      return [tf.cast(x, self.dtypes[after])]
    if after == INT4:
      wide = tf.bitwise.bitwise_and(tf.cast(x, tf.int32) + 8, 15)
      return [tf.cast(wide - 8, tf.int8)]
    if after == UINT4:
      return [tf.cast(tf.bitwise.bitwise_and(tf.cast(x, tf.int32), 15), tf.uint8)]
    assert self._rounded
    return [self._rounded(tf.cast(x, tf.float32), after)]

  def _constant(self, op: tf.Operation) -> list[tf.Tensor]:
    dtype = op.outputs[0].dtype
    if dtype not in self.dtypes:
      return replay.again(op, ())
    with tf.init_scope():  # not tf.make_ndarray: NumPy 2.5 warns about it
      value = tf.io.parse_tensor(op.get_attr("value").SerializeToString(), dtype).numpy()
    return [tf.constant(value.astype(self.dtypes[dtype].as_numpy_dtype))]

  def _read(self, op: tf.Operation, variable: tf.Variable) -> list[tf.Tensor]:
    """The value of a variable, of which the exporter makes a parameter."""
    value = variable.read_value()
    return [tf.cast(value, self.dtypes.get(variable.dtype, variable.dtype))]


def _has_values_of(x: tf.Tensor, dtype: tf.DType) -> bool:
  """Whether the tensor is one of this dtype that was cast to a wider one to be moved."""
  while x.op.type in _MOVING_FIRST:
    x = x.op.inputs[0]
  return x.op.type == "Cast" and x.op.inputs[0].dtype == dtype


def packed(array: np.ndarray) -> np.ndarray:
  """uint8[n]: the bytes of an array in a file, of 4-bit integers two a byte, the first in the lower
  half."""
  flat = np.ascontiguousarray(array).reshape(-1)
  if not any(array.dtype == dtype for dtype in IN_A_BYTE):
    return flat.view(np.uint8)
  halves = np.zeros(flat.size + flat.size % 2, np.uint8)
  halves[: flat.size] = flat.astype(np.int8).view(np.uint8) & 15
  return halves[::2] | halves[1::2] << 4
