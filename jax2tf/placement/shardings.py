"""Which values of a jaxpr are sharded over several devices, and how."""

from __future__ import annotations

import itertools
from typing import Any

from jax.extend.core import Literal
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, Sharding

from jax2tf.jaxprs import Eqn, function_of, variables

_SHARDINGS = {
  "sharding",
  "out_sharding",
  "dst_sharding",
  "layout",
  "devices",
  "in_shardings",
  "out_shardings",
  "mesh",
}


def has_sharding(eqn: Eqn) -> bool:
  """Whether an equation shards a value over several devices."""
  values = (eqn.params[name] for name in _SHARDINGS.intersection(eqn.params))
  return any(
    map(
      is_sharded, itertools.chain.from_iterable(v if isinstance(v, tuple) else (v,) for v in values)
    )
  )


def is_sharded(sharding: Any) -> bool:
  """Whether a sharding, or a mesh, has several devices."""
  if isinstance(sharding, Mesh | AbstractMesh):
    return sharding.size > 1
  return isinstance(sharding, Sharding) and sharding.num_devices > 1


def explicit_sharding(aval: Any) -> Sharding | None:
  """The sharding that is part of the type of a value (f32[8@x,4]), or None."""
  sharding = getattr(aval, "sharding", None)
  is_explicit = sharding is not None and AxisType.Explicit in sharding.mesh.axis_types
  return sharding if is_explicit else None


def operand_shardings(jaxpr: Any) -> dict[Any, Any]:
  """Variable -> sharding, for the arguments, intermediate values and results of a jaxpr."""
  shardings = {
    v: s
    for v in variables((*jaxpr.invars, *jaxpr.outvars))
    if is_sharded(s := explicit_sharding(v.aval))
  }
  for eqn in jaxpr.eqns:
    params = eqn.params
    befores, afters = params.get("in_shardings", ()), params.get("out_shardings", ())
    if "in_specs" in params and isinstance(params.get("mesh"), Mesh | AbstractMesh):
      befores, afters = (
        [NamedSharding(params["mesh"], spec) for spec in params[specs]]
        for specs in ("in_specs", "out_specs")
      )
    elif inner := function_of(eqn):
      of = operand_shardings(inner)
      befores = [
        s if is_sharded(s) else of.get(v)
        for s, v in zip(befores or [None] * len(inner.invars), inner.invars, strict=True)
      ]
      results = [None if isinstance(v, Literal) else of.get(v) for v in inner.outvars]
      afters = [
        s if is_sharded(s) else r
        for s, r in zip(afters or [None] * len(results), results, strict=True)
      ]
    for v, sharding in (
      *zip(eqn.invars, befores, strict=False),
      *zip(eqn.outvars, afters, strict=False),
    ):
      if is_sharded(sharding) and not isinstance(v, Literal):
        shardings.setdefault(v, sharding)
  return shardings
