"""Arithmetic with JAX's values where Grappler, which optimises each graph before it runs, would
change them.

TF 2.21: it rewrites (x + 1e8) - 1e8 to x, log(1 + x) to log1p(x), and max(log(x)) to log(max(x)),
which ignores NaN. It also rewrites x / c to x * (1 / c), as XLA does, and 1 / x to the op
Reciprocal, but has other reciprocals: see `divide`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf.lowering._common import is_known, known

_SUMS, _PRODUCTS = {"AddV2", "BiasAdd", "Neg", "Sub"}, {"Mul", "RealDiv"}
# NaN outside of their domain, where the extremum of the operands may be inside.
_PARTIAL = ("Acos", "Acosh", "Asin", "Atanh", "Log", "Log1p", "Rsqrt", "Sqrt")


def as_written(op: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
  """`op`, the sum, difference, product or quotient of two tensors, which Grappler then does not
  regroup with those of its operands."""

  def written(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    result = op(x, y)
    if not tf.executing_eagerly():
      producers = _producer(x).type, _producer(y).type
      is_grouped = any(
        result.op.type in kinds and not kinds.isdisjoint(producers) for kinds in (_SUMS, _PRODUCTS)
      )
      if is_grouped and (not result.dtype.is_integer or _ends_a_chain(result, x, y)):
        _tf_compat.keep_order(result.op)
      if not result.dtype.is_integer and _loses_its_constant(result.op.type, (x, y), producers):
        _tf_compat.keep_constant(result.op)
    return result

  return written


def divide(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y f32[...] -> f32[...]: the quotient, and x * (1 / c) of a constant c, as XLA computes it.

  TF 2.21: the op Reciprocal, by which Grappler computes 1 / x and the factor 1 / c, has the
  reciprocal of 8 and of other numbers wrong by one or two units in the last place, for f32 vectors,
  so that floor(8 / 8) was 0. In bf16 it rounds 1 / c, which XLA does not.
  """
  if tf.executing_eagerly() or not x.dtype.is_floating or _folds(x) == _folds(y):
    return _quotient(x, y)
  if _folds(y) and (factor := _exact_reciprocal(y)) is not None:
    return _product(x, factor)
  result = _quotient(x, y)
  if _folds(x) or y.dtype == tf.bfloat16 or (y.dtype == tf.float32 and y.shape.rank != 0):
    _tf_compat.keep_constant(result.op)
  return result


_quotient, _product = as_written(tf.math.divide), as_written(tf.multiply)


def _exact_reciprocal(y: tf.Tensor) -> tf.Tensor | None:
  """1 / y of a constant f32 vector, unless one is a subnormal number, as of 1e38: XLA makes 0 of a
  product with that."""
  if y.dtype != tf.float32 or y.shape.num_elements() in (0, 1) or (value := known(y)) is None:
    return None
  with np.errstate(all="ignore"):
    reciprocal = np.float32(1) / value
  is_subnormal = (reciprocal != 0) & (np.abs(reciprocal) < np.finfo(np.float32).tiny)
  return None if is_subnormal.any() else tf.constant(reciprocal)


def apart(x: tf.Tensor, *kinds: str) -> tf.Tensor:
  """`x`; if an op of one of these kinds computes it, Grappler does not merge that op with the next
  one."""
  return (
    tf.ensure_shape(x, x.shape) if not tf.executing_eagerly() and _producer(x).type in kinds else x
  )


def extrema_apart(x: tf.Tensor) -> tf.Tensor:
  """The operand of a maximum or minimum over axes, which Grappler would put before a monotonic
  function."""
  # the least integer is its own negative
  return apart(x, *(("Neg",) if x.dtype.is_integer else _PARTIAL))


def _ends_a_chain(result: tf.Tensor, *operands: tf.Tensor) -> bool:
  """Whether it is one of many integers that wrap, in whatever order. TF 2.21: grouping them takes a
  time quadratic in their number."""
  result._jax2tf_chain = 1 + max(getattr(x, "_jax2tf_chain", 0) for x in operands)
  return result._jax2tf_chain % 32 == 0


def _loses_its_constant(kind: str, operands: Sequence[tf.Tensor], producers: Sequence[str]) -> bool:
  """Whether Grappler would move the constant operand of an op, if it has one, into another op."""
  folds = [_folds(x) for x in operands]
  if folds[0] == folds[1]:
    return False
  producer = producers[folds.index(False)]
  if kind in _PRODUCTS:
    return producer in _PRODUCTS
  if kind == "Sub" and folds[0] and not is_known(lambda value: value != 0, operands[0]):
    return True  # 0 - y would become -y, which is -0.0 for 0.0
  return producer in _SUMS or producer in _PRODUCTS  # a product with 1 is removed first


def _producer(x: tf.Tensor) -> tf.Operation:
  """The op that computes a tensor, behind the identities, which Grappler removes."""
  while x.op.type in ("Identity", "IdentityN", "PreventGradient", "StopGradient"):
    x = x.op.inputs[x.value_index]
  return x.op


def _folds(x: tf.Tensor) -> bool:
  """Whether a tensor depends on constants only, so that Grappler computes it once."""
  if not hasattr(x, "_jax2tf_folds"):
    x._jax2tf_folds = _is_made_of_constants(x)
  return x._jax2tf_folds


def _is_made_of_constants(x: tf.Tensor) -> bool:
  waiting, seen = [x], set()
  while waiting:
    y = waiting.pop()
    if y.op.type == "Const" or y.op in seen:
      continue
    if not (y.op.inputs and getattr(y, "_jax2tf_folds", True)) or _tf_compat.is_stateful(y.op.type):
      return False
    seen.add(y.op)
    waiting.extend(y.op.inputs)
  return True
