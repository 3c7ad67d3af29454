"""Computes values of a scan's body that depend only on xs and consts before the loop, for all steps at once.

One matrix product replaces many, and one op on the stack replaces an op in each step. The results must not be larger
than what the loop reads or stacks anyway, nor too large for all steps at once: the weights of many layers are cast one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, jaxpr_as_fun

from jax2tf import effects
from jax2tf.idioms._dataflow import Dataflow, Equations, is_array
from jax2tf.idioms._loops import Scan, call_of, taken_apart
from jax2tf.jaxprs import part, replaced, variables
from jax2tf.lowering._scans import ELEMENTWISE

# One op for one step, one op for all of them.
_MAPPED = {
  *(*ELEMENTWISE, P.select_n_p, P.and_p, P.or_p, P.not_p, P.xor_p, P.dot_general_p),
  *(P.reshape_p, P.squeeze_p, P.transpose_p, P.broadcast_in_dim_p, P.rev_p, P.slice_p, P.reduce_sum_p, P.reduce_max_p),
}
_MOST_BYTES = 2**26
# Not worth hoisting by themselves.
_SHAPES = {P.reshape_p, P.squeeze_p, P.broadcast_in_dim_p}


def hoisted(flow: Dataflow, eqn: Any) -> Equations | None:
  """scan(consts, xs) -> scan(what its steps compute of them)."""
  del flow
  if (scan := taken_apart(eqn)) is None:
    return None
  early = _early(scan)
  wanted, rest = _divided(scan, early)
  used = {v for e in early for v in variables(e.invars)}
  spared = [v for v in scan.body.invars[scan.n_outer :] if v in used and v not in rest]
  work = [e for e in early if e.primitive not in _SHAPES]
  inside = [v for v in wanted if v in rest]
  same = {*scan.body.invars[: scan.n_consts]}.intersection(variables(scan.body.outvars[scan.n_carry :]))
  if len(inside) >= len(spared) + len(work) + len(same):
    return None
  return call_of(eqn, lambda *operands: _call(scan, early, wanted, inside, operands))


def _early(scan: Scan) -> list[Any]:
  """The equations that follow from consts and xs."""
  body = scan.body
  xs = body.invars[scan.n_outer :]
  limit = min(_MOST_BYTES / scan.length, max((_bytes(v) for v in (*xs, *body.outvars[scan.n_carry :])), default=0))
  fixed, varying, early = {*body.invars[: scan.n_consts], *body.constvars}, set(xs), []
  for eqn in body.eqns:
    of = {*variables(eqn.invars)}
    if eqn.primitive not in _MAPPED or not of or not of <= fixed | varying or not all(map(is_array, of)):
      continue
    if of <= fixed:
      fixed.add(eqn.outvars[0])
    elif _bytes(eqn.outvars[0]) > limit or (eqn.primitive is P.dot_general_p and of <= varying):
      continue
    else:
      varying.add(eqn.outvars[0])
    early.append(eqn)
  return early


def _bytes(v: Any) -> float:
  """The bytes of a value, as far as its sizes are known."""
  return math.prod(n for n in v.aval.shape if isinstance(n, int)) * v.aval.dtype.itemsize


def _divided(scan: Scan, early: Sequence[Any]) -> tuple[list[Any], set[Any]]:
  """(early results that are asked for, all that the rest of a step uses)."""
  body, ids = scan.body, set(map(id, early))
  eqns = effects.needed([e for e in body.eqns if id(e) not in ids], body.outvars)
  made = [v for e in early for v in e.outvars]
  rest = {*variables(body.outvars[: scan.n_carry]), *(v for e in eqns for v in variables(e.invars))}
  stacked = set(variables(body.outvars[scan.n_carry :]))
  return [v for v in made if v in rest or v in stacked], rest


def _call(scan: Scan, early: Sequence[Any], wanted: Sequence[Any], inside: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
  """The results of the scan."""
  body, ids = scan.body, set(map(id, early))
  consts, init = body.invars[: scan.n_consts], list(operands[scan.n_consts : scan.n_outer])
  fixed = dict(zip([*consts, *body.constvars], [*operands[: scan.n_consts], *body.consts], strict=True))
  rows = dict(zip(body.invars[scan.n_outer :], operands[scan.n_outer :], strict=True))
  for eqn in early:
    known = rows if any(v in rows for v in variables(eqn.invars)) else fixed
    before = part(body, [eqn], eqn.outvars)
    fun: Any = jaxpr_as_fun(before)
    fun = fun if known is fixed else jax.vmap(fun, [0 if v in rows else None for v in before.invars])
    known[eqn.outvars[0]] = fun(*(rows[v] if v in rows else fixed[v] for v in before.invars))[0]
  stacked = body.outvars[scan.n_carry :]
  rows |= {v: jnp.broadcast_to(fixed[v], (scan.length, *v.aval.shape)) for v in variables(stacked) if v in fixed}
  outvars = [*body.outvars[: scan.n_carry], *(v for v in stacked if isinstance(v, Literal) or v not in rows)]
  eqns = effects.needed([e for e in body.eqns if id(e) not in ids], outvars)
  used = {*variables(outvars), *(v for e in eqns for v in variables(e.invars))}
  consts, xs = [v for v in (*consts, *inside) if v in used and v in fixed], [v for v in rows if v in used and v not in fixed]
  lean = jaxpr_as_fun(replaced(body, eqns=eqns, invars=[*consts, *body.invars[scan.n_consts : scan.n_outer], *xs], outvars=outvars))

  def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
    results = [*lean(*(fixed[v] for v in consts), *carry, *x)]
    return results[: scan.n_carry], results[scan.n_carry :]

  last, ys = lax.scan(step, init, [rows[v] for v in xs], **scan.how) if outvars else ([], [])
  left = iter(ys)
  return [*last, *(next(left) if isinstance(v, Literal) or v not in rows else rows[v] for v in stacked)]


IDIOMS = {P.scan_p: hoisted}
