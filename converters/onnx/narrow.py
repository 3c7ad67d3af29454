"""int4, uint4 and float8 for tf2onnx, which does not know them. Values are int8, uint8 and float32.

ONNX Runtime only moves them and converts them, and so does TensorFlow. A cast to float8 rounds:
two Casts in ONNX, as for bfloat16. Parameters have their own dtype in the file; see `parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..bundle import graphs
from ..export import replay
from ..export.registry import MOVES
from ..export.replay import Replacement
from . import protos
from .protos import FLOAT8E4M3FN, FLOAT8E5M2
from .runtime import extra

_INT4, _UINT4 = tf.as_dtype("int4"), tf.as_dtype("uint4")
_E4M3, _E5M2 = tf.as_dtype("float8_e4m3fn"), tf.as_dtype("float8_e5m2")
_FLOAT8 = {_E4M3: 4, _E5M2: 5}  # the bits of the exponent
# The largest numbers that do not round to a number beyond the largest one, 448 and 57344.
_LARGEST = {_E4M3: 464.0, _E5M2: float(np.nextafter(np.float32(61440), np.float32(0)))}
# {num_bits of the marker of a rounding, those of the exponent: the dtype}. The handler makes
# two Casts of the marker.
ROUNDED = {4: FLOAT8E4M3FN, 5: FLOAT8E5M2}
HELD: Mapping[tf.DType, tf.DType] = {
  _INT4: tf.int8,
  _UINT4: tf.uint8,
  **dict.fromkeys(_FLOAT8, tf.float32),
}
# The first opset that has the dtype.
SINCE: Mapping[tf.DType, int] = {_INT4: 21, _UINT4: 21, **dict.fromkeys(_FLOAT8, 19)}
_IN_A_BYTE = (_INT4, _UINT4)
# Ops whose first operand has the elements of the result. TensorFlow has most for int8 only.
_MOVING_FIRST = {"BroadcastTo", "ExpandDims", "GatherNd", "GatherV2", "Identity", "Reshape"}
_MOVING_FIRST |= {"ReverseV2", "Slice", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unpack"}
_LISTS = {f"TensorList{name}" for name in ("FromTensor", "GetItem", "Reserve", "SetItem", "Stack")}
_MOVES = MOVES | _LISTS | replay.REPLAYED | {"Cast", "Const", "Placeholder"}


def held_dtype(dtype: tf.DType) -> tf.DType:
  """The dtype that holds values of this one; itself for others."""
  return HELD.get(dtype, dtype)


def held(function: Any) -> Any:
  """The ConcreteFunction without these dtypes; itself if it has none. Its variables are kept."""
  return replay.frozen(function, TABLE, HELD) if any(_uses(function)) else function


def computing(function: Any) -> set[str]:
  """The types of ops that compute in these dtypes, for which there are no kernels."""
  return {op for op in _uses(function) if op not in _MOVES}


def _uses(function: Any) -> Iterator[str]:
  """The types of the ops that have one of these dtypes."""
  numbers = {dtype.as_datatype_enum for dtype in HELD}
  for node in graphs.nodes(function.graph.as_graph_def()):
    for value in node.attr.values():
      if not numbers.isdisjoint((value.type, *value.list.type)):
        yield node.op


class _Table(Mapping[str, Replacement]):
  """Replaces every op except calls, loops, branches and identities."""

  def __contains__(self, op_type: object) -> bool:
    return op_type == "ReadVariableOp" or op_type not in replay.REPLAYED

  def __getitem__(self, op_type: str) -> Replacement:
    return _SPECIAL.get(op_type, _moved)

  def __iter__(self) -> Iterator[str]:
    return iter(_SPECIAL)

  def __len__(self) -> int:
    return len(_SPECIAL)


def _moved(op: tf.Operation, *operands: tf.Tensor) -> list[tf.Tensor]:
  return replay.again(op, operands, HELD)


def _cast(op: tf.Operation, x: tf.Tensor) -> list[tf.Tensor]:
  before, after = op.inputs[0].dtype, op.outputs[0].dtype
  if before == after or (after in _IN_A_BYTE and _has_values_of(op.inputs[0], after)):
    return [tf.cast(x, held_dtype(after))]
  if after == _INT4:
    wide = tf.bitwise.bitwise_and(tf.cast(x, tf.int32) + 8, 15)
    return [tf.cast(wide - 8, tf.int8)]
  if after == _UINT4:
    return [tf.cast(tf.bitwise.bitwise_and(tf.cast(x, tf.int32), 15), tf.uint8)]
  if after in _FLOAT8:
    exponent_bits = _FLOAT8[after]
    wide = tf.cast(x, tf.float32)
    # ONNX Runtime 1.32 makes 448 of 480, and NaN of what is infinite in JAX
    beyond = tf.constant(math.nan if after == _E4M3 else math.inf)
    wide = tf.where(tf.abs(wide) > _LARGEST[after], wide * beyond, wide)
    return [tf.raw_ops.FakeQuantWithMinMaxArgs(inputs=wide, num_bits=exponent_bits)]
  return [tf.cast(x, after)]


def _has_values_of(x: tf.Tensor, dtype: tf.DType) -> bool:
  """Whether the tensor is one of this dtype that was cast to a wider one to be moved."""
  while x.op.type in _MOVING_FIRST:
    x = x.op.inputs[0]
  return x.op.type == "Cast" and x.op.inputs[0].dtype == dtype


def _constant(op: tf.Operation) -> list[tf.Tensor]:
  dtype = op.outputs[0].dtype
  if dtype not in HELD:
    return replay.again(op, ())
  with tf.init_scope():  # not tf.make_ndarray: NumPy 2.5 warns about it
    value = tf.io.parse_tensor(op.get_attr("value").SerializeToString(), dtype).numpy()
  return [tf.constant(value.astype(held_dtype(dtype).as_numpy_dtype))]


def _read(op: tf.Operation, variable: tf.Variable) -> list[tf.Tensor]:
  """The value of a variable, of which the exporter makes a parameter."""
  value = variable.read_value()
  return [tf.cast(value, held_dtype(variable.dtype))]


_SPECIAL: Mapping[str, Replacement] = {"Cast": _cast, "Const": _constant, "ReadVariableOp": _read}
TABLE: Mapping[str, Replacement] = _Table()


def finish(graph: Any) -> int:
  """Makes the casts of a GraphProto to float8 those of JAX: what is too large becomes NaN or
  infinite, and not the largest number. tf2onnx drops this attribute, which opset 18 lacks.

  Returns:
    the oldest opset that has these casts; 0 without one.
  """
  oldest = 0
  for node in protos.nodes(graph):
    if node.op_type == "Cast" and node.attribute[0].i in ROUNDED.values():
      node.attribute.append(extra("onnx").helper.make_attribute("saturate", 0))
      oldest = min(SINCE[dtype] for dtype in _FLOAT8)
  return oldest


def packed(array: np.ndarray) -> np.ndarray:
  """uint8[n]: the bytes of an array in a file, of 4-bit integers two a byte, the first in the lower
  half."""
  flat = np.ascontiguousarray(array).reshape(-1)
  if not any(array.dtype == dtype for dtype in _IN_A_BYTE):
    return flat.view(np.uint8)
  halves = np.zeros(flat.size + flat.size % 2, np.uint8)
  halves[: flat.size] = flat.astype(np.int8).view(np.uint8) & 15
  return halves[::2] | halves[1::2] << 4
