"""Calls, branches and loops."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jax2tf.stablehlo import loops
from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import Evaluation, rule
from jax2tf.stablehlo.sizes import array, number


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
  index = array(index)
  # An index outside stands for the last branch.
  place = jnp.where((index < 0) | (index > last), last, index)
  return list(lax.switch(place, [evaluation.bound(block) for block in op.blocks]))


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
    return loops.as_scan(evaluation, op, operands, moving, counted)

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
