"""Small integers in the body of a counted loop, as functions of the loop's counter.

JAX computes the place of a row by ops on integers: it adds the size of the array to a negative
number, joins the numbers to a vector, and moves that into the array. Each entry here is
`factor * counter + offset`; the first and the last number of the counter decide a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import InconclusiveDimensionOperation

from jax2tf.stablehlo import sizes
from jax2tf.stablehlo.graph import Block, Op, Value
from jax2tf.stablehlo.rules import Evaluation

# An array of objects: `Index`, integers, symbolic dimensions, or booleans.
Entries = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Index:
  """`factor * counter + offset`; the factor is not 0.

  Attributes:
    offset: a number, or symbolic.
    last: the last number of the counter, which starts at 0.
  """

  factor: int
  offset: Any
  last: Any

  def ends(self) -> tuple[Any, Any]:
    """Its first and last number."""
    return self.offset, self.factor * self.last + self.offset


def counter(last: Any) -> Entries:
  """The counter of a loop itself."""
  return sizes.scalar(Index(1, 0, last))


def difference(left: Any, right: Any) -> Any:
  """Of two entries."""
  return _sum(left, _negative(right))


def of_block(evaluation: Evaluation, block: Block, first: Mapping[Value, Entries]) -> Known:
  """The entries of the values of a block, of whose arguments some are known."""
  known = Known(evaluation, first)
  for op in block.ops:
    known.add(op)
  return known


class Known:
  """The entries of values.

  Args:
    evaluation: has the values around the block.
    first: the entries of its arguments.
  """

  def __init__(self, evaluation: Evaluation, first: Mapping[Value, Entries]):
    self._evaluation = evaluation
    self._entries = dict(first)

  def of(self, value: Value) -> Entries | None:
    """The entries of a value; None if they depend on data."""
    if value not in self._entries:
      around = self._evaluation.value(value)
      if around is None or not sizes.is_small(around):
        return None
      self._entries[value] = sizes.entries_of(around)
    return self._entries[value]

  def add(self, op: Op) -> None:
    """Computes the result of an op, if it follows from known entries."""
    if len(op.results) != 1 or not sizes.may_be_sizes(op.results[0]):
      return
    if op.name == "constant":
      self._entries[op.results[0]] = sizes.entries_of(op.attributes["value"])
      return
    operands = [self.of(operand) for operand in op.operands]
    known = [operand for operand in operands if operand is not None]
    if not operands or len(known) < len(operands):
      return
    result = _result(op, known) if any(map(has_index, known)) else _number(op, known)
    if result is not None:
      self._entries[op.results[0]] = result


def has_index(entries: Entries | None) -> bool:
  """Whether a value is known, and depends on the counter."""
  return entries is not None and any(isinstance(entry, Index) for entry in entries.flat)


def _number(op: Op, operands: Sequence[Entries]) -> Entries | None:
  """The result of an op on sizes alone."""
  settled = (
    sizes.settled(entries, operand.dtype)
    for entries, operand in zip(operands, op.operands, strict=True)
  )
  result = sizes.folded(op, list(settled))
  return None if result is None else sizes.entries_of(result)


def _result(op: Op, operands: Sequence[Entries]) -> Entries | None:
  """The result of an op on an index; None if it is no index."""
  [result] = op.results
  moved = sizes.moved(op, operands, result.shape)
  if moved is not None:
    return moved
  try:
    if op.name == "compare":
      direction = op.attributes["comparison_direction"]
      return sizes.mapped(lambda *pair: _decided(direction, *pair), operands, result.shape)
    if op.name not in _OPS or result.dtype.kind not in "iu":
      return None
    entries = sizes.mapped(_OPS[op.name], operands, result.shape)
  except InconclusiveDimensionOperation:
    return None
  return entries if _fit(entries, result.dtype) else None


def _fit(entries: Entries, dtype: Any) -> bool:
  """Whether no number wraps in the dtype."""
  bounds = np.iinfo(dtype)
  ends = [end for entry in entries.flat for end in _ends(entry)]
  return all(is_symbolic_dim(end) or bounds.min <= end <= bounds.max for end in ends)


def _ends(entry: Any) -> tuple[Any, Any]:
  return entry.ends() if isinstance(entry, Index) else (entry, entry)


def _sum(left: Any, right: Any) -> Any:
  if not isinstance(left, Index):
    left, right = right, left
  if not isinstance(left, Index):
    return left + right
  if not isinstance(right, Index):
    return Index(left.factor, left.offset + right, left.last)
  factor, offset = left.factor + right.factor, left.offset + right.offset
  return Index(factor, offset, left.last) if factor else offset


def _negative(entry: Any) -> Any:
  if isinstance(entry, Index):
    return Index(-entry.factor, -entry.offset, entry.last)
  return -entry


def _decided(direction: str, left: Any, right: Any) -> bool:
  """A comparison that is the same for all numbers of the counter.

  Raises:
    InconclusiveDimensionOperation: it is not.
  """
  compare = sizes.COMPARISONS[direction]
  apart = difference(left, right)
  if not isinstance(apart, Index):
    return bool(compare(apart, 0))
  first, last = apart.ends()
  if direction in ("EQ", "NE"):
    if (first > 0 and last > 0) or (first < 0 and last < 0):
      return direction == "NE"
  elif (answer := bool(compare(first, 0))) == bool(compare(last, 0)):
    return answer
  raise InconclusiveDimensionOperation(f"{left} {direction} {right} depends on the counter")


def _larger(left: Any, right: Any) -> Any:
  return left if _decided("GE", left, right) else right


def _smaller(left: Any, right: Any) -> Any:
  return left if _decided("LE", left, right) else right


_OPS: dict[str, Callable[..., Any]] = {
  "add": _sum,
  "subtract": difference,
  "negate": _negative,
  "convert": lambda entry: entry,
  "maximum": _larger,
  "minimum": _smaller,
  "select": lambda condition, left, right: left if condition else right,
  "clamp": lambda low, value, high: _smaller(_larger(value, low), high),
}
