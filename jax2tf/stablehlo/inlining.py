"""Blocks with the ops of functions in place of calls."""

from __future__ import annotations

from collections.abc import Callable

from jax2tf.stablehlo.graph import Block, Op, Value, walk


def inlined(block: Block, callee_of: Callable[[Op], Block | None]) -> Block:
  """The block in which calls are the ops of their functions.

  Args:
    block: stays as it is.
    callee_of: the function of a call that is to be inlined; None for other ops. One with regions,
      or which gives the same value as two results, stays a call.
  """
  operands = {operand for op in walk(block) for operand in op.operands}
  operands |= {result for op in walk(block) for inner in op.blocks for result in inner.results}
  ops: list[Op] = []
  handed_on: dict[Value, Value] = {}
  for op in block.ops:
    callee = callee_of(op)
    if callee is None or any(each.blocks for each in callee.ops):
      ops.append(op)
      continue
    through = dict(zip(callee.arguments, op.operands, strict=True))
    given = {
      result: through[value]
      for result, value in zip(op.results, callee.results, strict=True)
      if value in through
    }
    made = {
      value: result
      for value, result in zip(callee.results, op.results, strict=True)
      if value not in through
    }
    if len(given) + len(made) < len(op.results) or operands & given.keys():
      ops.append(op)
      continue
    ops += _copies(callee, through | made)
    handed_on |= given
  return Block(block.arguments, ops, [handed_on.get(value, value) for value in block.results])


def _copies(callee: Block, values: dict[Value, Value]) -> list[Op]:
  """The ops of a function with these values in place of its own, and new ones for the others."""
  copies = []
  for op in callee.ops:
    for result in op.results:
      values.setdefault(result, Value(result.type, result.text))
    operands = [values[operand] for operand in op.operands]
    results = [values[result] for result in op.results]
    copies.append(Op(op.dialect, op.name, operands, results, op.attributes, [], op.where))
  return copies
