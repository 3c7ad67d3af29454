"""bfloat16 for ONNX Runtime, which only has Cast for it. Values are float32, rounded to bfloat16
after each op that computes.

XLA and TensorFlow do the same on a CPU. In ONNX a rounding is two Casts, float32 to bfloat16 and
back. In the TensorFlow graph FakeQuantWithMinMaxArgs marks it, which no lowering emits: tf2onnx
would make float16 of a cast to bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..bundle import graphs
from ..export import freezing, replay
from ..export.registry import MOVES
from ..export.replay import Replacement

HELD = {tf.bfloat16: tf.float32}
_BFLOAT16 = tf.bfloat16.as_numpy_dtype
ROUNDING = "FakeQuantWithMinMaxArgs"
# key in the model's metadata: the outputs, separated by spaces, whose float32 stands for bfloat16
OUTPUTS = "jax2tf.bfloat16"
# Ops whose results are copies of operands, or not bfloat16: they need no rounding.
_EXACT = MOVES | {
  "Abs",
  "Max",
  "Maximum",
  "Min",
  "Minimum",
  "Neg",
  "TensorListGetItem",
  "TensorListStack",
  "TopKV2",
}


def held(function: Any) -> Any:
  """The ConcreteFunction without bfloat16, also in inputs and outputs; itself if it has none. Its
  variables are kept."""
  return freezing.frozen(function, TABLE, HELD) if is_in(function) else function


def is_in(function: Any) -> bool:
  """Whether an op of the ConcreteFunction has it."""
  values = (
    value for node in graphs.nodes(function.graph.as_graph_def()) for value in node.attr.values()
  )
  return any(tf.bfloat16.as_datatype_enum in (value.type, *value.list.type) for value in values)


def as_held(array: np.ndarray) -> np.ndarray:
  """float32 for bfloat16."""
  return _converted(array, np.float32) if array.dtype == _BFLOAT16 else array


def from_held(array: np.ndarray) -> np.ndarray:
  """bfloat16 for float32."""
  return _converted(array, _BFLOAT16)


def _converted(array: np.ndarray, dtype: Any) -> np.ndarray:
  with np.errstate(invalid="ignore"):  # of a signalling NaN
    return array.astype(dtype)


class _Table(Mapping[str, Replacement]):
  """Replaces every op except calls, loops, branches and identities."""

  def __contains__(self, op_type: object) -> bool:
    return op_type == "ReadVariableOp" or op_type not in replay.REPLAYED

  def __getitem__(self, op_type: str) -> Replacement:
    return _SPECIAL.get(op_type, _computed)

  def __iter__(self) -> Iterator[str]:
    return iter(_SPECIAL)

  def __len__(self) -> int:
    return len(_SPECIAL)


def _computed(op: tf.Operation, *operands: tf.Tensor) -> list[tf.Tensor]:
  results = replay.again(op, operands, HELD)
  return [
    _rounded(y) if z.dtype == tf.bfloat16 and op.type not in _EXACT else y
    for y, z in zip(results, op.outputs, strict=True)
  ]


def _rounded(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], rounded to bfloat16."""
  known = tf.get_static_value(x)
  if known is not None:
    return tf.constant(as_held(from_held(known)))
  return tf.raw_ops.FakeQuantWithMinMaxArgs(inputs=x)


def _cast(op: tf.Operation, x: tf.Tensor) -> list[tf.Tensor]:
  """Casts through float32, as XLA does."""
  dtype = op.outputs[0].dtype
  if op.inputs[0].dtype == dtype:
    return [x]
  return [_rounded(tf.cast(x, tf.float32)) if dtype == tf.bfloat16 else tf.cast(x, dtype)]


def _constant(op: tf.Operation) -> list[tf.Tensor]:
  if op.outputs[0].dtype != tf.bfloat16:
    return replay.again(op, ())
  with tf.init_scope():  # not tf.make_ndarray: NumPy 2.5 warns about it
    value = tf.io.parse_tensor(op.get_attr("value").SerializeToString(), tf.bfloat16).numpy()
  return [tf.constant(as_held(value))]


def _bitcast(op: tf.Operation, x: tf.Tensor) -> list[tf.Tensor]:
  """Bitcast: a bfloat16 is the upper half of a float32."""
  before, after = op.inputs[0].dtype, op.outputs[0].dtype
  if tf.bfloat16 not in (before, after):
    return replay.again(op, (x,))
  if before.size != after.size:
    return _as_it_is(op, x)
  half = tf.constant(16, tf.uint32)
  if before == tf.bfloat16:
    return [
      tf.bitcast(tf.cast(tf.bitwise.right_shift(tf.bitcast(x, tf.uint32), half), tf.uint16), after)
    ]
  return [
    tf.bitcast(
      tf.bitwise.left_shift(tf.cast(tf.bitcast(x, tf.uint16), tf.uint32), half), tf.float32
    )
  ]


def _as_it_is(op: tf.Operation, *operands: tf.Tensor) -> list[tf.Tensor]:
  """Keeps the op in bfloat16, so that the exporter refuses it by name."""
  own = [tf.cast(x, y.dtype) for x, y in zip(operands, op.inputs, strict=True)]
  return [tf.cast(y, HELD.get(y.dtype, y.dtype)) for y in replay.again(op, own)]


def _read(op: tf.Operation, variable: tf.Variable) -> list[tf.Tensor]:
  return [tf.cast(variable.read_value(), HELD.get(variable.dtype, variable.dtype))]


_SPECIAL: Mapping[str, Replacement] = {
  "Bitcast": _bitcast,
  "Cast": _cast,
  "Const": _constant,
  "NextAfter": _as_it_is,
  "ReadVariableOp": _read,
}
TABLE: Mapping[str, Replacement] = _Table()
