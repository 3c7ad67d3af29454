"""Normalises a jaxpr for matching: inlines calls, merges duplicates, folds constants, and unifies inserted dimensions.

An idiom sees one jaxpr only, and `jax.nn` wraps nearly all its functions in `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.extend.core.primitives as P
import numpy as np
from jax.extend.core import Literal, Var

from jax2tf import _jax_compat
from jax2tf.idioms._dataflow import same
from jax2tf.jaxprs import ClosedJaxpr, opened, replaced, variables
from jax2tf.lowering._movement import is_one
from jax2tf.placement.shardings import has_sharding

# Equations that are folded if all operands are literals, such as the n - 0 of a variance.
_OF_NUMBERS: Mapping[Any, Callable[..., Any]] = {
  P.sub_p: np.subtract,
  P.add_p: np.add,
  P.mul_p: np.multiply,
  P.gt_p: np.greater,
  P.sqrt_p: np.sqrt,
  P.convert_element_type_p: np.asarray,
}


# Equal operands give different numbers.
_NEVER_SHARED = (P.rng_uniform_p,)


def inlined(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The same function with plain `jit` calls inlined; functions with custom derivative rules stay calls."""
  flat = Flat()
  flat.add(jaxpr.eqns)
  results = [flat.read(v) for v in jaxpr.outvars]
  return replaced(jaxpr, eqns=_used(flat.eqns, results), outvars=results)


def _used(eqns: Sequence[Any], results: Sequence[Any]) -> list[Any]:
  """The equations that results need: an idiom counts the uses of a value."""
  needed, kept = set(variables(results)), []
  for eqn in reversed(eqns):
    if eqn.effects or needed.intersection(eqn.outvars):
      needed.update(variables(eqn.invars))
      kept.append(eqn)
  return kept[::-1]


