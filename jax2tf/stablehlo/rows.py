"""Which arrays a counted loop writes, or reads, one row a step.

`lax.scan` carries none of them: it stacks what is written, and hands out what is read. A loop that
carried them would be slow to differentiate: each step would have a derivative of the whole array.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf.stablehlo import indices, inlining
from jax2tf.stablehlo.graph import Block, Op, Value, walk
from jax2tf.stablehlo.indices import Entries, Index, Known
from jax2tf.stablehlo.rules import Evaluation

_MOVING = ("dynamic_slice", "real_dynamic_slice", "dynamic_update_slice")


@dataclass(frozen=True)
class Written:
  """A carried array of which each step writes one row, and which nothing reads.

  Attributes:
    position: among what the loop carries.
    row: of the body, with a first dimension of size 1.
    is_reversed: whether the last row is the first one that is written.
  """

  position: int
  row: Value
  is_reversed: bool


@dataclass(frozen=True)
class Read:
  """One row that each step reads of an array that stays the same.

  Attributes:
    array: of JAX.
    row: of the body, with a first dimension of size 1.
    is_reversed: whether the last row is the first one that is read.
  """

  array: Any
  row: Value
  is_reversed: bool


@dataclass(frozen=True)
class Body:
  """The body of a loop without what moves rows.

  Attributes:
    block: whose last arguments are the rows that are read, and whose results have written rows in
      place of arrays.
  """

  block: Block
  written: tuple[Written, ...]
  read: tuple[Read, ...]


def of_loop(
  evaluation: Evaluation,
  block: Block,
  operands: Sequence[Any],
  known: Mapping[Value, Entries],
  length: Any,
  moving: Sequence[int],
  stackable: Sequence[int],
) -> Body:
  """The body of a counted loop, and its rows.

  Args:
    evaluation: has the values around the loop.
    block: the body.
    operands: what the loop carries at its beginning.
    known: the entries of some arguments, among them the counter, which starts at 0.
    length: the number of steps.
    moving: the positions of arguments that steps change.
    stackable: the positions of those that may be stacked rows.
  """
  inlined = _inlined(evaluation, block, known)
  entries = indices.of_block(evaluation, inlined, known)
  uses = _uses(inlined)
  carried = {inlined.arguments[position]: position for position in stackable}
  same = {
    inlined.arguments[position]: operand
    for position, operand in enumerate(operands)
    if position not in moving
  }
  written, read = dict[Op, Written](), dict[Op, Read]()
  for op in inlined.ops:
    direction = _direction(op, entries, length)
    if direction is None:
      continue
    array, result = op.operands[0], op.results[0]
    if op.name == "dynamic_update_slice":
      position, row = carried.get(array), op.operands[1]
      if position is None or inlined.results[position] is not result:
        continue
      is_stacked = uses[array] == uses[result] == 1
      if is_stacked and _is_row(row.shape, operands[position].shape, length):
        written[op] = Written(position, row, direction < 0)
    else:
      value = same.get(array, evaluation.value(array))
      if value is not None and _reads_row(op, entries, np.shape(value), length):
        read[op] = Read(value, result, direction < 0)
  return _without(inlined, written, read)


_MOST_OPS = 32  # of a function around a slice; JAX's own have half as many


def _inlined(evaluation: Evaluation, block: Block, known: Mapping[Value, Entries]) -> Block:
  """The body with the ops of the functions that JAX puts around slices at an index."""
  entries = indices.of_block(evaluation, block, known)

  def around_slice(op: Op) -> Block | None:
    if op.name != "call" or not any(indices.has_index(entries.of(each)) for each in op.operands):
      return None
    callee = evaluation.block_of(op.attributes["callee"])
    is_around = any(each.name in _MOVING for each in callee.ops)
    return callee if is_around and len(callee.ops) <= _MOST_OPS else None

  return inlining.inlined(block, around_slice)


def _without(block: Block, written: Mapping[Op, Written], read: Mapping[Op, Read]) -> Body:
  rows = tuple(read.values())
  results = list(block.results)
  for each in written.values():
    results[each.position] = each.row
  ops = [op for op in block.ops if op not in written and op not in read]
  arguments = [*block.arguments, *(each.row for each in rows)]
  return Body(Block(arguments, ops, results), tuple(written.values()), rows)


def _uses(block: Block) -> collections.Counter[Value]:
  """How often each value is an operand or a result, also of blocks inside."""
  uses = collections.Counter(block.results)
  for op in walk(block):
    uses.update(op.operands)
    for inner in op.blocks:
      uses.update(inner.results)
  return uses


def _direction(op: Op, known: Known, length: Any) -> int | None:
  """1 if a slice is the row of the counter, -1 if it is the one from the end; else None."""
  starts = _starts(op, known)
  if not starts or starts[0] is None or any(start is None or start != 0 for start in starts[1:]):
    return None
  first = starts[0]
  if not isinstance(first, Index):
    return None
  if first.factor == 1 and first.offset == 0:
    return 1
  return -1 if first.factor == -1 and first.offset == length - 1 else None


def _starts(op: Op, known: Known) -> list[Any]:
  """The entries of the starts of a slice; empty if there are none."""
  if op.name == "real_dynamic_slice":
    starts = known.of(op.operands[1])
    return [] if starts is None else list(starts.flat)
  if op.name not in _MOVING:
    return []
  first = 2 if op.name == "dynamic_update_slice" else 1
  scalars = map(known.of, op.operands[first:])
  return [None if scalar is None else scalar.item() for scalar in scalars]


def _is_row(row: Sequence[int | None], array: Sequence[Any], length: Any) -> bool:
  """Whether an update may be a whole row; symbolic sizes are compared when it is traced."""
  return (
    row[0] == 1
    and array[0] == length
    and all(size is None or size == whole for size, whole in zip(row[1:], array[1:], strict=True))
  )


def _reads_row(op: Op, known: Known, array: Sequence[Any], length: Any) -> bool:
  """Whether a slice is one whole row."""
  if array[0] != length:
    return False
  if op.name == "dynamic_slice":
    lengths = list(op.attributes["slice_sizes"])
  else:
    start, limit, strides = map(known.of, op.operands[1:4])
    if start is None or limit is None or strides is None or any(step != 1 for step in strides):
      return False
    lengths = [indices.difference(*pair) for pair in zip(limit.flat, start.flat, strict=True)]
  return lengths == [1, *array[1:]]
