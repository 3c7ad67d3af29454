"""Shared code of the loop idioms: decomposes a scan, rebuilds one as a call of a JAX function, and
bounds what is held for all steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives as P
from jax import lax
from jax.extend.core import jaxpr_as_fun

from jax2tf import _jax_compat
from jax2tf._jax_compat.shape_poly import dimension_bounds
from jax2tf.idioms._dataflow import Dataflow, Equations, is_array
from jax2tf.idioms.loop_counters import counter_p
from jax2tf.jaxprs import ClosedJaxpr, Eqn, closed, part, variables
from jax2tf.traits import ARITHMETIC, COMPARISONS, LOGIC, MOVES, SUMS

# Primitives that are one op for one step, and one op for all steps: those of the cells of networks.
# Not all that is elementwise, because a step computes most numbers of its counter as fast as it
# reads them, and TF 2.21 keeps a number of a list in 1.7 kB.
MAPPED = (SUMS | ARITHMETIC | COMPARISONS | LOGIC | MOVES) | {
  P.abs_p,
  P.convert_element_type_p,
  P.cos_p,
  P.dot_general_p,
  P.exp_p,
  P.integer_pow_p,
  P.logistic_p,
  P.max_p,
  P.min_p,
  P.neg_p,
  P.not_p,
  _jax_compat.optional_primitive("one_minus_square_p"),  # JAX 0.12
  P.reduce_max_p,
  P.reduce_sum_p,
  P.rev_p,
  P.rsqrt_p,
  P.select_n_p,
  P.sign_p,
  P.sin_p,
  P.slice_p,
  P.sqrt_p,
  P.square_p,
  P.tanh_p,
}

_LONGEST = 2**20
# Bytes of all values that are held for all steps; of one product, at any size of the rows.
_MOST_BYTES, _SMALL = 2**26, 2**22
# How many times larger than a row a product may be; than all rows of a step, all values together
# where sizes are symbolic.
_LARGER, _IN_ALL = 4, 8


@dataclass(frozen=True)
class Scan:
  """A scan over a number of steps, without effects.

  Attributes:
    eqn: the equation.
    length: the number of steps; it may be symbolic.
    body: (consts, carry, xs) -> (carry, ys).
    n_consts: how many consts there are.
    n_carry: how many values are carried.
  """

  eqn: Eqn
  length: Any
  body: ClosedJaxpr
  n_consts: int
  n_carry: int

  @property
  def n_outer(self) -> int:
    """How many operands come before the xs."""
    return self.n_consts + self.n_carry

  @property
  def consts(self) -> list[Any]:
    """The variables of the body with the same value in each step."""
    return list(self.body.invars[: self.n_consts])

  @property
  def carry(self) -> list[Any]:
    """The carried variables of the body, before the step."""
    return list(self.body.invars[self.n_consts : self.n_outer])

  @property
  def xs(self) -> list[Any]:
    """The variables of the body that hold rows."""
    return list(self.body.invars[self.n_outer :])

  @property
  def carried(self) -> list[Any]:
    """The carried values after the step."""
    return list(self.body.outvars[: self.n_carry])

  @property
  def ys(self) -> list[Any]:
    """The values that the loop stacks."""
    return list(self.body.outvars[self.n_carry :])

  def rebuilt(
    self, step: Callable[..., Any], init: Sequence[Any], xs: Sequence[Any], operands: Sequence[Any]
  ) -> Any:
    """`lax.scan` of another body over the same steps; `operands` are those of this one."""
    how = {name: self.eqn.params[name] for name in ("reverse", "unroll")}
    if isinstance(self.length, int):
      return lax.scan(step, init, xs, self.length, **how)
    # lax.scan takes no symbolic length
    spare = () if xs else operands[self.n_outer : self.n_outer + 1]
    return lax.scan(lambda carry, x: step(carry, x[0]), init, (xs, spare), **how)


def parse_scan(eqn: Eqn) -> Scan | None:
  """The parts of a scan; None if its length is known and too small or far too large, or its body
  has effects."""
  params, body = eqn.params, closed(eqn.params["jaxpr"])
  length = params["length"]
  if body.effects or (isinstance(length, int) and not 2 <= length <= _LONGEST):
    return None
  return Scan(
    eqn,
    length,
    body,
    *_jax_compat.scan_split(params.get("num_consts"), params.get("num_carry"), params.get("ft_in")),
  )


def call_in_place_of(flow: Dataflow, eqn: Eqn, fun: Callable[..., Sequence[Any]]) -> Equations:
  """results = fun(operands) in the place of an equation. Counters are made inside, where a loop
  sees what they are."""
  producers = [flow.producer(v, counter_p) for v in eqn.invars]

  def scan(*operands: Any) -> Sequence[Any]:
    rest = iter(operands)
    return fun(*(counter_p.bind(**m.params) if m else next(rest) for m in producers))

  operands_of_call = [
    v for v, producer in zip(eqn.invars, producers, strict=True) if producer is None
  ]
  specs = [
    jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
    for v in operands_of_call
  ]
  with eqn.ctx.manager:
    [called] = jax.make_jaxpr(jax.jit(scan))(*specs).eqns
  of_call = {name: getattr(called, name) for name in ("primitive", "params", "effects")}
  return [eqn.replace(invars=operands_of_call, **of_call)]


def vectorise_steps(
  body: ClosedJaxpr, eqns: Sequence[Eqn], rows: dict[Any, Any], fixed: dict[Any, Any]
) -> None:
  """Computes equations of one result each for all steps at once.

  Args:
    body: the jaxpr that contains them.
    eqns: in order.
    rows: {variable: its values in all steps}, which is completed.
    fixed: {variable: its value in each step}, which is completed.
  """
  for eqn in eqns:
    known = rows if any(v in rows for v in variables(eqn.invars)) else fixed
    one = part(body, [eqn], eqn.outvars)
    fun: Any = jaxpr_as_fun(one)
    fun = fun if known is fixed else jax.vmap(fun, [0 if v in rows else None for v in one.invars])
    known[eqn.outvars[0]] = fun(*(rows[v] if v in rows else fixed[v] for v in one.invars))[0]


class MemoryBudget:
  """Decides which values of a step may be held for all steps at once.

  A value may be as large as a row that the loop reads or stacks. A product may be larger by a
  factor, or small in total. The sum of all values is bounded too. A symbolic size counts only if
  the bound holds for all its values.
  """

  def __init__(self, scan: Scan):
    self._length = scan.length
    self._rows = [_bytes(v) for v in variables([*scan.xs, *scan.ys]) if is_array(v)]
    self._all = sum(self._rows)
    self._taken: Any = 0

  def admits(self, v: Any, *, of_product: bool = False) -> bool:
    """Whether a value fits; if it does, it is counted."""
    size = _bytes(v)
    fits = any(_at_most(size, (_LARGER if of_product else 1) * row) for row in self._rows)
    if not fits and not (of_product and self._is_below(size, _SMALL)):
      return False
    taken = self._taken + size
    if not (
      self._is_below(taken, _MOST_BYTES)
      if self._is_known(taken)
      else _at_most(taken, _IN_ALL * self._all)
    ):
      return False
    self._taken = taken
    if of_product:  # elementwise functions of it are as large
      self._rows.append(size)
    return True

  def _is_known(self, size: Any) -> bool:
    return isinstance(self._length, int) and isinstance(size, int)

  def _is_below(self, size: Any, most: int) -> bool:
    return self._is_known(size) and size * self._length <= most


def _bytes(v: Any) -> Any:
  """The size of a value in bytes, which may be symbolic."""
  return math.prod(v.aval.shape) * v.aval.dtype.itemsize


def _at_most(size: Any, most: Any) -> bool:
  """Whether a size is provably no larger than another one."""
  difference = most - size
  return (difference if isinstance(difference, int) else dimension_bounds(difference)[0]) >= 0
