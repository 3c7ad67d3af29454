"""top_k and sort of floats by ONNX's TopK of the floats themselves, and their total order by its
comparisons.

The lowering sorts integers that are made of the bits of the floats, because neither TensorFlow nor
ONNX Runtime orders NaN and the zeros as JAX does. Without BitCast these bits take 40 times as long
as a TopK. So the floats are sorted, and the integers only where the two orders may differ:

- An operand has a NaN. Then its sum is NaN, as it is of infinities of both signs.
- top_k only: 0.0 comes before -0.0, and TopK takes them for equal. It matters where a result is a
  zero and the operand has a -0.0, whose reciprocal is -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..export import replay
from ..export.replay import Replacement
from . import bits, opsets

# The name of a TopK whose results nothing reads if the operand has a NaN.
UNLESS_NAN = "unless_nan"
# {dtype: that of its bits}.
_BITS = {tf.float16: tf.int16, tf.float32: tf.int32, tf.float64: tf.int64}


@dataclass(frozen=True)
class _Sorted:
  """A sorted operand, as the original graph has it, and its sorted values in the new graph."""

  operand: Any
  values: tf.Tensor


class Sorting:
  """Replacements for one export. They recognise the ops by which `jax2tf.lowering` lowers top_k,
  sort and argsort of f16[..., n], f32[..., n] and f64[..., n] (`sort`), and lt_to and le_to
  (`elementwise`)."""

  def __init__(self, table: Mapping[str, Replacement]):
    self._table = table
    # {bits in the original graph: (the float there, the float in the new graph)}
    self._floats: dict[Any, tuple[Any, tf.Tensor]] = {}
    self._sorted: dict[Any, _Sorted] = {}  # by the positions in the original graph

  def table(self) -> dict[str, Replacement]:
    """{type of op: replacement}."""
    replacements: dict[str, Replacement] = {
      "Bitcast": self._bitcast,
      "TopKV2": self._top,
      "GatherV2": self._gather,
    }
    # with it the bits cost less than this comparison, and the sign of a NaN counts
    if not opsets.has("BitCast"):
      replacements |= {"Less": self._less, "LessEqual": self._less_equal}
    return replacements

  def _bitcast(self, op: Any, x: tf.Tensor) -> Sequence[tf.Tensor]:
    if _BITS.get(x.dtype) == op.outputs[0].dtype:
      # ONNX Runtime 1.32 has no ReduceSum of float16
      wide = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x
      self._floats[op.outputs[0].ref()] = op.inputs[0], wide
    return self._table["Bitcast"](op, x)

  def _top(self, op: Any, keys: tf.Tensor, k: tf.Tensor) -> Sequence[tf.Tensor]:
    key = op.inputs[0]
    for source_of, ordered in ((_source_of_top, _top_k), (_source_of_sort, _sort)):
      known = self._floats.get(source_of(key))
      if known is None:
        continue
      operand, x = known
      values, positions = ordered(x, k)
      values, positions = (
        replay.with_shape(y, z.shape)
        for y, z in zip((values, tf.cast(positions, op.outputs[1].dtype)), op.outputs, strict=True)
      )
      self._sorted[op.outputs[1].ref()] = _Sorted(operand.ref(), tf.cast(values, operand.dtype))
      # No rule uses the sorted keys.
      return [_along_last(keys, positions), positions]
    return self._table["TopKV2"](op, keys, k)

  def _less(self, op: Any, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
    floats = self._ordered(op)
    return [_precedes(*floats)] if floats else replay.again(op, (x, y))

  def _less_equal(self, op: Any, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
    floats = self._ordered(op)
    return [~_precedes(*reversed(floats))] if floats else replay.again(op, (x, y))

  def _ordered(self, op: Any) -> list[tf.Tensor]:
    """The two floats whose order the op compares; none if it compares something else."""
    known = [self._floats.get(_source_of_top(key)) for key in op.inputs]
    return [x for _, x in filter(None, known)] if all(known) else []

  def _gather(self, op: Any, x: tf.Tensor, indices: tf.Tensor, axis: tf.Tensor) -> Any:
    """Nothing to gather along the last axis of the sorted operand, nor of 0, 1, 2 ..."""
    operand, positions, _ = op.inputs
    known, last = self._sorted.get(positions.ref()), tf.get_static_value(axis)
    if known is not None and last == op.get_attr("batch_dims") == x.shape.rank - 1:
      if known.operand == operand.ref():
        return [known.values]
      if _counts(operand):
        return [tf.cast(indices, x.dtype)]
    return replay.again(op, (x, indices, axis))


def _precedes(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y f32[...] -> bool[...], whether x comes before y: -inf < -0.0 < 0.0 < inf < NaN."""
  is_last = tf.not_equal(y, y) & tf.equal(x, x)
  is_of_zeros = tf.equal(x, y) & (tf.math.reciprocal(x) < tf.math.reciprocal(y))
  return (x < y) | is_last | is_of_zeros


