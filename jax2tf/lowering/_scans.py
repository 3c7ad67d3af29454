"""Hoists elementwise equations out of a scan body: outputs computable from other stacked values are computed once, after the loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax.extend.core import Literal

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.jaxprs import ClosedJaxpr, replaced

ELEMENTWISE = {
  *(P.add_p, P.sub_p, P.mul_p, P.div_p, P.max_p, P.min_p, P.neg_p, P.sign_p, P.abs_p, P.integer_pow_p, P.square_p, P.sqrt_p, P.rsqrt_p),
  *(P.exp_p, P.sin_p, P.cos_p, P.tanh_p, P.logistic_p, P.eq_p, P.ne_p, P.lt_p, P.le_p, P.gt_p, P.ge_p, P.convert_element_type_p),
  _jax_compat.optional_primitive("one_minus_square_p"),  # JAX 0.12
}

Tensors = list[tf.Tensor]


def split(body: ClosedJaxpr, n_carry: int, n_outer: int) -> tuple[ClosedJaxpr, Callable[..., Tensors]]:
  """(a body that stacks less, `finish(ctx, xs, ys) -> all stacked results`).

  JAX's derivative of a step stacks `1 - tanh(x)**2` beside `tanh(x)`: in the loop that is four ops more for each step and
  one more array to stack; behind it, three ops.

  Args:
    body: (consts, carry, xs) -> (carry, ys).
    n_carry: how many values are carried.
    n_outer: how many consts and carried values come before the xs.
  """
  late = _late(body, n_carry, body.invars[n_outer:])
  if not late:
    return body, lambda ctx, xs, ys: list(ys)
  made, rest = {eqn.outvars[0] for eqn in late}, set(map(id, late))
  stacked = list(dict.fromkeys(v for v in body.outvars[n_carry:] if v not in made))
  lean = replaced(body, eqns=[e for e in body.eqns if id(e) not in rest], outvars=[*body.outvars[:n_carry], *stacked])
  needed = {v for eqn in late for v in _variables(eqn)}

  def finish(ctx: RuleContext, xs: Sequence[tf.Tensor], ys: Sequence[tf.Tensor]) -> Tensors:
    length = ctx.avals_out[n_carry].shape[0]
    rows = dict(zip([*body.invars[n_outer:], *stacked], [*xs, *ys], strict=True))
    known: list[Any] = [v for v in rows if v in needed]
    avals = [jax.ShapeDtypeStruct((length, *v.aval.shape), v.aval.dtype) for v in known]
    wanted = [v for v in body.outvars[n_carry:] if v in made]
    behind = jax.make_jaxpr(functools.partial(_behind, late, known, wanted))(*avals)
    rows |= zip(wanted, ctx.lower(behind, *(rows[v] for v in known)), strict=True)
    return [rows[v] for v in body.outvars[n_carry:]]

  return lean, finish


def _late(jaxpr: Any, n_carry: int, xs: Sequence[Any]) -> list[Any]:
  """Elementwise equations that nothing in the loop waits for, and whose operands are stacked, or computed by such equations."""
  if any(isinstance(v, Literal) for v in jaxpr.outvars):
    return []
  carried, results = jaxpr.outvars[:n_carry], set(jaxpr.outvars[n_carry:])
  late = {id(eqn): eqn for eqn in jaxpr.eqns if eqn.primitive in ELEMENTWISE and _keeps_shape(eqn)}
  size = len(late) + 1
  while len(late) < size:  # an equation left in the loop keeps its operands there: repeat until nothing changes
    size, waited_for = len(late), set(carried)
    for eqn in reversed(jaxpr.eqns):
      if id(eqn) not in late or eqn.outvars[0] in waited_for:
        late.pop(id(eqn), None)
        waited_for.update(_variables(eqn))
    known = results.union(xs) - {eqn.outvars[0] for eqn in late.values()}
    for eqn in list(late.values()):
      if known.issuperset(_variables(eqn)):
        known.add(eqn.outvars[0])
      else:
        del late[id(eqn)]
  return list(late.values()) if any(eqn.outvars[0] in results for eqn in late.values()) else []


def _variables(eqn: Any) -> list[Any]:
  return [v for v in eqn.invars if not isinstance(v, Literal)]


def _keeps_shape(eqn: Any) -> bool:
  """Whether all operands are numbers or have the shape of the result, so that one more dimension changes nothing."""
  shape = eqn.outvars[0].aval.shape
  return all(v.aval.shape == (() if isinstance(v, Literal) else shape) for v in eqn.invars)


def _behind(eqns: Sequence[Any], known: Sequence[Any], wanted: Sequence[Any], *values: Any) -> list[Any]:
  env = dict(zip(known, values, strict=True))
  for eqn in eqns:
    operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
    env[eqn.outvars[0]] = eqn.primitive.bind(*operands, **eqn.params)
  return [env[v] for v in wanted]
