"""What one step of the grid of a Pallas kernel computes.

The kernel's refs have been discharged, so that it maps values to their final values. It is traced
once more, because its equations ask for the step, also inside loops and branches. A value that a
branch or a loop hands on unchanged is no result of it, so that a kernel writes only what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, Literal

from jax2tf import _jax_compat
from jax2tf._jax_compat import pallas
from jax2tf.errors import InexpressibleError
from jax2tf.expansions.blocks import uninitialized
from jax2tf.expansions.retracing import CALLED, Retracing, Rule
from jax2tf.jaxprs import Eqn, opened

# Hints to a compiler, and waiting for memory.
_IDENTITIES = frozenset({"max_contiguous", "multiple_of", "with_memory_space_constraint"})
_NOTHING = frozenset({"debug_barrier", "delay", "trace_start", "trace_stop"})


@dataclass(frozen=True)
class Step:
  """One step of a grid, as a kernel sees it: without the dimensions that `jax.vmap` added.

  Attributes:
    indices: i32[], of each dimension.
    bounds: of each dimension.
    names: of the dimensions; empty if they have none.
  """

  indices: Sequence[Any]
  bounds: Sequence[Any]
  names: Sequence[Any] = ()


class _InStep(Retracing):
  """Evaluates the equations of a kernel in a step of its grid."""

  def __init__(self, step: Step):
    rules: dict[str, Rule] = {name: _of_step(rule, step) for name, rule in _RULES.items()}
    rules |= dict.fromkeys(_NOTHING, lambda eqn, *operands: [])
    rules |= dict.fromkeys(_IDENTITIES, lambda eqn, *operands: operands[:1])
    super().__init__(rules)


def _of_step(rule: Callable[..., Sequence[Any]], step: Step) -> Rule:
  return lambda eqn, *operands: rule(eqn, step, *operands)


def evaluate(jaxpr: Any, step: Step, *operands: Any) -> list[Any]:
  """The results of a discharged kernel, or of a jaxpr inside it, in a step."""
  return _InStep(step).evaluate(jaxpr, *operands)


def _program_id(eqn: Eqn, step: Step) -> Sequence[Any]:
  return [step.indices[eqn.params["axis"]]]


def _num_programs(eqn: Eqn, step: Step) -> Sequence[Any]:
  return [jnp.asarray(step.bounds[eqn.params["axis"]], jnp.int32)]


def _axis_index(eqn: Eqn, step: Step) -> Sequence[Any]:
  """i32[]: the index of a core, in the mesh of a `pl.kernel`.

  Raises:
    InexpressibleError: it is an axis of a mesh of devices.
  """
  name = eqn.params["axis_name"]
  if name not in step.names:
    raise InexpressibleError(f"it asks for the index of a device along {name!r}")
  return [step.indices[list(step.names).index(name)]]


def _run_scoped(eqn: Eqn, step: Step, *operands: Any) -> Sequence[Any]:
  """
  Raises:
    InexpressibleError: the programs of several steps share the memory.
  """
  if eqn.params["collective_axes"]:
    raise InexpressibleError("run_scoped shares memory between steps (collective_axes)")
  body = pallas.run_scoped(eqn.params["jaxpr"], step.names, step.bounds)
  scoped: list[Any] = [v.aval for v in opened(body).invars[len(operands) :]]
  memory = [uninitialized(aval.shape, aval.dtype) for aval in scoped]
  return evaluate(body, step, *operands, *memory)[: len(eqn.outvars)]


def _cond(eqn: Eqn, step: Step, index: Any, *operands: Any) -> Sequence[Any]:
  branches = eqn.params["branches"]
  forwards = _forwards(eqn)
  changed = [i for i, position in enumerate(forwards) if position is None]

  def function_of(branch: Any) -> Callable[..., Any]:
    def run(*operands: Any) -> Sequence[Any]:
      results = evaluate(branch, step, *operands)
      return [results[i] for i in changed]

    return run

  new = lax.switch(index, [function_of(branch) for branch in branches], *operands)
  return _merged(forwards, [index, *operands], new)


def _while(eqn: Eqn, step: Step, *operands: Any) -> Sequence[Any]:
  params = eqn.params
  n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
  cond_consts, body_consts = operands[:n_cond], operands[n_cond : n_cond + n_body]
  start = operands[n_cond + n_body :]
  forwards = _forwards(eqn)
  changed = [i for i, position in enumerate(forwards) if position is None]

  def carry(changing: Sequence[Any]) -> list[Any]:
    return _merged(forwards, operands, changing)

  def run(changing: Sequence[Any]) -> Sequence[Any]:
    results = evaluate(params["body_jaxpr"], step, *body_consts, *carry(changing))
    return [results[i] for i in changed]

  def goes_on(changing: Sequence[Any]) -> Any:
    return evaluate(params["cond_jaxpr"], step, *cond_consts, *carry(changing))[0]

  return carry(lax.while_loop(goes_on, run, [start[i] for i in changed]))


def _scan(eqn: Eqn, step: Step, *operands: Any) -> Sequence[Any]:
  params = eqn.params
  n_consts, n_carry = _scan_split(params)
  consts, xs = operands[:n_consts], operands[n_consts + n_carry :]
  start = operands[n_consts : n_consts + n_carry]
  forwards = _forwards(eqn)[:n_carry]
  changed = [i for i, position in enumerate(forwards) if position is None]

  def run(changing: Sequence[Any], rows: Sequence[Any]) -> Any:
    carry = _merged(forwards, operands, changing)
    results = evaluate(params["jaxpr"], step, *consts, *carry, *rows)
    return [results[i] for i in changed], results[n_carry:]

  last, ys = lax.scan(
    run,
    [start[i] for i in changed],
    list(xs),
    length=params["length"],
    reverse=params["reverse"],
    unroll=params["unroll"],
  )
  return [*_merged(forwards, operands, last), *ys]


def _merged(
  forwards: Sequence[int | None], operands: Sequence[Any], changed: Sequence[Any]
) -> list[Any]:
  """Results, of which some are operands at these positions and the others are `changed`."""
  new = iter(changed)
  return [next(new) if position is None else operands[position] for position in forwards]


def _reciprocal(eqn: Eqn, step: Step, x: Any) -> Sequence[Any]:
  """Exact also where the user allows an approximation, of which each device has its own."""
  return [1 / x]


def _roll(eqn: Eqn, step: Step, x: Any, shift: Any) -> Sequence[Any]:
  """x[..., n, ...] by `shift` places along an axis; row i of another one by `i * stride` more."""
  axis, stride, of = (eqn.params[name] for name in ("axis", "stride", "stride_axis"))
  if stride is None:
    return [jnp.roll(x, shift, axis)]
  rows = jnp.split(x, x.shape[of], of)
  return [
    jnp.concatenate([jnp.roll(row, shift + i * stride, axis) for i, row in enumerate(rows)], of)
  ]


# Primitive -> (equation, step, *operands) -> results; all others are traced as they are.
_RULES: Mapping[str, Callable[..., Sequence[Any]]] = {
  "axis_index": _axis_index,
  "cond": _cond,
  "num_programs": _num_programs,
  "program_id": _program_id,
  "reciprocal": _reciprocal,
  "roll": _roll,
  "run_scoped": _run_scoped,
  "scan": _scan,
  "while": _while,
}


@_jax_compat.weakly_cached
def forwarded(jaxpr: Jaxpr) -> Sequence[int | None]:
  """For each result of a jaxpr the position of the operand that it surely is; else None."""
  origins: dict[Any, int] = {v: i for i, v in enumerate(jaxpr.invars)}
  for eqn in jaxpr.eqns:
    for v, position in zip(eqn.outvars, _forwards(eqn), strict=True):
      source = None if position is None else eqn.invars[position]
      if source is not None and not isinstance(source, Literal) and source in origins:
        origins[v] = origins[source]
  return [None if isinstance(v, Literal) else origins.get(v) for v in jaxpr.outvars]


def _forwards(eqn: Eqn) -> Sequence[int | None]:
  """For each result of an equation the position of the operand that it surely is; else None."""
  name, params = eqn.primitive.name, eqn.params
  if name in CALLED:
    return forwarded(opened(params[CALLED[name]]))
  if eqn.primitive is P.remat_p:
    return forwarded(opened(params["jaxpr"]))
  if eqn.primitive is P.cond_p:
    of_branches = [forwarded(opened(branch)) for branch in params["branches"]]
    same = [set(positions) for positions in zip(*of_branches, strict=True)]
    only = [next(iter(positions)) if len(positions) == 1 else None for positions in same]
    return [None if position is None else position + 1 for position in only]
  if eqn.primitive is P.while_p:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    body = forwarded(opened(params["body_jaxpr"]))
    return [
      n_cond + position if position == n_body + i else None for i, position in enumerate(body)
    ]
  if eqn.primitive is P.scan_p:
    n_consts, n_carry = _scan_split(params)
    body = forwarded(opened(params["jaxpr"]))
    return [
      position if position == n_consts + i and i < n_carry else None
      for i, position in enumerate(body)
    ]
  return [None] * len(eqn.outvars)


def _scan_split(params: Mapping[str, Any]) -> tuple[int, int]:
  """(number of constants, number of carried values) of a scan."""
  return _jax_compat.scan_split(*map(params.get, ("num_consts", "num_carry", "ft_in")))