def substituted(jaxpr: ClosedJaxpr, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
  """(the equations of a function on these operands, its results)."""
  flat = Flat(dict(zip(jaxpr.invars, operands, strict=True)), inside=True)
  flat.add(jaxpr.eqns)
  return flat.eqns, [flat.read(v) for v in jaxpr.outvars]


class Flat:
  """A sequence of equations without duplicates.

  Args:
    atoms: {variable of the equations to add: its replacement}.
    inside: whether to make new variables, because the equations may be added twice.
  """

  def __init__(self, atoms: dict[Any, Any] | None = None, *, inside: bool = False):
    self.eqns: list[Any] = []
    self._atoms = atoms or {}
    self._inside = inside
    self._known: dict[Any, list[Any]] = {}
    self._maker: dict[Any, Any] = {}

  def read(self, atom: Any) -> Any:
    """The replacement of an atom of the added equations."""
    return atom if isinstance(atom, Literal) else self._atoms.get(atom, atom)

  def add(self, eqns: Sequence[Any]) -> None:
    """Adds equations, with the calls among them inlined."""
    for eqn in eqns:
      operands = [self.read(v) for v in eqn.invars]
      results = self._called(eqn, operands) if _is_plain(eqn) else self._simpler(eqn.replace(invars=operands))
      self._atoms.update(zip(eqn.outvars, results, strict=True))

  def _called(self, call: Any, operands: Sequence[Any]) -> list[Any]:
    inner = opened(call.params["jaxpr"])
    atoms, was_inside = self._atoms, self._inside
    self._atoms, self._inside = dict(zip(inner.invars, operands, strict=True)), True
    self.add([_jax_compat.in_place_of(call, eqn) for eqn in inner.eqns])
    results = [self.read(v) for v in inner.outvars]
    self._atoms, self._inside = atoms, was_inside
    return results

  def _simpler(self, eqn: Any) -> list[Any]:
    """The results of an equation. It is added only if it cannot be folded and no equal one is there."""
    if (number := _number(eqn)) is not None:
      return [number]
    if eqn.primitive is P.select_n_p and isinstance(eqn.invars[0], Literal):
      which, *cases = eqn.invars
      return [cases[min(max(int(which.val), 0), len(cases) - 1)]]  # as XLA, which clips it
    eqn = self._inserting(eqn)
    if (source := self._before(eqn)) is not None:
      return [source]
    key = _key(eqn)
    if key in self._known:
      return self._known[key]
    if self._inside:
      eqn = eqn.replace(outvars=[Var(v.aval) for v in eqn.outvars])
    self._maker.update((v, eqn) for v in eqn.outvars)
    self.eqns.append(eqn)
    self._known[key] = list(eqn.outvars)
    return self._known[key]

  def _inserting(self, eqn: Any) -> Any:
    """A reshape that only inserts dimensions as broadcast_in_dim, and two of these as one."""
    if eqn.primitive is P.reshape_p and eqn.params["dimensions"] is None and len(eqn.invars) == 1:
      shape, sizes = eqn.invars[0].aval.shape, eqn.params["new_sizes"]
      wide = tuple(d for d, size in enumerate(sizes) if not is_one(size))
      if len(shape) < len(sizes) and same(shape, [sizes[d] for d in wide]):
        eqn = eqn.replace(primitive=P.broadcast_in_dim_p, params={"shape": sizes, "broadcast_dimensions": wide, "sharding": None})
    if eqn.primitive is not P.broadcast_in_dim_p or isinstance(eqn.invars[0], Literal):
      return eqn
    before = self._maker.get(eqn.invars[0])
    if before is None or before.primitive is not P.broadcast_in_dim_p or len(before.invars) > 1 or len(eqn.invars) > 1:
      return eqn
    dims = tuple(int(eqn.params["broadcast_dimensions"][int(d)]) for d in before.params["broadcast_dimensions"])
    return eqn.replace(invars=before.invars, params=eqn.params | {"broadcast_dimensions": dims})

  def _before(self, eqn: Any) -> Any:
    """The value before a dimension was inserted that this squeeze removes, as `jax.vmap` of a convolution does; else None."""
    inserted = self._maker.get(eqn.invars[0]) if eqn.primitive is P.squeeze_p and not isinstance(eqn.invars[0], Literal) else None
    if inserted is None or inserted.primitive is not P.broadcast_in_dim_p or len(inserted.invars) > 1:
      return None
    (source,) = inserted.invars
    kept = [d for d in range(len(inserted.outvars[0].aval.shape)) if d not in eqn.params["dimensions"]]
    alike = not isinstance(source, Literal) and same(source.aval.shape, eqn.outvars[0].aval.shape)
    return source if alike and [int(d) for d in inserted.params["broadcast_dimensions"]] == kept else None


def _number(eqn: Any) -> Literal | None:
  """The result of an equation whose operands are literals; else None."""
  if eqn.primitive not in _OF_NUMBERS or not all(isinstance(v, Literal) and not np.shape(v.val) for v in eqn.invars):
    return None
  aval = eqn.outvars[0].aval
  if not isinstance(aval.dtype, np.dtype):
    return None
  values = [np.asarray(v.val, v.aval.dtype) for v in eqn.invars]
  return Literal(np.asarray(_OF_NUMBERS[eqn.primitive](*values)).astype(aval.dtype)[()], aval)


def _key(eqn: Any) -> Any:
  """A key that equations with equal results share."""
  key = eqn.primitive, eqn.ctx, tuple(eqn.params.items()), tuple(map(_hashable, eqn.invars))
  try:
    hash(key)
  except TypeError:  # such as of NumPy arrays
    return object()
  return object() if eqn.effects or eqn.primitive in _NEVER_SHARED else key


def _hashable(atom: Any) -> Any:
  return (str(atom.aval), np.asarray(atom.val).tobytes()) if isinstance(atom, Literal) else atom


def _is_plain(eqn: Any) -> bool:
  return eqn.primitive is P.jit_p and not (eqn.effects or has_sharding(eqn) or eqn.params["jaxpr"].consts)
