"""Replaces primitives without a lowering rule by the JAX functions that define them.

A library's primitive (Equinox' `unvmap_any`, Lineax' `linear_solve`) has its own derivative and
batching rules, which JAX has already applied; only its value is left to compute. If
`mlir.lower_fun` made its lowering, the equation becomes a call of that function. Otherwise its
`impl` may be a JAX function. `_OURS` has functions for what JAX computes outside of XLA. An
equation that cannot be traced stays, and preflight refuses it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend import source_info_util
from jax.extend.core import Jaxpr, Literal, Primitive

from jax2tf import _jax_compat, sparse, stablehlo
from jax2tf.errors import LoweringError
from jax2tf.expansions.retracing import first_line, specs_of, types_of
from jax2tf.jaxprs import Eqn, walk
from jax2tf.registry import refusal, rule_for

source_info_util.register_exclusion(__file__)


def _called(*operands: Any, exported: Any) -> Sequence[Any]:
  """The function of a `jax.export.Exported`, read from its StableHLO.

  Raises:
    ValueError: it has operations that JAX lacks.
  """
  try:
    return stablehlo.load(exported).flat(*operands)
  except LoweringError as error:
    gaps = [f"{gap.primitive}, {gap.where}: {gap.reason}" for gap in error.gaps]
    raise ValueError("; ".join(gaps)) from error


# (module, name of a primitive in it) -> its definition. A function with the primitive has imported
# it.
_OURS = {
  ("jax.experimental.sparse.linalg", "spsolve_p"): sparse.spsolve,
  ("jax._src.export._export", "call_exported_p"): _called,
}


@_jax_compat.weakly_cached
def expanded(jaxpr: Jaxpr) -> Sequence[Eqn]:
  """The equations of a jaxpr, with calls of JAX functions for the primitives without a rule."""
  return list(map(expanded_equation, jaxpr.eqns))


def why_not(eqn: Eqn) -> str | None:
  """Why an equation cannot be replaced, as a clause after "and"; None if it can."""
  try:
    _call(eqn)
  except Exception as error:
    return str(error)
  return None


def expanded_equation(eqn: Eqn) -> Eqn:
  """The equation, as a call of a JAX function if its primitive has no rule."""
  if rule_for(eqn.primitive) is None and refusal(eqn.primitive) is None:
    # any exception of a library's code; preflight reports it by `why_not`
    with contextlib.suppress(Exception):
      return _call(eqn)
  return eqn


def _call(eqn: Eqn) -> Eqn:
  """The equation as a call, `jit`, of the function that defines its primitive.

  Raises:
    Exception: there is no such function, or it is not exactly this equation; str() of it follows
      "and".
  """
  if eqn.effects:
    raise ValueError("it has side effects")
  if not all(isinstance(v.aval, ShapedArray) for v in (*eqn.invars, *eqn.outvars)):
    raise ValueError("its operands or results are not arrays")
  fun = _ours(eqn.primitive) or _jax_compat.lowered_function(eqn.primitive)
  kind = "lowering" if fun else "impl"
  # Outside of jit, impl gets concrete operands; its result may depend on a constant.
  known = [None if fun else _constant(v) for v in eqn.invars]

  def call(*operands: Any) -> Any:
    values = [x if value is None else value for x, value in zip(operands, known, strict=True)]
    return (fun or eqn.primitive.impl)(*values, **eqn.params)

  call.__name__ = eqn.primitive.name
  try:
    with eqn.ctx.manager:
      traced = jax.make_jaxpr(jax.jit(call))(*specs_of(eqn.invars)).jaxpr
      [called] = traced.eqns
  except Exception as error:
    raise ValueError(
      f"its {kind} is not a JAX function: {type(error).__name__}: {first_line(error)}"
    ) from error
  if (called.invars, called.outvars) != (traced.invars, traced.outvars):
    raise ValueError(f"its {kind} holds a tracer of another trace")
  if any(_same(inner, eqn) for inner in walk(called.params["jaxpr"])):
    raise ValueError(f"its {kind} is not a JAX function")
  types, declared = (types_of(e.outvars) for e in (called, eqn))
  if types != declared:
    raise ValueError(f"its {kind} gives {types} where its abstract evaluation says {declared}")
  return eqn.replace(primitive=called.primitive, params=called.params)


def _ours(primitive: Primitive) -> Any:
  """The function of ours that defines a primitive; None if there is none."""
  for (module, name), fun in _OURS.items():
    if getattr(sys.modules.get(module), name, None) is primitive:
      return fun
  return None


def _constant(atom: Any) -> Any:
  """The value of an operand that is a constant of the same type as its aval; else None."""
  return atom.val if isinstance(atom, Literal) and jax.typeof(atom.val) == atom.aval else None


def _same(eqn: Eqn, other: Eqn) -> bool:
  """Whether the two equations are the same: an impl that only compiles its primitive does not
  define it."""
  of, and_of = (types_of(e.invars) for e in (eqn, other))
  return eqn.primitive is other.primitive and of == and_of and eqn.params == other.params
