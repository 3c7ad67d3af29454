"""Evaluates a jaxpr by tracing its equations again, some of them by other functions; also in the
bodies of loops and branches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.extend.core.primitives as P
import numpy as np
from jax.extend.core import Literal
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding, use_abstract_mesh

from jax2tf import jaxprs
from jax2tf._jax_compat import batching
from jax2tf.errors import InexpressibleError
from jax2tf.jaxprs import Eqn, closed, opened
from jax2tf.registry import is_of_jax

# Calls whose function is evaluated in their place, and the param that holds it. Derivatives have
# been taken, and a device calls the function of a custom_vmap itself.
CALLED = {
  "jit": "jaxpr",
  "closed_call": "call_jaxpr",
  "core_call": "call_jaxpr",
  "custom_jvp_call": "call_jaxpr",
  "custom_vjp_call": "call_jaxpr",
  "custom_vmap_call": "call",
  "custom_partitioning": "call",
}
# Which device has a value, and whether it varies, is of no importance on one device.
_IDENTITIES = frozenset(
  {
    "layout_constraint",
    "mesh_cast",
    "pcast",
    "preduced",
    "pvary",
    "reduced_vary_cast",
    "reduced_vary_cast_p",
    "relayout",
    "reshard",
    "sharding_constraint",
    "vary_unreduced_cast",
    "vary_unreduced_cast_p",
  }
)
_NO_MESH = AbstractMesh((), ())
_OF_MESHES = (Sharding, PartitionSpec, Mesh, AbstractMesh)


def specs_of(atoms: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
  """What to trace with, for operands such as these, without their meshes."""
  avals = [atom.aval for atom in atoms]
  return [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]


def types_of(atoms: Sequence[Any]) -> str:
  """The dtypes and shapes of operands or results, for comparisons and messages."""
  avals = [atom.aval for atom in atoms]
  return ", ".join(f"{aval.dtype}[{','.join(map(str, aval.shape))}]" for aval in avals)


def first_line(error: Exception) -> str:
  """Of the message of an error."""
  return str(error).partition("\n")[0]


def as_call(eqn: Eqn, name: str, fun: Callable[..., Sequence[Any]]) -> Eqn:
  """The equation as a call, `jit`, of a function with its results.

  Args:
    eqn: the equation.
    name: of the call.
    fun: takes the operands of the equation.

  Raises:
    InexpressibleError: the function has results of other types.
    Exception: what `fun` raises under a JAX trace.
  """
  fun.__name__ = name
  [called] = jax.make_jaxpr(jax.jit(fun))(*specs_of(eqn.invars)).eqns
  types, declared = types_of(called.outvars), types_of(eqn.outvars)
  if types != declared:
    raise InexpressibleError(f"it gives {types} where its call says {declared}")
  return eqn.replace(primitive=called.primitive, params=called.params, effects=called.effects)


class Rule(Protocol):
  """Computes the results of an equation in another way."""

  def __call__(self, eqn: Eqn, *operands: Any) -> Sequence[Any]:
    """All results of the equation."""


def identity(eqn: Eqn, *operands: Any) -> Sequence[Any]:
  """The rule of an equation that hands its operands on."""
  return operands


class Retracing:
  """Traces jaxprs again, without meshes and shardings.

  Attributes:
    rules: name of a primitive -> how its equations are computed. What places or shards values hands
      them on; all others are bound as they are.
  """

  def __init__(self, rules: Mapping[str, Rule]):
    self.rules = {**dict.fromkeys(_IDENTITIES, identity), **rules}

  def evaluate(self, jaxpr: Any, *operands: Any) -> list[Any]:
    """The results of a jaxpr, open (without constants) or closed."""
    whole = closed(jaxpr)
    inner = opened(whole)
    values: dict[Any, Any] = dict(zip(inner.constvars, whole.consts, strict=True))
    values.update(zip(inner.invars, operands, strict=True))

    def read(atom: Any) -> Any:
      # The value of a literal has the type of the mesh that it was made in.
      return np.asarray(atom.val, _dtype(atom)) if isinstance(atom, Literal) else values[atom]

    for eqn in inner.eqns:
      with batching.traced_as(eqn), use_abstract_mesh(_NO_MESH):
        results = self.results(eqn, [read(atom) for atom in eqn.invars])
      values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in inner.outvars]

  def retraced(self, jaxpr: Any) -> Any:
    """A closed jaxpr without meshes that computes the same."""
    specs = specs_of(opened(jaxpr).invars)
    return jax.make_jaxpr(lambda *operands: self.evaluate(jaxpr, *operands))(*specs)

  def results(self, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation."""
    name = eqn.primitive.name
    if name in self.rules and is_of_jax(eqn.primitive):
      return self.rules[name](eqn, *operands)
    if name in CALLED:
      return self._called(eqn, operands)
    if eqn.primitive is P.remat_p:  # its jaxpr is open, and so without constants
      inner = self.retraced(eqn.params["jaxpr"])
      operands = [*inner.consts, *operands]
      params = {**eqn.params, "jaxpr": jaxprs.constants_as_operands(inner)}
    else:
      params = jaxprs.map_params(eqn.params, self.retraced)
    return self.bind(eqn, *operands, **params)

  def bind(self, eqn: Eqn, *operands: Any, **params: Any) -> Sequence[Any]:
    """The results of the primitive of an equation with other params, which lose their meshes."""
    plain = {name: _without_mesh(value) for name, value in params.items()}
    results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(plain))
    return results if eqn.primitive.multiple_results else [results]

  def _called(self, call: Eqn, operands: Sequence[Any]) -> list[Any]:
    name = call.params.get("name", "")
    with jax.named_scope(name) if name else contextlib.nullcontext():
      return self.evaluate(call.params[CALLED[call.primitive.name]], *operands)


def _dtype(atom: Any) -> Any:
  return atom.aval.dtype


def _without_mesh(param: Any) -> Any:
  return None if isinstance(param, _OF_MESHES) else param
