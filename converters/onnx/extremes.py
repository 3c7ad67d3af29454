"""Maxima, minima and their positions by ONNX Runtime's own reductions and pools, which lose a NaN.

What finds a NaN takes longer than they do. So it runs in a branch, only if the sum of the operand
is NaN, as it is of infinities of both signs, too. A pool has no window of -inf alone, either, so
its branch runs if the sum is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..export import replay

_FEW = 4096  # elements for which a branch takes longer
_GUARDED = (tf.float32, tf.float64)  # ONNX Runtime 1.32 has no ReduceSum of float16
_POOL = ("ksize", "strides", "padding", "data_format")


def reduced(op: Any, x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
  """Max, Min: x f32[...] -> f32[...]; NaN of a NaN."""
  (result,) = replay.again(op, (x, axes))

  def exact() -> tf.Tensor:
    # NaN if an element is: no sum of sizes has infinities of both signs.
    total = tf.reduce_sum(tf.abs(x), axes, keepdims=op.get_attr("keep_dims"))
    # not `total != total`: of that ONNX Runtime 1.32 makes a Where that loses -0.0
    return tf.where(tf.math.is_nan(total), tf.constant(math.nan, x.dtype), result)

  return [_unless(tf.math.is_nan, x, result, exact)]


def selected(op: Any, result: tf.Tensor) -> tf.Tensor | None:
  """SelectV2, as the lowering makes it of a pool (`_pooling.max_pool`) or of positions
  (`reductions._position`) that have lost a NaN; None of another one.

  Args:
    op: the SelectV2 of the original graph.
    result: its third operand in the new graph.
  """
  return _pooled(op, result) if _is_pool(op) else _position(op, result)


def _is_pool(op: Any) -> bool:
  """Whether it is select(pool(kinds) > 1, nan, select(pool(kinds) == 0, -inf, pool(x)))."""
  condition, _, inner = (x.op for x in op.inputs)
  if condition.type != "Greater" or inner.type != "SelectV2":
    return False
  outside, _, pool = (x.op for x in inner.inputs)
  kind = condition.inputs[0]
  if pool.type != "MaxPool" or kind.op.type != "MaxPool" or outside.type != "Equal":
    return False
  classes, x = kind.op.inputs[0].op, pool.inputs[0]
  return (
    outside.inputs[0].ref() == kind.ref()
    and classes.type == "SelectV2"
    and classes.inputs[0].op.type == "IsNan"
    and classes.inputs[0].op.inputs[0].ref() == x.ref()
    and all(pool.get_attr(name) == kind.op.get_attr(name) for name in _POOL)
  )


def _pooled(op: Any, inner: tf.Tensor) -> tf.Tensor | None:
  pool = inner.op.inputs[2] if inner.op.type == "SelectV2" else inner
  if pool.op.type != "MaxPool":
    return None
  x = pool.op.inputs[0]

  def again(kinds: tf.Tensor) -> tf.Tensor:
    (kind,) = replay.again(op.inputs[0].op.inputs[0].op, (kinds,))
    return kind

  # what is padded with -inf has a sum that is not finite
  operand = x.op.inputs[0] if x.op.type == "PadV2" else x
  return pooled(operand, x, pool, again)


def pooled(
  operand: tf.Tensor, x: tf.Tensor, result: tf.Tensor, pool: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
  """The maxima of windows by MaxPool, which ignores a NaN, and has no window of -inf alone: a
  second pool detects both if the sum of the operand is not finite.

  Args:
    operand: whose sum tells.
    x: what is pooled: the operand, or made of its elements.
    result: `pool(x)`.
    pool: f32[...] -> the maxima of its windows.
  """

  def exact() -> tf.Tensor:
    zero, one, two = (tf.constant(value, x.dtype) for value in (0, 1, 2))
    least = tf.constant(-math.inf, x.dtype)
    kind = pool(tf.where(tf.math.is_nan(x), two, tf.where(tf.equal(x, least), zero, one)))
    lowest = tf.where(tf.equal(kind, zero), least, result)
    return tf.where(kind > one, tf.constant(math.nan, x.dtype), lowest)

  return _unless(lambda total: ~(tf.abs(total) < math.inf), operand, result, exact)


def _position(op: Any, index: tf.Tensor) -> tf.Tensor | None:
  """select(any(x != x), argmax(x != x), argmax(x))."""
  some, first, best = (x.op for x in op.inputs)
  if best.type not in ("ArgMax", "ArgMin") or index.op.type != best.type or some.type != "Any":
    return None
  unequal = some.inputs[0].op
  flags = first.inputs[0].op if first.type == "ArgMax" else first
  is_of_nan = (
    unequal.type == "NotEqual"
    and {x.ref() for x in unequal.inputs} == {best.inputs[0].ref()}
    and flags.type == "Cast"
    and flags.inputs[0].op is unequal
  )
  if not is_of_nan:
    return None
  x, axis = index.op.inputs[0], tf.get_static_value(index.op.inputs[1])

  def exact() -> tf.Tensor:
    is_nan = tf.not_equal(x, x)
    first_nan = tf.argmax(tf.cast(is_nan, tf.float32), int(axis), index.dtype)
    return tf.where(tf.reduce_any(is_nan, int(axis)), first_nan, index)

  return _unless(tf.math.is_nan, x, index, exact)


def _unless(
  is_other: Callable[[tf.Tensor], tf.Tensor],
  x: tf.Tensor,
  result: tf.Tensor,
  exact: Callable[[], tf.Tensor],
) -> tf.Tensor:
  """The result, or `exact()` if the sum of x is another number than those that it is right for."""
  few = x.shape.num_elements()
  if x.dtype not in _GUARDED or (few is not None and few <= _FEW):
    return exact()
  chosen = tf.cond(is_other(tf.reduce_sum(x)), exact, lambda: tf.identity(result))
  return replay.with_shape(chosen, result.shape)
