"""Whether the loops of a function end soon.

A comparison also draws infinities, NaN and the largest integers. For them a loop may never end, as
that of `jnp.gcd` for the least int32 (JAX 0.12), or take hours: nothing stops a call of the
reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, Literal, jaxpr_as_fun, jaxprs_in_params

from .float64 import CALLS

MOST_STEPS = 2**16
"""The steps of a loop that ends soon: a runtime takes up to a second for them."""


class Ends:
  """Tells for which arguments the loops of a function end soon.

  Loops in the bodies of scans and branches are not counted.
  """

  def __init__(self, fun: Callable[..., Any]):
    """fun: a function of arrays."""
    self._fun = fun
    self._has_loops: bool | None = None
    self._end = jax.jit(self._ended)  # compiled once for inputs of the same shapes

  def __call__(self, *args: Any) -> bool:
    """Whether each `lax.while_loop` of `fun(*args)` takes fewer than `MOST_STEPS` steps; True of a
    function that JAX does not trace."""
    if self._has_loops is False:
      return True
    try:
      if self._has_loops is None:
        closed = jax.make_jaxpr(self._fun)(*args)
        # effects, such as prints, would be seen twice
        self._has_loops = not closed.effects and _has_loops(closed.jaxpr)
      return not self._has_loops or bool(self._end(*args))
    # a function in TensorFlow or NumPy, an equation that needs a rule of its own; an error of the
    # function is raised where it is compared
    except Exception:
      self._has_loops = False
      return True

  def _ended(self, *args: Any) -> Any:
    """bool[], whether the loops of `fun(*args)` have ended."""
    _, ends = _evaluated(jax.make_jaxpr(self._fun)(*args), jax.tree.leaves(args))
    return ends


def _has_loops(jaxpr: Jaxpr) -> bool:
  return any(
    eqn.primitive.name == "while"
    or (eqn.primitive.name in CALLS and any(map(_has_loops, jaxprs_in_params(eqn.params))))
    for eqn in jaxpr.eqns
  )


def _evaluated(closed: Any, operands: Sequence[Any]) -> tuple[list[Any], Any]:
  """(results of a jaxpr, which may be closed; bool[], whether its loops have ended)."""
  jaxpr, constants = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
  known: dict[Any, Any] = dict(
    zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *operands], strict=True)
  )

  def of(atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]

  have_ended = jnp.bool_(True)
  for eqn in jaxpr.eqns:
    inputs = [of(x) for x in eqn.invars]
    if eqn.primitive.name == "while":
      results, ends = _limited(eqn.params, inputs)
    elif eqn.primitive.name in CALLS:
      called = next(value for value in eqn.params.values() if hasattr(value, "eqns"))
      results, ends = _evaluated(called, inputs)
    else:
      result = eqn.primitive.bind(*inputs, **eqn.params)
      results, ends = result if eqn.primitive.multiple_results else [result], True
    have_ended &= ends
    known.update(zip(eqn.outvars, results, strict=True))
  return [of(x) for x in jaxpr.outvars], have_ended


def _limited(params: Any, operands: Sequence[Any]) -> tuple[list[Any], Any]:
  """A loop that stops after `MOST_STEPS` steps, or when a loop in its body does not end."""
  of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
  first, second = operands[:of_condition], operands[of_condition : of_condition + of_body]
  condition = jaxpr_as_fun(params["cond_jaxpr"])

  def goes_on(state: Any) -> Any:
    steps, have_ended, carried = state
    return have_ended & (steps < MOST_STEPS) & condition(*first, *carried)[0]

  def step(state: Any) -> Any:
    steps, have_ended, carried = state
    results, ends = _evaluated(params["body_jaxpr"], [*second, *carried])
    return steps + 1, have_ended & ends, results

  start = jnp.int32(0), jnp.bool_(True), list(operands[of_condition + of_body :])
  steps, have_ended, carried = lax.while_loop(goes_on, step, start)
  return carried, have_ended & (steps < MOST_STEPS)