def _top_k(x: tf.Tensor, k: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...,n] -> f32[...,k], i32[...,k]; NaN > inf > ... > 0.0 > -0.0 > ... > -inf > -NaN."""

  def exact() -> list[tf.Tensor]:
    word = bits.of_float(x)
    largest = tf.constant(word.dtype.max, word.dtype)
    return _by_keys(x, tf.where(word < tf.constant(0, word.dtype), word ^ largest, word), k)

  def unless_minus_zero() -> list[tf.Tensor]:
    least = tf.reduce_min(tf.math.reciprocal(x))  # of a negative subnormal it may be -inf, too
    minus_zero = tf.equal(least, tf.constant(-math.inf, x.dtype))
    return _chosen(has_nan | minus_zero, exact, lambda: [values, positions])

  values, positions = tf.math.top_k(x, k, name=UNLESS_NAN)
  has_nan = _has_nan(x)
  has_zero = tf.reduce_any(tf.equal(values, tf.constant(0, x.dtype)))
  return _chosen(has_nan | has_zero, unless_minus_zero, lambda: [values, positions])


def _sort(x: tf.Tensor, k: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...,n] -> f32[...,k], i32[...,k], ascending and stable; NaN last, -0.0 equal to 0.0."""

  def exact() -> list[tf.Tensor]:
    word = bits.of_float(x)
    least, zero = tf.constant(word.dtype.min, word.dtype), tf.constant(0, word.dtype)
    keys = tf.where(word < zero, word ^ least, -word)
    return _by_keys(x, tf.where(tf.not_equal(x, x), least, keys), k)

  negatives, positions = tf.math.top_k(-x, k, name=UNLESS_NAN)
  return _chosen(_has_nan(x), exact, lambda: [-negatives, positions])


def _has_nan(x: tf.Tensor) -> tf.Tensor:
  """bool[]; also of infinities of both signs."""
  total = tf.reduce_sum(x)
  return tf.not_equal(total, total)


def _by_keys(x: tf.Tensor, keys: tf.Tensor, k: tf.Tensor) -> list[tf.Tensor]:
  positions = tf.math.top_k(keys, k).indices
  return [_along_last(x, positions), positions]


def _along_last(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  """x f32[...,n], positions i32[...,k] -> f32[...,k]."""
  last = x.shape.rank - 1
  return tf.gather(x, positions, axis=last, batch_dims=last)


def _chosen(
  condition: tf.Tensor, true: Callable[[], list[tf.Tensor]], false: Callable[[], list[tf.Tensor]]
) -> list[tf.Tensor]:
  return list(tf.cond(condition, lambda: tuple(true()), lambda: tuple(false())))


def _source_of_top(key: tf.Tensor) -> Any:
  """The bits of a float, in select(bits < 0, bits ^ largest, bits); see `top_k_last`."""
  parts = _parts(key, "SelectV2")
  if parts is None:
    return None
  negative, flipped, word = parts
  is_key = _is_sign(negative, word) and _is_xor(flipped, word, word.dtype.max)
  return word.ref() if is_key else None


def _source_of_sort(key: tf.Tensor) -> Any:
  """The bits of a float x, in select(x != x, least, select(bits < 0, bits ^ least, -bits)); see
  `_descending_keys`."""
  outer = _parts(key, "SelectV2")
  inner = _parts(outer[2], "SelectV2") if outer else None
  if outer is None or inner is None:
    return None
  is_nan, of_nan, _ = outer
  negative, flipped, opposite = inner
  word = _word(opposite)
  operand = _parts(word, "Bitcast") if word is not None else None
  unequal = _parts(is_nan, "NotEqual")
  if word is None or operand is None or unequal is None:
    return None
  least = word.dtype.min
  is_key = (
    _is_sign(negative, word)
    and _is_xor(flipped, word, least)
    and _is_number(of_nan, least)
    and {x.ref() for x in unequal} == {operand[0].ref()}
  )
  return word.ref() if is_key else None


def _word(opposite: tf.Tensor) -> tf.Tensor | None:
  """The integer of which this is the negative; `_kernels.negative` puts an EnsureShape behind."""
  while opposite.op.type in ("EnsureShape", "Identity"):
    opposite = opposite.op.inputs[0]
  parts = _parts(opposite, "Neg")
  return parts[0] if parts else None


def _counts(x: tf.Tensor) -> bool:
  """Whether the last axis of x is 0, 1, 2 ..."""
  size = x.shape[-1]
  while x.op.type in ("BroadcastTo", "Reshape"):
    x = x.op.inputs[0]
    if size is None or not x.shape[-1] == x.shape.num_elements() == size:
      return False
  start, _, step = _parts(x, "Range") or [None] * 3
  return start is not None and _is_number(start, 0) and _is_number(step, 1)


def _parts(x: tf.Tensor, kind: str) -> list[tf.Tensor] | None:
  """The operands of the op that makes a tensor of the original graph, if it is of this type."""
  return list(x.op.inputs) if x.op.type == kind else None


def _is_sign(x: tf.Tensor, word: tf.Tensor) -> bool:
  """Whether x is word < 0."""
  parts = _parts(x, "Less")
  return parts is not None and parts[0].ref() == word.ref() and _is_number(parts[1], 0)


def _is_xor(x: tf.Tensor, word: tf.Tensor, number: int) -> bool:
  parts = _parts(x, "BitwiseXor")
  return parts is not None and parts[0].ref() == word.ref() and _is_number(parts[1], number)


def _is_number(x: tf.Tensor, number: int) -> bool:
  value = tf.get_static_value(x)
  return value is not None and value.shape == () and int(value) == number
