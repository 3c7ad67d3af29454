"""Division and remainder. LiteRT's kernels lack some dtypes, and refuse, saturate or abort for some
operands."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ..export.registry import replaces
from ..export.replay import again
from . import bits, special
from .rule import WIDER, flipped, widened


def _divided(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """int32 x / y, rounded towards zero. For -2**31 / -1 LiteRT saturates, and TensorFlow wraps."""
  minus = tf.equal(y, tf.constant(-1, tf.int32))
  return tf.where(minus, -x, tf.truncatediv(x, tf.where(minus, tf.constant(1, tf.int32), y)))


def _unsigned_divided(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """The bits of a uint32 quotient (H. Warren, Hacker's Delight, 9-3): 2 * ((x >> 1) / y), corrected
  by at most one."""
  one = tf.constant(1, tf.int32)
  large = y < tf.constant(0, tf.int32)
  divisor = tf.where(large, one, y)
  half = tf.truncatediv(bits.logical_shift(x, one), divisor)
  quotient = half + half
  rest = x - quotient * divisor
  quotient += tf.cast(flipped(rest) >= flipped(divisor), tf.int32)
  return tf.where(large, tf.cast(flipped(x) >= flipped(y), tf.int32), quotient)


@replaces(
  "TruncateDiv", on="tflite", because="LiteRT 2.3: saturates -2**31 / -1, and has none of uint32"
)
@widened
def _truncate_div(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  if op.inputs[0].dtype == tf.uint32:
    return [_unsigned_divided(x, y)]
  return [_divided(x, y)] if x.dtype == tf.int32 else again(op, (x, y))


@replaces("TruncateMod", on="tflite", because="LiteRT 2.3: no kernel")
@widened
def _truncate_mod(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  if op.inputs[0].dtype == tf.uint32:
    return [x - _unsigned_divided(x, y) * y]
  if x.dtype.is_floating:
    return [special.remainder(x, y)]
  return [x - _divided(x, y) * y] if x.dtype == tf.int32 else again(op, (x, y))


@replaces(
  "FloorDiv",
  on="tflite",
  because="LiteRT 2.3: refuses a float divisor of 0, and has none of uint32",
)
@widened
def _floor_div(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """LiteRT's kernel refuses a float divisor of 0."""
  if op.inputs[0].dtype == tf.uint32:
    return [_unsigned_divided(x, y)]
  return [tf.floor(x / y)] if x.dtype.is_floating else again(op, (x, y), WIDER)


@replaces(
  "FloorMod",
  on="tflite",
  because="LiteRT 2.3: ends the process for -2**31 mod -1, and has none of uint32",
)
@widened
def _floor_mod(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """LiteRT's kernel aborts the process for -2**31 mod -1 (SIGFPE)."""
  if op.inputs[0].dtype == tf.uint32:
    return [x - _unsigned_divided(x, y) * y]
  if not x.dtype.is_floating:
    y = tf.where(tf.equal(y, tf.constant(-1, y.dtype)), tf.constant(1, y.dtype), y)
  return again(op, (x, y), WIDER)
