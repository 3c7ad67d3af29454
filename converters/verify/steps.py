"""Which results depend on numbers through a rounding, as in quantised networks.

Where a number lies in the middle of two integers, the last bit decides which of them it becomes,
and the result moves by a whole step. A right model then differs from JAX as JAX does from itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

_ROUNDINGS = {"round", "floor", "ceil", "sign"}


def is_rounding(eqn: Any) -> bool:
  """Whether a small change of its operand, a floating point number, may change the result by a
  step."""
  (operand, *_) = [x.aval for x in eqn.invars] or [None]
  if not _is_float(operand):
    return False
  if eqn.primitive.name == "convert_element_type":
    dtype = eqn.params["new_dtype"]
    return jnp.issubdtype(dtype, jnp.integer) or jnp.dtype(dtype).itemsize == 1 != _size(operand)
  return eqn.primitive.name in _ROUNDINGS


def of_results(jaxpr: Jaxpr, calls: set[str]) -> list[bool]:
  """For each result, whether it depends on an argument or a constant through a rounding.

  Args:
    calls: the names of primitives that only call their jaxpr.
  """
  operands = [_is_float(x.aval) for x in jaxpr.invars]
  return [stepped for _, stepped in _flow(jaxpr, [(one, False) for one in operands], calls)]


def _flow(
  jaxpr: Jaxpr, operands: Sequence[tuple[bool, bool]], calls: set[str]
) -> list[tuple[bool, bool]]:
  """For each result: (whether it depends on floats, whether through a rounding)."""
  known: dict[Any, tuple[bool, bool]] = {x: (_is_float(x.aval), False) for x in jaxpr.constvars}
  known |= dict(zip(jaxpr.invars, operands, strict=True))

  def of(atom: Any) -> tuple[bool, bool]:
    return (False, False) if isinstance(atom, Literal) else known[atom]

  for eqn in jaxpr.eqns:
    reached = [of(x) for x in eqn.invars]
    inner = list(jaxprs_in_params(eqn.params))
    if eqn.primitive.name in calls and inner:
      results = _flow(inner[0], reached, calls)
    else:
      depends = any(one for one, _ in reached)
      steps = is_rounding(eqn) or any(_has_rounding(one) for one in inner)
      stepped = any(one for _, one in reached) or (depends and steps)
      results = [(depends, stepped)] * len(eqn.outvars)
    known.update(zip(eqn.outvars, results, strict=True))
  return [of(x) for x in jaxpr.outvars]


def _has_rounding(jaxpr: Jaxpr) -> bool:
  return any(
    is_rounding(eqn) or any(map(_has_rounding, jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns
  )


def _is_float(aval: Any) -> bool:
  dtype = getattr(aval, "dtype", None)
  return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def _size(aval: Any) -> int:
  return int(aval.dtype.itemsize)
