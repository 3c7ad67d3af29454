"""The scalars of a loop that depend only on its counters.

JAX's fori_loop with static bounds is a scan that carries its counter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.extend.core.primitives as P
import numpy as np
from jax.extend.core import Literal

from jax2tf.idioms._dataflow import Dataflow, is_array
from jax2tf.idioms._loops import Scan
from jax2tf.idioms.loop_counters import counter_p
from jax2tf.jaxprs import Eqn, variables

# One number for each step, in the order of the xs.
Numbers = Any


def _select(which: Numbers, *cases: Numbers) -> Numbers:
  return np.stack(cases)[np.clip(which.astype(np.int64), 0, len(cases) - 1), np.arange(len(which))]


_ARITHMETIC: dict[Any, Callable[..., Numbers]] = {
  P.add_p: np.add,
  P.sub_p: np.subtract,
  P.mul_p: np.multiply,
  P.neg_p: np.negative,
  P.max_p: np.maximum,
  P.min_p: np.minimum,
  P.eq_p: np.equal,
  P.ne_p: np.not_equal,
  P.lt_p: np.less,
  P.le_p: np.less_equal,
  P.gt_p: np.greater,
  P.ge_p: np.greater_equal,
  P.and_p: np.bitwise_and,
  P.or_p: np.bitwise_or,
  P.not_p: np.invert,
  P.select_n_p: _select,
  # Of one element each.
  P.convert_element_type_p: lambda x: x,
  P.broadcast_in_dim_p: lambda x: x,
  P.reshape_p: lambda x: x,
  P.squeeze_p: lambda x: x,
}


def numbers_of(flow: Dataflow, scan: Scan) -> tuple[dict[Any, Numbers], dict[Any, Any]]:
  """({variable of the body with one element: its values, if they depend only on counters}, {carried
  counter: its value after the loop})."""
  known, counters = dict[Any, Numbers](), dict[Any, Any]()
  operands = scan.eqn.invars
  steps = np.arange(scan.length)
  step_numbers = steps[::-1] if scan.eqn.params["reverse"] else steps
  producer = {v: eqn for eqn in scan.body.eqns for v in eqn.outvars}
  for v, operand, out in zip(
    scan.carry, operands[scan.n_consts : scan.n_outer], scan.carried, strict=True
  ):
    if (
      isinstance(operand, Literal)
      and _is_number(v)
      and (by := _added(producer, v, out)) is not None
    ):
      first, step = (int(np.asarray(number).astype(np.int64)) for number in (operand.val, by))
      exact = first + step * step_numbers
      # otherwise it wraps, and remains carried
      if (exact.astype(v.aval.dtype).astype(np.int64) == exact).all():
        known[v] = exact.astype(v.aval.dtype)
        counters[v] = np.asarray(first + step * scan.length).astype(v.aval.dtype)
  for v, operand in zip(scan.xs, operands[scan.n_outer :], strict=True):
    if _is_number(v) and (numbers := of_array(flow, operand)) is not None:
      known[v] = numbers
  eqns: list[Eqn] = list(scan.body.eqns)
  for eqn in eqns:
    if _is_arithmetic(eqn) and known.keys() >= {*variables(eqn.invars)}:
      numbers = [
        _repeated(atom, scan.length) if isinstance(atom, Literal) else known[atom]
        for atom in eqn.invars
      ]
      result: Any = eqn.outvars[0]
      known[result] = _ARITHMETIC[eqn.primitive](*numbers).astype(result.aval.dtype)
  return known, counters


def of_array(flow: Dataflow, atom: Any) -> Numbers:
  """The values of an array outside the loop, if they are known."""
  if isinstance(atom, Literal):
    return None
  if (eqn := flow.producer(atom, P.iota_p, counter_p)) is None:
    return flow.numbers.get(atom)
  length, params = atom.aval.shape[0], eqn.params
  if eqn.primitive is P.iota_p:
    return np.arange(length).astype(atom.aval.dtype) if isinstance(length, int) else None
  return (params["first"] + params["step"] * np.arange(length)).astype(atom.aval.dtype)


def arithmetic_progression(v: Any, numbers: Numbers) -> tuple[int, int] | None:
  """(first value, difference) of numbers with a constant difference; otherwise None."""
  if v.aval.dtype.kind not in "iu":
    return None
  wide = numbers.astype(np.int64)
  step = wide[1] - wide[0]
  return (int(wide[0]), int(step)) if (np.diff(wide) == step).all() else None


def _added(producer: Mapping[Any, Eqn], v: Any, out: Any) -> Any:
  """The literal that a step adds to a carried variable; None for any other step."""
  eqn = None if isinstance(out, Literal) else producer.get(out)
  if eqn is None or eqn.primitive not in (P.add_p, P.sub_p):
    return None
  a, b = eqn.invars
  if a is v and isinstance(b, Literal):
    return b.val if eqn.primitive is P.add_p else -np.asarray(b.val).astype(np.int64)
  return a.val if b is v and isinstance(a, Literal) and eqn.primitive is P.add_p else None


def _repeated(literal: Any, count: int) -> np.ndarray:
  return np.full(count, literal.val, literal.aval.dtype)


def _is_number(v: Any) -> bool:
  return is_array(v) and v.aval.dtype.kind in "iub" and v.aval.shape in ((), (1,))


def _is_arithmetic(eqn: Eqn) -> bool:
  """Whether NumPy computes the same."""
  return (
    eqn.primitive in _ARITHMETIC
    and _is_number(eqn.outvars[0])
    and eqn.params.get("out_dtype") is None
  )
