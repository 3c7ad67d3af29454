"""Loops that count become `lax.scan`, which has a derivative in reverse mode.

JAX writes a scan as a `while` that carries a counter and, for each stacked result, an array of
which a step writes one row. Analysis finds the counter here, and the rows in `rows`.
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

from jax2tf.stablehlo import indices, inlining, rows
from jax2tf.stablehlo.graph import Block, Op, Value
from jax2tf.stablehlo.rules import Evaluation
from jax2tf.stablehlo.sizes import array, entries_of, is_small, scalar, settled, sizes


@dataclass(frozen=True)
class Counted:
  """A loop whose counter goes from `start` by ones to `stop`.

  Attributes:
    evaluation: has the values around the loop.
    op: the `while`.
    operands: what the loop carries at its beginning.
    moving: the positions of those that steps change.
    counter: the position of the counter.
    start: a number; `stop` may be symbolic, then start is 0.
  """

  evaluation: Evaluation
  op: Op
  operands: Sequence[Any]
  moving: Sequence[int]
  counter: int
  start: int
  stop: Any


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
  known = _Invariants(evaluation, operands, moving)
  added = [each for each in step.operands if each is not body.arguments[counter]]
  if len(added) != 1 or known.of(added[0], body) != 1:
    return None
  start, stop = sizes(operands[counter]), known.of(right, condition)
  if start is None or stop is None or is_symbolic_dim(start[0]):
    return None
  if is_symbolic_dim(stop) and start[0] != 0:
    return None
  return Counted(evaluation, op, operands, moving, counter, start[0], stop)


class _Invariants:
  """Numbers of the regions of a loop that are the same in each step."""

  def __init__(self, evaluation: Evaluation, operands: Sequence[Any], moving: list[int]):
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


_MOST_UNROLLED = 500  # ops; a hash of JAX has 5 steps of up to 80


def unrolled(loop: Counted) -> list[Any] | None:
  """The results of a short loop that exchanges constants in each step, as a hash of JAX does with
  the numbers of bits by which it shifts; None for another loop. Unrolled, they stay constants."""

  def callee_of(call: Op) -> Block | None:
    return loop.evaluation.block_of(call.attributes["callee"]) if call.name == "call" else None

  constants = {
    argument
    for argument, operand in zip(loop.op.blocks[1].arguments, loop.operands, strict=True)
    if isinstance(operand, np.ndarray) and is_small(operand) and operand.ndim > 0
  }
  if is_symbolic_dim(loop.stop) or len(constants) < 2:
    return None
  body = inlining.inlined(loop.op.blocks[1], callee_of)
  pairs = zip(body.arguments, body.results, strict=True)
  exchanges = any({before, after} <= constants and before is not after for before, after in pairs)
  if not exchanges or (loop.stop - loop.start) * len(body.ops) > _MOST_UNROLLED:
    return None
  values = list(loop.operands)
  for _ in range(loop.start, loop.stop):
    values = loop.evaluation.run(body, values)
  return values


class _OtherSizeError(Exception):
  """A written array is smaller than a row; the argument is its position."""


def as_scan(loop: Counted) -> list[Any]:
  """The results of a counted loop, by `lax.scan`."""
  stackable = [index for index in loop.moving if index != loop.counter]
  while True:
    try:
      return _as_scan(loop, stackable)
    except _OtherSizeError as error:
      stackable.remove(error.args[0])


def _as_scan(loop: Counted, stackable: Sequence[int]) -> list[Any]:
  """As `as_scan`; the carried arrays at `stackable` may be stacked rows."""
  operands = loop.operands
  body = _with_rows(loop, stackable)
  stacked = [each.position for each in body.written]
  others = [index for index in loop.moving if index != loop.counter and index not in stacked]
  step_of = loop.evaluation.bound(body.block)

  def step(values: Any, slices: Any) -> Any:
    count, *rows_read = slices
    whole = list(operands)
    whole[loop.counter] = count
    for index, value in zip(others, values, strict=True):
      whole[index] = value
    for index in stacked:
      whole[index] = None  # nothing reads it
    results = step_of(*whole, *(row[None] for row in rows_read))
    return [results[index] for index in others], [row_of(results, index) for index in stacked]

  def row_of(results: Sequence[Any], index: int) -> Any:
    row, shape = results[index], tuple(operands[index].shape[1:])
    if np.shape(row)[1:] != shape:
      raise _OtherSizeError(index)
    return lax.reshape(row, shape)

  initial = [carried(operands[index]) for index in others]
  arrays = [_reversed(array(each.array), each.is_reversed) for each in body.read]
  last, stacks = lax.scan(step, initial, (_counts(loop), *arrays))
  results = list(operands)
  results[loop.counter] = settled(scalar(_end(loop)), loop.op.results[loop.counter].dtype)
  for index, value in zip(others, last, strict=True):
    results[index] = value
  for each, stack in zip(body.written, stacks, strict=True):
    results[each.position] = _reversed(stack, each.is_reversed)
  return results


def _reversed(value: Any, is_reversed: bool) -> Any:
  return jnp.flip(value, 0) if is_reversed else value


def _with_rows(loop: Counted, stackable: Sequence[int]) -> rows.Body:
  body, operands = loop.op.blocks[1], loop.operands
  if loop.start != 0:
    return rows.Body(body, (), ())
  same = [index for index in range(len(operands)) if index not in loop.moving]
  known = {
    body.arguments[index]: entries_of(operands[index])
    for index in same
    if is_small(operands[index])
  }
  known[body.arguments[loop.counter]] = indices.counter(loop.stop - 1)
  return rows.of_loop(loop.evaluation, body, operands, known, loop.stop, loop.moving, stackable)


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


def _counts(loop: Counted) -> Any:
  dtype = loop.op.results[loop.counter].dtype
  if is_symbolic_dim(loop.stop):
    return lax.broadcasted_iota(dtype, (_end(loop),), 0)
  return np.arange(loop.start, max(loop.start, loop.stop)).astype(dtype)
