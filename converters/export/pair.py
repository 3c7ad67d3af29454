"""Complex numbers as pairs of real ones, and the registry of the rules for ops of them. The
modules of `jax2tf.converters.export.pairs` fill it.

  @of_pairs("Conj")

A rule takes the op, for its attributes, and its operands, of which complex ones are Pairs, and
returns the list of results, as an expansion does: it is TensorFlow code of real numbers, whose ops
are replaced and expanded in turn. It raises NotImplementedError with the reason if it has no form
for the attributes or the shapes of an op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

REAL = {tf.complex64: tf.float32, tf.complex128: tf.float64}
_COMPLEX = {real: dtype for dtype, real in REAL.items()}


@dataclass(frozen=True)
class Pair:
  """re f32[...] and im f32[...] in place of c64[...], or a list of each in place of one."""

  re: Any
  im: Any

  @property
  def dtype(self) -> tf.DType:
    """That of the complex numbers; tf.variant for lists."""
    return _COMPLEX.get(self.re.dtype, self.re.dtype)

  @property
  def shape(self) -> tf.TensorShape:
    """The static shape."""
    return self.re.shape

  def map(self, function: Callable[..., Any], *others: Pair) -> Pair:
    """The pair of the results for both parts."""
    return Pair(
      function(self.re, *(other.re for other in others)),
      function(self.im, *(other.im for other in others)),
    )


Value: TypeAlias = "tf.Tensor | Pair"
Rule: TypeAlias = Callable[..., Sequence[Value]]

PAIRS: dict[str, Rule] = {}  # {type of op: its rule}


def of_pairs(*ops: str) -> Callable[[Rule], Rule]:
  """Registers a rule.

  Args:
    ops: the types of the ops.

  Raises:
    ValueError: an op already has one.
  """

  def register(rule: Rule) -> Rule:
    if twice := [op for op in ops if op in PAIRS]:
      raise ValueError(f"{twice[0]} of pairs already has a rule, {PAIRS[twice[0]].__qualname__}")
    PAIRS.update(dict.fromkeys(ops, rule))
    return rule

  return register


def rule_of(op: tf.Operation) -> Rule:
  """The rule of an op of pairs.

  Raises:
    NotImplementedError: it has none.
  """
  if op.type not in PAIRS:
    raise NotImplementedError("it has no form for complex numbers")
  return PAIRS[op.type]


def is_of_pairs(op: tf.Operation, operands: Sequence[Any]) -> bool:
  """Whether the op has complex operands or results, or lists of them."""
  if any(isinstance(x, Pair) for x in operands) or any(y.dtype in REAL for y in op.outputs):
    return True
  return op.type.startswith("TensorList") and _element(op) in REAL


def _element(op: tf.Operation) -> tf.DType | None:
  has_one = "element_dtype" in op.node_def.attr
  return op.get_attr("element_dtype") if has_one else None


def flat(values: Iterable[Any]) -> list[Any]:
  """The values, with both parts in place of each pair."""
  return [
    part
    for value in values
    for part in ((value.re, value.im) if isinstance(value, Pair) else [value])
  ]


def unflat(values: Iterable[Any], are_pairs: Iterable[bool]) -> list[Any]:
  """The values that `flat` flattened."""
  rest = iter(values)
  return [Pair(next(rest), next(rest)) if is_pair else next(rest) for is_pair in are_pairs]


def are_pairs(op: tf.Operation) -> list[bool]:
  """Which results of an op of pairs are pairs."""
  return [y.dtype in REAL or y.dtype == tf.variant for y in op.outputs]


def condition(
  predicate: tf.Tensor, true: Callable[[], list[Any]], false: Callable[[], list[Any]]
) -> list[Any]:
  """The values of one branch or the other."""
  pairs: list[bool] = []  # which results are

  def branch(results: Callable[[], list[Any]]) -> tuple[tf.Tensor, ...]:
    values = results()
    pairs[:] = [isinstance(value, Pair) for value in values]
    return tuple(_each_once(flat(values)))

  parts = tf.cond(predicate, lambda: branch(true), lambda: branch(false))
  return unflat(parts, pairs)


def _each_once(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The tensors, with a copy in place of one that came before. tf2onnx 1.17 renames only the first
  of equal results of a branch."""
  seen: set[Any] = set()
  once = []
  for x in tensors:
    once.append(tf.identity(x) if x.ref() in seen else x)
    seen.add(x.ref())
  return once


def of_stacked(x: tf.Tensor) -> Pair:
  """x f32[...,2] -> c64[...]."""
  return Pair(*tf.unstack(x, axis=-1))


def stacked(x: Pair) -> tf.Tensor:
  """x c64[...] -> f32[...,2]."""
  return tf.stack([x.re, x.im], axis=-1)


def constant(value: Any, name: str = "Const") -> Value:
  """A constant of a NumPy array; a pair if it is complex."""
  if value.dtype.kind != "c":
    return tf.constant(value, name=name)
  re, im = tf.constant(value.real, name=f"{name}.re"), tf.constant(value.imag, name=f"{name}.im")
  return Pair(re, im)


def paired(x: Value) -> Pair:
  """A pair in place of a complex tensor that a replacement reads."""
  return x if isinstance(x, Pair) else Pair(tf.math.real(x), tf.math.imag(x))


def zeros_of(op: tf.Operation) -> list[Value]:
  """Zeros in place of the results of an op of pairs, of the same static shapes."""
  results: list[Value] = []
  for y in op.outputs:
    sizes = [1 if n is None else n for n in y.shape] if y.shape.rank is not None else []
    zeros = tf.zeros(sizes, REAL.get(y.dtype, y.dtype))
    part = tf.compat.v1.placeholder_with_default(zeros, y.shape)
    results.append(Pair(part, part) if y.dtype in REAL else part)
  return results
