"""Shared code of the loop idioms: decomposes a scan, and rebuilds one as a call of a JAX function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jax2tf import _jax_compat
from jax2tf.idioms._dataflow import Equations
from jax2tf.jaxprs import ClosedJaxpr, closed

_LONGEST = 2**20


@dataclass(frozen=True)
class Scan:
  """A scan over a known number of steps, without effects.

  Attributes:
    eqn: the equation.
    length: the number of steps.
    body: (consts, carry, xs) -> (carry, ys).
    n_consts: how many consts there are.
    n_carry: how many values are carried.
  """

  eqn: Any
  length: int
  body: ClosedJaxpr
  n_consts: int
  n_carry: int

  @property
  def n_outer(self) -> int:
    """How many operands come before the xs."""
    return self.n_consts + self.n_carry

  @property
  def how(self) -> dict[str, Any]:
    """The keyword arguments of `lax.scan` for the same loop."""
    return {name: self.eqn.params[name] for name in ("length", "reverse", "unroll")}


def taken_apart(eqn: Any) -> Scan | None:
  """The parts of a scan; None if its length is unknown, too small or far too large, or its body has effects."""
  params, body = eqn.params, closed(eqn.params["jaxpr"])
  if not (isinstance(params["length"], int) and 2 <= params["length"] <= _LONGEST) or body.effects:
    return None
  return Scan(eqn, params["length"], body, *_jax_compat.scan_split(params.get("num_consts"), params.get("num_carry"), params.get("ft_in")))


def call_of(eqn: Any, fun: Callable[..., Sequence[Any]]) -> Equations:
  """results = fun(operands) in the place of an equation."""

  def scan(*operands: Any) -> Sequence[Any]:
    return fun(*operands)

  specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in eqn.invars]
  with eqn.ctx.manager:
    [called] = jax.make_jaxpr(jax.jit(scan))(*specs).eqns
  return [eqn.replace(primitive=called.primitive, params=called.params, effects=called.effects)]
