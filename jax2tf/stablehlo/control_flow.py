"""Calls, branches and loops."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jax2tf.stablehlo import loops
from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import Evaluation, rule
from jax2tf.stablehlo.sizes import PerPlatform, array, number


@rule("call", values=True)
def _call(evaluation: Evaluation, op: Op, *operands: Any) -> list[Any]:
  return evaluation.call(op.attributes["callee"], operands)


@rule("composite", values=True)
def _composite(evaluation: Evaluation, op: Op, *operands: Any) -> list[Any]:
  return evaluation.call(op.attributes["decomposition"], operands)


@rule("if", values=True)
def _if(evaluation: Evaluation, op: Op, condition: Any) -> list[Any]:
  known = number(condition)
  if known is not None:
    return evaluation.run(op.blocks[0 if known else 1], ())
  branches = [evaluation.bound(block) for block in op.blocks]
  return list(lax.cond(array(condition), *branches))


@rule("case", values=True)
def _case(evaluation: Evaluation, op: Op, index: Any) -> list[Any]:
  last, known = len(op.blocks) - 1, number(index)
  if known is not None:
    return evaluation.run(op.blocks[known if 0 <= known <= last else last], ())
  if isinstance(index, PerPlatform):
    return _case_of_platform(evaluation, op, index)
  index = array(index)
  # An index outside stands for the last branch.
  place = jnp.where((index < 0) | (index > last), last, index)
  return list(lax.switch(place, [evaluation.bound(block) for block in op.blocks]))


def _case_of_platform(evaluation: Evaluation, op: Op, index: PerPlatform) -> list[Any]:
  """A branch for each platform."""
  last = len(op.blocks) - 1
  blocks = [op.blocks[min(value, last)] for _, value in index.values]
  if all(block is blocks[0] for block in blocks):
    return evaluation.run(blocks[0], ())
  if not any(block.ops for block in blocks) and len(op.results) == 1:
    numbers = [number(evaluation.run(block, ())[0]) for block in blocks]
    platforms = [platform for platform, _ in index.values]
    known = [each for each in numbers if each is not None]
    if len(known) == len(platforms) and op.results[0].dtype == index.dtype:
      return [PerPlatform(tuple(zip(platforms, known, strict=True)))]
  return list(index.chosen(lambda value: evaluation.bound(op.blocks[min(value, last)])))


@rule("while", values=True)
def _while(evaluation: Evaluation, op: Op, *operands: Any) -> list[Any]:
  body = op.blocks[1]
  moving = [
    index
    for index, (before, after) in enumerate(zip(body.arguments, body.results, strict=True))
    if before is not after
  ]
  counted = loops.counted(evaluation, op, operands, moving)
  if counted is not None:
    return loops.unrolled(counted) or loops.as_scan(counted)

  def whole(carried: Any) -> list[Any]:
    values = list(operands)
    for index, value in zip(moving, carried, strict=True):
      values[index] = value
    return values

  condition, step = (evaluation.bound(block) for block in op.blocks)

  def next_values(carried: Any) -> list[Any]:
    results = step(*whole(carried))
    return [results[index] for index in moving]

  initial = [loops.carried(operands[index]) for index in moving]
  return whole(lax.while_loop(lambda carried: condition(*whole(carried))[0], next_values, initial))
