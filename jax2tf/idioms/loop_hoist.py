"""Computes values of a scan's body that depend only on xs and consts before the loop, for all steps
at once.

One matrix product replaces many, and one op on the stack replaces an op in each step. The results
must not be larger than what the loop reads or stacks anyway, nor too large for all steps at once:
the weights of many layers are cast one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
from jax.extend.core import Literal, jaxpr_as_fun

from jax2tf.idioms._dataflow import Dataflow, Equations, is_array, provably_equal
from jax2tf.idioms._loops import (
  MAPPED,
  MemoryBudget,
  Scan,
  call_in_place_of,
  parse_scan,
  vectorise_steps,
)
from jax2tf.idioms.loop_counters import counter_p
from jax2tf.jaxprs import Eqn, live, replaced, variables
from jax2tf.lowering._movement import is_one
from jax2tf.traits import RESHAPES


def hoist(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """scan(consts, xs) -> scan(what its steps compute of them)."""
  if (scan := parse_scan(eqn)) is None:
    return None
  early = _early(scan)
  needed, rest = _divided(scan, early)
  used = {v for e in early for v in variables(e.invars)}
  # While has a counter anyway, so counters are spared without gain. A value that is the same in
  # each step costs nothing inside.
  rows = [
    v
    for v, operand in zip(scan.xs, eqn.invars[scan.n_outer :], strict=True)
    if flow.producer(operand, counter_p) is None
  ]
  spared = [v for v in rows if v in used and v not in rest]
  work = [e for e in early if e.primitive not in RESHAPES or _repeats(e)]
  inside = [v for v in needed if v in rest]
  varying = _varying(scan, early)
  constant = {*scan.consts}.intersection(variables(scan.ys))
  if len(varying.intersection(inside)) >= len(spared) + len(work) + len(constant):
    return None
  return call_in_place_of(flow, eqn, lambda *operands: _call(scan, early, needed, inside, operands))


def _varying(scan: Scan, early: Sequence[Eqn]) -> set[Any]:
  """The results that depend on xs."""
  varying = {*scan.xs}
  for eqn in early:
    if not varying.isdisjoint(variables(eqn.invars)):
      varying.update(eqn.outvars)
  return varying


def _repeats(eqn: Eqn) -> bool:
  """Whether it repeats an array."""
  operand, (out,) = eqn.invars[0].aval, eqn.outvars
  return (
    eqn.primitive is P.broadcast_in_dim_p
    and bool(operand.shape)
    and not provably_equal(_wide(operand.shape), _wide(out.aval.shape))
  )


def _wide(shape: Sequence[Any]) -> list[Any]:
  return [size for size in shape if not is_one(size)]


def _early(scan: Scan) -> list[Eqn]:
  """The equations that depend only on consts and xs."""
  body, budget = scan.body, MemoryBudget(scan)
  fixed, varying, early = {*scan.consts, *body.constvars}, {*scan.xs}, []
  for eqn in body.eqns:
    of = {*variables(eqn.invars)}
    if (
      eqn.primitive not in MAPPED
      or not of
      or not of <= fixed | varying
      or not all(map(is_array, of))
    ):
      continue
    is_product = eqn.primitive is P.dot_general_p
    if of <= fixed:
      fixed.add(eqn.outvars[0])
    elif (is_product and of <= varying) or not budget.admits(eqn.outvars[0], of_product=is_product):
      continue
    else:
      varying.add(eqn.outvars[0])
    early.append(eqn)
  left = _left_to_ops(scan, early)
  return [eqn for eqn in early if eqn.outvars[0] not in left]


def _left_to_ops(scan: Scan, early: Sequence[Eqn]) -> set[Any]:
  """Repeated vectors and numbers that a step only adds to its own products, for BiasAdd, or
  repeated numbers: ops repeat these as fast."""
  ids = {id(eqn) for eqn in early}
  eqns = [eqn for eqn in scan.body.eqns if id(eqn) not in ids]
  products = {eqn.outvars[0] for eqn in eqns if eqn.primitive is P.dot_general_p}
  adds = [
    eqn
    for eqn in eqns
    if eqn.primitive is P.add_p and not products.isdisjoint(variables(eqn.invars))
  ]
  others = [eqn for eqn in eqns if all(eqn is not add for add in adds)]
  biases = {v for eqn in adds for v in variables(eqn.invars)} - {
    v for eqn in others for v in variables(eqn.invars)
  }
  needed = {*variables(scan.body.outvars), *(v for eqn in early for v in variables(eqn.invars))}
  broadcasts = [
    eqn for eqn in early if eqn.primitive is P.broadcast_in_dim_p and eqn.outvars[0] not in needed
  ]
  return {
    eqn.outvars[0] for eqn in broadcasts if not eqn.invars[0].aval.shape or eqn.outvars[0] in biases
  }


def _divided(scan: Scan, early: Sequence[Eqn]) -> tuple[list[Any], set[Any]]:
  """(early results that are needed, all that the rest of a step uses)."""
  body, ids = scan.body, set(map(id, early))
  eqns = live([e for e in body.eqns if id(e) not in ids], body.outvars)
  results = [v for e in early for v in e.outvars]
  rest = {*variables(body.outvars[: scan.n_carry]), *(v for e in eqns for v in variables(e.invars))}
  stacked = set(variables(scan.ys))
  return [v for v in results if v in rest or v in stacked], rest


def _call(
  scan: Scan,
  early: Sequence[Eqn],
  needed: Sequence[Any],
  inside: Sequence[Any],
  operands: Sequence[Any],
) -> Sequence[Any]:
  """The results of the scan."""
  body, ids = scan.body, set(map(id, early))
  consts, init = scan.consts, list(operands[scan.n_consts : scan.n_outer])
  fixed = dict(
    zip([*consts, *body.constvars], [*operands[: scan.n_consts], *body.consts], strict=True)
  )
  rows = dict(zip(scan.xs, operands[scan.n_outer :], strict=True))
  vectorise_steps(body, early, rows, fixed)
  stacked = scan.ys
  rows |= {
    v: jnp.broadcast_to(fixed[v], (scan.length, *v.aval.shape))
    for v in variables(stacked)
    if v in fixed
  }
  outvars = [*scan.carried, *(v for v in stacked if isinstance(v, Literal) or v not in rows)]
  eqns = live([e for e in body.eqns if id(e) not in ids], outvars)
  used = {*variables(outvars), *(v for e in eqns for v in variables(e.invars))}
  consts, xs = (
    [v for v in (*consts, *inside) if v in used and v in fixed],
    [v for v in rows if v in used and v not in fixed],
  )
  lean = jaxpr_as_fun(
    replaced(body, eqns=eqns, invars=[*consts, *scan.carry, *xs], outvars=outvars)
  )

  def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
    results = [*lean(*(fixed[v] for v in consts), *carry, *x)]
    return results[: scan.n_carry], results[scan.n_carry :]

  last, ys = scan.rebuilt(step, init, [rows[v] for v in xs], operands) if outvars else ([], [])
  left = iter(ys)
  return [
    *last,
    *(next(left) if isinstance(v, Literal) or v not in rows else rows[v] for v in stacked),
  ]


IDIOMS = {P.scan_p: hoist}
