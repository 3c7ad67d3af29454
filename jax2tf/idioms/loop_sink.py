"""Computes values of a scan's body that the loop only stacks, or only sums, after the loop, for all
steps at once.

JAX's derivative of a step stacks `1 - tanh(x)**2` beside `tanh(x)`, and adds the product of the
step to the gradient of each weight. After the loop these are one op each, and one product. A sum of
products by one product rounds differently.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun

from jax2tf.idioms._dataflow import Dataflow, Equations, is_array
from jax2tf.idioms._loops import (
  MAPPED,
  MemoryBudget,
  Scan,
  call_in_place_of,
  parse_scan,
  vectorise_steps,
)
from jax2tf.jaxprs import Eqn, part, replaced, variables
from jax2tf.traits import MOVES, RESHAPES, SUMS

# Sums of halves are rounded in each step.
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True)
class Sum:
  """A carried value to which a step adds a product or a sum that it uses for nothing else.

  Attributes:
    of: the equation of the product or the sum.
    moves: the equations that transpose or reshape its result.
    add: the equation that adds it.
  """

  of: Eqn
  moves: Equations
  add: Eqn

  @property
  def eqns(self) -> Equations:
    """All equations."""
    return [self.of, *self.moves, self.add]


def sink(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """scan -> (carry, ys) by a scan of fewer equations, and what its steps stack."""
  if (scan := parse_scan(eqn)) is None or any(isinstance(v, Literal) for v in scan.ys):
    return None
  late = _Late(scan, stacks_more=True)
  if not late.is_gain:
    late = _Late(scan, stacks_more=False)
  return call_in_place_of(flow, eqn, late.call) if late.is_gain else None


class _Late:
  """The equations of a scan to compute after the loop.

  Attributes:
    sums: {carried variable: its sum}.
    eqns: the other equations.
    extra: the values that the loop must stack for them.
    shifted: {carried variable that they need: its value after the step, which the loop stacks
      anyway}.
  """

  def __init__(self, scan: Scan, *, stacks_more: bool):
    self.scan = scan
    self.sums = _sums(scan)
    stays = set[int]()
    while True:
      budget = MemoryBudget(scan)
      self.eqns = self._independent_of_next_step(stays, budget)
      operands = self._operands()
      after = {
        v: out
        for v, out in zip(scan.carry, scan.carried, strict=True)
        if out in self.stacked and v not in self.stacked
      }
      self.shifted = {v: after[v] for v in operands if v in after}
      free = {*scan.consts, *scan.body.constvars, *scan.xs, *self.stacked, *self.shifted}
      self.extra = [v for v in operands if v not in free]
      refused = {
        v for v in self.extra if not (stacks_more and budget.admits(v, of_product=operands[v]))
      }
      if not refused:
        return
      stays |= {id(eqn) for eqn in self._after() if not refused.isdisjoint(variables(eqn.invars))}
      self.sums = {
        v: reduction for v, reduction in self.sums.items() if id(reduction.of) not in stays
      }

  @property
  def stacked(self) -> list[Any]:
    """The ys that remain in the loop, each once."""
    results = {eqn.outvars[0] for eqn in self.eqns}
    return list(dict.fromkeys(v for v in self.scan.ys if v not in results))

  @property
  def is_gain(self) -> bool:
    """Whether a step has fewer ops without the equations."""
    results = {eqn.outvars[0] for eqn in self.eqns}
    work = [eqn for eqn in self._after() if eqn.primitive not in RESHAPES]
    return len(self.extra) < len(work) + len(results.intersection(self.scan.ys)) + len(self.sums)

  def _after(self) -> Equations:
    return [*self.eqns, *(reduction.of for reduction in self.sums.values())]

  def _operands(self) -> dict[Any, bool]:
    """{value of a step that the equations need: whether one of them is a product}."""
    results, operands = {eqn.outvars[0] for eqn in self.eqns}, dict[Any, bool]()
    for eqn in self._after():
      for v in variables(eqn.invars):
        if v not in results:
          operands[v] = operands.get(v, False) or eqn.primitive is P.dot_general_p
    return operands

  def _independent_of_next_step(self, stays: set[int], budget: MemoryBudget) -> Equations:
    """The equations that only ys and sums need, except those in `stays`."""
    scan, late = self.scan, Equations()
    fixed = {*scan.consts, *scan.body.constvars}
    summed = {id(eqn) for reduction in self.sums.values() for eqn in reduction.eqns}
    needed_by_next_step = {
      *variables(out for v, out in zip(scan.carry, scan.carried, strict=True) if v not in self.sums)
    }
    needed = {
      *scan.ys,
      *(v for reduction in self.sums.values() for v in variables(reduction.of.invars)),
    }
    for eqn in reversed(scan.body.eqns):
      if id(eqn) in summed:
        continue
      out, is_product = eqn.outvars[0] if eqn.outvars else None, eqn.primitive is P.dot_general_p
      if (
        id(eqn) not in stays
        and eqn.primitive in MAPPED
        and out not in needed_by_next_step
        and all(map(is_array, (out, *variables(eqn.invars))))
        and not (is_product and fixed.isdisjoint(variables(eqn.invars)))
        and (out in scan.ys or out not in needed or budget.admits(out, of_product=is_product))
      ):
        if out in needed:
          late.append(eqn)
          needed.update(variables(eqn.invars))
      else:
        needed_by_next_step.update(variables(eqn.invars))
    return late[::-1]

  def call(self, *operands: Any) -> Sequence[Any]:
    """The results of the scan."""
    scan, body, stacks = self.scan, self.scan.body, [*self.stacked, *self.extra]
    values = dict(zip(body.invars, operands, strict=True))
    gone = {id(eqn) for eqn in self.eqns} | {
      id(eqn) for reduction in self.sums.values() for eqn in reduction.eqns
    }
    carries = [
      (v, out) for v, out in zip(scan.carry, scan.carried, strict=True) if v not in self.sums
    ]
    outvars, eqns = (
      [*(out for _, out in carries), *stacks],
      [eqn for eqn in body.eqns if id(eqn) not in gone],
    )
    used = {*variables(outvars), *(v for eqn in eqns for v in variables(eqn.invars))}
    consts, xs = ([v for v in group if v in used] for group in (scan.consts, scan.xs))
    lean = jaxpr_as_fun(
      replaced(body, eqns=eqns, invars=[*consts, *(v for v, _ in carries), *xs], outvars=outvars)
    )

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
      results = [*lean(*(values[v] for v in consts), *carry, *x)]
      return results[: len(carries)], results[len(carries) :]

    init, read = [values[v] for v, _ in carries], [values[v] for v in xs]
    carried, ys = scan.rebuilt(step, init, read, operands) if outvars else ([], [])
    rows = {v: values[v] for v in scan.xs} | dict(zip(stacks, ys, strict=True))
    rows |= {v: self._shifted(values[v], rows[out]) for v, out in self.shifted.items()}
    fixed = {v: values[v] for v in scan.consts} | dict(
      zip(body.constvars, body.consts, strict=True)
    )
    vectorise_steps(body, self.eqns, rows, fixed)

    def stack(v: Any) -> Any:
      return rows[v] if v in rows else jnp.broadcast_to(fixed[v], (scan.length, *v.aval.shape))

    after = {v: x for (v, _), x in zip(carries, carried, strict=True)}
    after |= {
      v: values[v] + _summed(body, reduction, [*map(stack, reduction.of.invars)])
      for v, reduction in self.sums.items()
    }
    return [*(after[v] for v in scan.carry), *map(stack, scan.ys)]

  def _shifted(self, first: Any, after: Any) -> Any:
    """A carried value before each step, given its first one and those after each step."""
    if self.scan.eqn.params["reverse"]:
      return jnp.concatenate([after[1:], first[None]])
    return jnp.concatenate([first[None], after[:-1]])


def _sums(scan: Scan) -> dict[Any, Sum]:
  """{carried variable: its sum}."""
  body, sums = scan.body, dict[Any, Sum]()
  producer: dict[Any, Eqn] = {v: eqn for eqn in body.eqns for v in eqn.outvars}
  uses = collections.Counter(
    [*variables(body.outvars), *(v for eqn in body.eqns for v in variables(eqn.invars))]
  )
  fixed = {*scan.consts, *body.constvars}
  for v, out in zip(scan.carry, scan.carried, strict=True):
    add = None if isinstance(out, Literal) else producer.get(out)
    if (
      add is None
      or add.primitive not in SUMS
      or v not in add.invars
      or uses[v] != 1
      or uses[out] != 1
    ):
      continue
    (term,), moves = [a for a in add.invars if a is not v], Equations()
    eqn = None if isinstance(term, Literal) else producer.get(term)
    while (
      eqn is not None
      and eqn.primitive in MOVES
      and uses[eqn.outvars[0]] == 1
      and variables(eqn.invars)
    ):
      moves.append(eqn)
      eqn = producer.get(eqn.invars[0])
    if eqn is None or eqn.outvars[0].aval.dtype not in _DTYPES or uses[eqn.outvars[0]] != 1:
      continue
    if eqn.primitive in (P.reduce_sum_p, P.dot_general_p) and fixed.isdisjoint(
      variables(eqn.invars)
    ):
      sums[v] = Sum(eqn, moves[::-1], add)
  return sums


def _summed(body: Any, reduction: Sum, operands: Sequence[Any]) -> Any:
  """The sum of the products or sums of all steps, given their stacked operands: one product or sum,
  along one more dimension."""
  params = reduction.of.params
  if reduction.of.primitive is P.reduce_sum_p:
    total = jnp.sum(operands[0], axis=(0, *(axis + 1 for axis in params["axes"])))
  else:
    (contract, batch) = (
      [tuple(axis + 1 for axis in axes) for axes in sides] for sides in params["dimension_numbers"]
    )
    numbers = (tuple((0, *axes) for axes in contract), tuple(batch))
    total = P.dot_general_p.bind(*operands, **params | {"dimension_numbers": numbers})
  if not reduction.moves:
    return total
  (total,) = jaxpr_as_fun(part(body, reduction.moves, reduction.moves[-1].outvars))(total)
  return total


IDIOMS = {P.scan_p: sink}
