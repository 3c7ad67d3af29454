"""Selections without a Where, which branches for each element: of a random condition ONNX Runtime
1.32 takes 80 times as long as of a sum."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from . import constants

# {comparison with an upper or a lower bound: (limit, type of the other limit, whether that is
# inside of the bound)}.
_LIMITS: Mapping[str, tuple[Callable[..., tf.Tensor], str, Callable[[float, float], bool]]] = {
  "Greater": (tf.minimum, "Maximum", operator.le),
  "Less": (tf.maximum, "Minimum", operator.ge),
}
_FEW = 1024  # elements whose selection takes no time; uint32 arithmetic needs ONNX Runtime 1.21
_COMPARED: Mapping[str, Callable[..., Any]] = {
  "Equal": operator.eq,
  "Greater": operator.gt,
  "GreaterEqual": operator.ge,
  "Less": operator.lt,
  "LessEqual": operator.le,
  "NotEqual": operator.ne,
}


def without_branches(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor | None:
  """The same values as `tf.where(condition, x, y)` by other ops of the replayed graph, or None."""
  rank = condition.shape.rank
  numbers = _number(x, rank), _number(y, rank)
  if numbers == (1, 0):
    return tf.cast(condition, x.dtype)
  if numbers == (0, 1):
    return tf.cast(tf.logical_not(condition), x.dtype)
  count = condition.shape.num_elements()
  if x.dtype == tf.uint32 and (count is None or count > _FEW):
    return _by_difference(tf.cast(condition, x.dtype), x, y, numbers)
  return _clamped(condition, x, y)


def _by_difference(
  flags: tf.Tensor, x: tf.Tensor, y: tf.Tensor, numbers: tuple[float | None, float | None]
) -> tf.Tensor:
  """x u32[...] where the flag is 1, and y where it is 0; `numbers` are those of x and y. ONNX
  Runtime 1.31 has no Where of uint32, and an int64 takes twice the time; differences wrap."""
  if numbers[1] == 0:
    return x * flags
  return y * (1 - flags) if numbers[0] == 0 else y + (x - y) * flags


def chosen(op: Any, condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor | None:
  """The operand that a known condition selects, or None. It has the shape of the result: in a
  function of JAX, whose name scope the op has, both operands have one shape.

  Args:
    op: the SelectV2 of the original graph.
    condition, x, y: its operands in the new graph.
  """
  if None in (x.shape.rank, y.shape.rank) or x.shape.as_list() != y.shape.as_list():
    return None
  if not x.shape.is_fully_defined() and "jax2tf_" not in op.name:
    return None
  value = known(condition)
  return None if value is None else (x if value else y)


def known(condition: tf.Tensor) -> bool | None:
  """The value of bool[], if it is computed from constants; JAX compares a divisor with 0, and the
  first and the last edge of bins."""
  if condition.shape.rank != 0:
    return None
  compare = _COMPARED.get(condition.op.type)
  values = [tf.get_static_value(x) for x in condition.op.inputs]
  if compare is not None and all(value is not None for value in values):
    return bool(compare(*values))
  value = constants.scalar(condition)
  return None if value is None else bool(value)


def _clamped(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor | None:
  """select(y > c, c, y) is the minimum, and select(y < c, c, y) the maximum, of floats and a number
  but 0, whose sign might change. Both keep NaN in y."""
  compare, bound = condition.op, _number(x, y.shape.rank)
  if compare.type not in _LIMITS or not bound or y.dtype not in (tf.float32, tf.float64):
    return None
  limit, other_limit, is_within = _LIMITS[compare.type]
  compared, with_bound = compare.inputs
  # of a clamp on both sides the operand, and not what the first select gives, is compared
  is_clamped = y.op.type == other_limit and y.op.inputs[0] is compared
  inner = _number(y.op.inputs[1], y.shape.rank) if is_clamped else None
  is_of_same = compared is y or (inner is not None and is_within(inner, bound))
  return limit(y, x) if is_of_same and _number(with_bound, y.shape.rank) == bound else None


def _number(x: tf.Tensor, rank: int | None) -> float | None:
  """The number of a constant real scalar, which may have up to `rank` dimensions of 1; None of
  -0.0, and of 16 bits, too: NumPy 2.5 warns of how TensorFlow 2.21 reads such a constant."""
  is_read = x.dtype.is_integer or x.dtype in (tf.float32, tf.float64)
  if not is_read or x.shape.num_elements() != 1:
    return None
  value = tf.get_static_value(x) if rank is not None and x.shape.rank <= rank else None
  number = None if value is None else float(value.item())
  return None if number == 0 and math.copysign(1, number) < 0 else number
