"""Loops that count become `lax.scan`, which has a derivative in reverse mode.

JAX writes a scan as a `while` that carries a counter and, for each stacked result, an array of
which a step writes one row. Analysis finds the counter and these rows again: an index is computed
as `factor * counter + offset`, and comparisons of it are decided by the counter's bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from jax.extend.core import InconclusiveDimensionOperation

from jax2tf.stablehlo.graph import Block, Op, Value
from jax2tf.stablehlo.rules import Evaluation
from jax2tf.stablehlo.sizes import COMPARISONS, array, scalar, settled, sizes


@dataclass(frozen=True)
class Counted:
  """A loop whose counter goes from `start` by ones to `stop`.

  Attributes:
    counter: the position of the counter among what the loop carries.
    start: a number; `stop` may be symbolic, then start is 0.
  """

  counter: int
  start: int
  stop: Any


@dataclass(frozen=True)
class Row:
  """A carried array of which each step writes one row, and which nothing reads.

  Attributes:
    writer: the op that writes it.
    value: of the body, the row; it may have a first dimension of size 1.
    is_reversed: whether the last row is the first one that is written.
  """

  writer: Op
  value: Value
  is_reversed: bool


def counted(
  evaluation: Evaluation, op: Op, operands: Sequence[Any], moving: list[int]
) -> Counted | None:
  """The counter of a loop `while counter < stop: counter += 1`; None for another loop."""
  condition, body = op.blocks
  test = condition.results[0].owner
  if test is None or test.name != "compare" or len(test.operands) != 2:
    return None
  left, right = test.operands
  direction = test.attributes["comparison_direction"]
  if direction == "GT":
    left, right, direction = right, left, "LT"
  if direction != "LT" or left not in condition.arguments:
    return None
  counter = condition.arguments.index(left)
  step = body.results[counter].owner
  if counter not in moving or step is None or step.name != "add":
    return None
  known = _Invariants(evaluation, op, operands, moving)
  added = [each for each in step.operands if each is not body.arguments[counter]]
  if len(added) != 1 or known.of(added[0], body) != 1:
    return None
  start, stop = sizes(operands[counter]), known.of(right, condition)
  if start is None or stop is None or is_symbolic_dim(start[0]):
    return None
  if is_symbolic_dim(stop) and start[0] != 0:
    return None
  return Counted(counter, start[0], stop)


class _Invariants:
  """Numbers of the regions of a loop that are the same in each step."""

  def __init__(self, evaluation: Evaluation, op: Op, operands: Sequence[Any], moving: list[int]):
    self._evaluation, self._operands = evaluation, operands
    self._moving = frozenset(moving)

  def of(self, value: Value, block: Block) -> Any:
    """The number of a scalar, perhaps symbolic; None if it changes or depends on data."""
    if value.type is None or value.shape:
      return None
    if value.owner is not None and value.owner.name == "constant":
      return _only(sizes(value.owner.attributes["value"])) if _is_integer(value) else None
    if value in block.arguments:
      index = block.arguments.index(value)
      return None if index in self._moving else _only(sizes(self._operands[index]))
    known = self._evaluation.value(value)
    return None if known is None else _only(sizes(known))


def _is_integer(value: Value) -> bool:
  return value.dtype.kind in "iub"


def _only(entries: tuple[Any, ...] | None) -> Any:
  return entries[0] if entries is not None and len(entries) == 1 else None


def as_scan(
  evaluation: Evaluation, op: Op, operands: Sequence[Any], moving: list[int], loop: Counted
) -> list[Any]:
  """The results of a counted loop, by `lax.scan`."""
  known = _Invariants(evaluation, op, operands, moving)
  rows = _rows(evaluation, op, operands, moving, loop, known)
  body = _without_writers(op.blocks[1], rows)
  others = [index for index in moving if index != loop.counter and index not in rows]
  step_of = evaluation.bound(body)

  def step(values: Any, count: Any) -> Any:
    whole = list(operands)
    whole[loop.counter] = count
    for index, value in zip(others, values, strict=True):
      whole[index] = value
    for index in rows:
      whole[index] = None  # nothing reads it
    results = step_of(*whole)
    written = [lax.reshape(results[index], _row_shape(operands[index])) for index in rows]
    return [results[index] for index in others], written

  initial = [carried(operands[index]) for index in others]
  last, stacked = lax.scan(step, initial, _counts(op, loop))
  results = list(operands)
  results[loop.counter] = settled(scalar(_end(loop)), op.results[loop.counter].dtype)
  for index, value in zip(others, last, strict=True):
    results[index] = value
  for (index, row), value in zip(rows.items(), stacked, strict=True):
    results[index] = jnp.flip(value, 0) if row.is_reversed else value
  return results


def carried(value: Any) -> Any:
  """What a loop carries at its beginning: a JAX array, or None for a token."""
  return None if value is None else jnp.asarray(array(value))


def _end(loop: Counted) -> Any:
  if is_symbolic_dim(loop.stop):
    return jax.core.max_dim(loop.stop, 0) if not _is_positive(loop.stop) else loop.stop
  return max(loop.start, loop.stop)


def _is_positive(size: Any) -> bool:
  try:
    return bool(size >= 0)
  except InconclusiveDimensionOperation:
    return False


def _counts(op: Op, loop: Counted) -> Any:
  dtype = op.results[loop.counter].dtype
  if is_symbolic_dim(loop.stop):
    return lax.broadcasted_iota(dtype, (_end(loop),), 0)
  return np.arange(loop.start, max(loop.start, loop.stop)).astype(dtype)


def _row_shape(value: Any) -> tuple[Any, ...]:
  return tuple(value.shape[1:])


def _without_writers(body: Block, rows: dict[int, Row]) -> Block:
  """The body with rows in place of the arrays that they are written into."""
  writers = {row.writer for row in rows.values()}
  results = [
    rows[index].value if index in rows else value for index, value in enumerate(body.results)
  ]
  return Block(body.arguments, [op for op in body.ops if op not in writers], results)


def _rows(
  evaluation: Evaluation,
  op: Op,
  operands: Sequence[Any],
  moving: list[int],
  loop: Counted,
  known: _Invariants,
) -> dict[int, Row]:
  """The carried arrays that are stacked rows, by position."""
  body, found = op.blocks[1], {}
  if loop.start != 0:
    return {}
  indices = _Indices(evaluation, body, loop, known)
  for position in moving:
    value = body.results[position]
    is_array = value.type is not None and len(value.shape) > 0
    if position == loop.counter or not is_array or operands[position].shape[0] != loop.stop:
      continue
    row = _row(indices, body, body.arguments[position], value)
    if row is not None:
      found[position] = row
  return found


def _row(indices: _Indices, body: Block, carried: Value, value: Value) -> Row | None:
  writer = value.owner
  if writer is None or writer not in body.ops or carried.uses != 1 or value.uses != 1:
    return None
  if len(writer.results) != 1 or carried not in writer.operands:
    return None
  if writer.name == "call":
    return _row_of_call(indices, writer, carried)
  return _row_of_update(indices, writer, carried, {})


def _row_of_update(
  indices: _Indices, writer: Op, carried: Value, places: dict[Value, Value]
) -> Row | None:
  """The row that a dynamic_update_slice writes; `places` has the values of the caller."""
  if writer.name != "dynamic_update_slice" or writer.operands[0] is not carried:
    return None
  update, *starts = writer.operands[1:]
  if update.shape != (1, *carried.shape[1:]):
    return None
  first, *rest = (indices.of(start, places) for start in starts)
  if any(each is None or each.factor or each.offset != 0 for each in rest):
    return None
  direction = indices.direction(first)
  return None if direction is None else Row(writer, update, direction < 0)


def _row_of_call(indices: _Indices, call: Op, carried: Value) -> Row | None:
  """The row that a function writes which JAX has put around the update."""
  block = indices.evaluation.block_of(call.attributes["callee"])
  inner = block.arguments[call.operands.index(carried)]
  writer = block.results[0].owner
  if writer is None or inner.uses != 1:
    return None
  places = dict(zip(block.arguments, call.operands, strict=True))
  row = _row_of_update(indices, writer, inner, places)
  source = None if row is None else _source(row.value)
  if row is None or source not in places:
    return None
  return Row(call, places[source], row.is_reversed)


def _source(value: Value) -> Value:
  """The value of which this one is a reshape."""
  while value.owner is not None and value.owner.name in ("reshape", "broadcast_in_dim"):
    operand = value.owner.operands[0]
    dimensions = value.owner.get("broadcast_dimensions")
    if dimensions is not None and not _only_adds_ones(operand, value, dimensions):
      return value
    value = operand
  return value


def _only_adds_ones(operand: Value, value: Value, dimensions: list[int]) -> bool:
  """Whether a broadcast only inserts dimensions of size 1."""
  kept = [value.shape[axis] for axis in dimensions]
  others = [size for axis, size in enumerate(value.shape) if axis not in dimensions]
  return kept == list(operand.shape) and dimensions == sorted(dimensions) and set(others) <= {1}


@dataclass(frozen=True)
class _Index:
  """`factor * counter + offset`."""

  factor: int
  offset: Any


class _Indices:
  """Scalars of a loop's body as functions of its counter."""

  def __init__(self, evaluation: Evaluation, body: Block, loop: Counted, known: _Invariants):
    self.evaluation, self._body, self._loop, self._known = evaluation, body, loop, known

  def direction(self, index: _Index | None) -> int | None:
    """1 for the counter itself, -1 for the rows from the last one on; None for another index."""
    if index is None:
      return None
    if index.factor == 1 and index.offset == 0:
      return 1
    is_backwards = index.factor == -1 and index.offset == self._loop.stop - 1
    return -1 if is_backwards else None

  def of(self, value: Value, places: dict[Value, Value]) -> _Index | None:
    """The value as an index, where `places` has the arguments of the function that it is in."""
    value = places.get(value, value)
    if value is self._body.arguments[self._loop.counter]:
      return _Index(1, 0)
    number = self._known.of(value, self._body)
    if number is not None:
      return _Index(0, number)
    op = value.owner
    if op is None or op.name not in ("add", "subtract", "negate", "convert", "reshape", "select"):
      return None
    if op.name == "select":
      return self._selected(op, places)
    operands = [self.of(each, places) for each in op.operands]
    return None if None in operands else _combined(op.name, operands)

  def _selected(self, op: Op, places: dict[Value, Value]) -> _Index | None:
    condition, left, right = op.operands
    test = places.get(condition, condition).owner
    if test is None or test.name != "compare":
      return None
    compared = [self.of(each, places) for each in test.operands]
    decision = self._decided(test.attributes["comparison_direction"], *compared)
    return None if decision is None else self.of(left if decision else right, places)

  def _decided(self, direction: str, left: _Index | None, right: _Index | None) -> bool | None:
    """A comparison that is the same for all counts; None for another one."""
    if left is None or right is None:
      return None
    factor, offset = left.factor - right.factor, left.offset - right.offset
    ends = [offset, factor * (self._loop.stop - 1) + offset]
    try:
      answers = {COMPARISONS[direction](end, 0) for end in ends}
    except InconclusiveDimensionOperation:
      return None
    is_monotonic = direction not in ("EQ", "NE") or factor == 0
    return answers.pop() if len(answers) == 1 and is_monotonic else None


def _combined(name: str, operands: list[Any]) -> _Index:
  if name == "negate":
    return _Index(-operands[0].factor, -operands[0].offset)
  if name in ("convert", "reshape"):
    return _Index(operands[0].factor, operands[0].offset)
  left, right = operands
  if name == "add":
    return _Index(left.factor + right.factor, left.offset + right.offset)
  return _Index(left.factor - right.factor, left.offset - right.offset)
