"""Reductions of transposed arrays, as transposed reductions of the arrays.

Code that moves each axis to the end before it reduces its windows, as Equinox' adaptive pools do
under `jax.vmap`, then transposes nothing, or what is left after the reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import numpy as np

from jax2tf.idioms._dataflow import Dataflow, Equations, new_var, provably_equal, reshape
from jax2tf.jaxprs import Eqn
from jax2tf.traits import ARITHMETIC, REDUCTIONS


def reduce_before_transpose(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """reduce(reshape(f(transpose(x)))) -> transpose(reduce(reshape(f(x)))), where f computes with
  numbers and may transpose too, and the reshape divides axes."""
  division, chain = _before(flow, eqn)
  while chain and chain[-1].primitive is not P.transpose_p:
    chain.pop()
  if not chain:
    return None
  x, order = chain[-1].invars[0], [*range(len(chain[-1].outvars[0].aval.shape))]
  for before in chain:
    if before.primitive is P.transpose_p:
      order = [int(before.params["permutation"][axis]) for axis in order]
  parts = _parts(division, chain[0].outvars[0].aval.shape)
  return None if parts is None else _reduced(eqn, x, order, parts, chain)


def _before(flow: Dataflow, eqn: Eqn) -> tuple[Eqn | None, list[Eqn]]:
  """(the reshape whose result is reduced, the equations before it from the last one on)."""
  division: Eqn | None = None
  chain: list[Eqn] = []
  source = eqn.invars[0]
  while (before := flow.single_use(source)) is not None:
    if before.primitive is P.reshape_p:
      if not _is_nothing(before):
        if division is not None or chain:
          break
        division = before
    elif before.primitive is P.transpose_p or _number(before) is not None:
      chain.append(before)
    else:
      break
    source = before.invars[_number(before) or 0]
  return division, chain


def _number(eqn: Eqn) -> int | None:
  """The position of the array that an equation combines with numbers; None if it does not."""
  if eqn.primitive not in ARITHMETIC:
    return None
  shape = eqn.outvars[0].aval.shape
  arrays = [i for i, x in enumerate(eqn.invars) if x.aval.shape]
  is_one_array = len(arrays) == 1 and provably_equal(eqn.invars[arrays[0]].aval.shape, shape)
  return arrays[0] if is_one_array else None


def _is_nothing(eqn: Eqn) -> bool:
  """Whether a reshape gives its operand the shape that it has."""
  is_plain = eqn.params["dimensions"] is None
  return is_plain and provably_equal(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


def _parts(division: Eqn | None, shape: Sequence[Any]) -> list[list[int]] | None:
  """For each axis of `shape` the axes that the reshape makes of it; None if it joins some."""
  if division is None:
    return [[i] for i in range(len(shape))]
  if division.params["dimensions"] is not None:
    return None
  sizes, parts, end = division.outvars[0].aval.shape, [], 0
  for size in shape:
    start, product = end, 1
    while end < len(sizes) and (end == start or not provably_equal([product], [size])):
      product = sizes[end] if end == start else product * sizes[end]
      end += 1
    if not provably_equal([product], [size]):
      return None
    parts.append([*range(start, end)])
  return parts if end == len(sizes) else None


def _reduced(
  eqn: Eqn, x: Any, order: Sequence[int], parts: Sequence[Sequence[int]], chain: Sequence[Eqn]
) -> Equations:
  """The equations from x to the result of `eqn`."""
  eqns: Equations = []
  for before in reversed(chain):
    array = _number(before)
    if array is None:
      continue
    operands = [x if i == array else other for i, other in enumerate(before.invars)]
    result = new_var(before.outvars[0], x.aval.shape)
    eqns.append(before.replace(invars=operands, outvars=[result]))
    x = result
  sizes = eqn.invars[0].aval.shape
  # the axes of the operand of the reduction, in the order that x has them
  axes = [axis for i in np.argsort(order) for axis in parts[i]]
  if len(axes) > len(order):
    divided = new_var(x, [sizes[axis] for axis in axes])
    eqns.append(reshape(eqn, x, divided))
    x = divided
  reduced = {int(axis) for axis in eqn.params["axes"]}
  kept = [axis for axis in axes if axis not in reduced]
  permutation = tuple(kept.index(axis) for axis in sorted(kept))
  (out,) = eqn.outvars
  is_in_order = kept == sorted(kept)
  result = out if is_in_order else new_var(out, [sizes[axis] for axis in kept])
  positions = tuple(i for i, axis in enumerate(axes) if axis in reduced)
  eqns.append(eqn.replace(invars=[x], outvars=[result], params={**eqn.params, "axes": positions}))
  if not is_in_order:
    params = {"permutation": permutation}
    eqns.append(eqn.replace(primitive=P.transpose_p, invars=[result], outvars=[out], params=params))
  return eqns


IDIOMS = dict.fromkeys(REDUCTIONS, reduce_before_transpose)
