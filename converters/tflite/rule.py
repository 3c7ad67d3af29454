"""Tools for replacements in LiteRT: they compute narrow dtypes in wider ones.

LiteRT computes in float32, int32 and bool. Other dtypes have few kernels, and all but uint64 have a
Cast. So an op of a narrow dtype is computed in a wider one and cast back. The result equals
TensorFlow's, which also computes float16 and bfloat16 in float32, and wraps integers. A uint32 is
computed as the int32 of the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..export.replay import Replacement, again

WIDER = {
  tf.int8: tf.int32,
  tf.int16: tf.int32,
  tf.uint8: tf.int32,
  tf.uint16: tf.int32,
  tf.uint32: tf.int32,
  tf.float16: tf.float32,
  tf.bfloat16: tf.float32,
}
_SIGN = -(2**31)


def widened(
  inner: Replacement | None = None, *, ordered: bool = False, also: Sequence[tf.DType] = ()
) -> Replacement:
  """A replacement that computes narrow dtypes in wide ones, by `inner` or by the op itself. Ops of
  float64 stay, which the converter then refuses.

  Args:
    ordered: whether the op compares numbers. The bits of a uint32 are then mapped to int32s in the
      same order.
    also: further dtypes that the op lacks; they become int32.
  """
  wider = {**WIDER, **dict.fromkeys(also, tf.int32)}

  def wide(x: tf.Tensor) -> tf.Tensor:
    if x.dtype not in wider:
      return x
    y = tf.cast(x, wider[x.dtype])
    return flipped(y) if ordered and x.dtype == tf.uint32 else y

  def narrow(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(flipped(x) if ordered and dtype == tf.uint32 else x, dtype)

  def replacement(op: tf.Operation, *operands: Any) -> Sequence[Any]:
    if any(x.dtype == tf.float64 for x in op.inputs):
      return again(op, operands)
    if not any(x.dtype in wider for x in (*op.inputs, *op.outputs)):
      return inner(op, *operands) if inner else again(op, operands)
    wide_operands = [wide(x) for x in operands]
    results = inner(op, *wide_operands) if inner else again(op, wide_operands, wider)
    return [
      narrow(x, y.dtype) if y.dtype in wider else x
      for x, y in zip(results, op.outputs, strict=True)
    ]

  return replacement


def flipped(x: tf.Tensor) -> tf.Tensor:
  """Maps the bits of uint32s to int32s in the same order."""
  return tf.bitwise.bitwise_xor(x, tf.constant(_SIGN, tf.int32))


def of_operands(function: Callable[..., tf.Tensor]) -> Replacement:
  """A replacement by a function of the operands. 64-bit and complex dtypes keep the op, which the
  converter then refuses."""
  return lambda op, *operands: (
    again(op, operands) if operands[0].dtype.size >= 8 else [function(*operands)]
  )
