"""The producer of a value and the number of its uses, for idioms, and how they absorb equations."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn, Literal, Primitive, Var

from jax2tf.jaxprs import variables

Equations = list[Any]


class Dataflow:
  """The equations of one jaxpr while idioms rewrite them.

  Attributes:
    numbers: {array that a loop stacks: its values}, if they depend only on counters.
  """

  def __init__(self, eqns: Sequence[Any], results: Sequence[Any]):
    self.numbers: dict[Any, Any] = {}
    self._equations: list[Equations] = [[eqn] for eqn in eqns]
    self._maker: dict[Any, tuple[int, Any]] = {}
    self._uses: collections.Counter[Any] = collections.Counter(variables(results))
    for place, eqn in enumerate(eqns):
      self._note(place, eqn)

  def _note(self, place: int, eqn: JaxprEqn) -> None:
    for v in eqn.outvars:
      self._maker[v] = place, eqn
    self._uses.update(variables(eqn.invars))

  def maker(self, atom: Any, *primitives: Primitive) -> Any:
    """The equation that produces `atom`, if its primitive is among these (any, if none are given);
    otherwise None."""
    if isinstance(atom, Literal) or atom not in self._maker:
      return None
    eqn = self._maker[atom][1]
    return eqn if eqn.primitive in primitives or not primitives else None

  def sole(self, atom: Any, *primitives: Primitive) -> Any:
    """The producer of `atom` if it has exactly one use, so it may be fused; None otherwise."""
    eqn = self.maker(atom, *primitives)
    return eqn if eqn is not None and self._uses[atom] == 1 else None

  def uses(self, atom: Any) -> int:
    """How often equations and results use a value."""
    return self._uses[atom]

  def put(self, place: int, eqns: Equations) -> None:
    """Replaces the equations at one position, and removes equations whose results are no longer
    used."""
    old, self._equations[place] = self._equations[place], eqns
    for eqn in eqns:
      self._note(place, eqn)
    for eqn in old:
      self._release(eqn)

  def _release(self, eqn: JaxprEqn) -> None:
    for v in variables(eqn.invars):
      self._uses[v] -= 1
      if not self._uses[v] and v in self._maker:
        place, maker = self._maker[v]
        if not maker.effects and not any(self._uses[out] for out in maker.outvars):
          self._equations[place] = [kept for kept in self._equations[place] if kept is not maker]
          self._release(maker)

  def equations(self) -> Sequence[Any]:
    """The remaining equations in topological order."""
    return [eqn for eqns in self._equations for eqn in eqns]


def new_var(like: Any, shape: Sequence[Any]) -> Any:
  """A variable of the dtype of `like`, of another shape."""
  return Var(ShapedArray(tuple(shape), like.aval.dtype))


def reshape(eqn: JaxprEqn, source: Any, target: Any) -> Any:
  """target = reshape(source), at the line of `eqn`."""
  params = {"new_sizes": target.aval.shape, "dimensions": None, "sharding": None}
  return eqn.replace(primitive=P.reshape_p, invars=[source], outvars=[target], params=params)


def is_array(atom: Any) -> bool:
  """Whether a value is an array of numbers, no typed key and no token."""
  return isinstance(getattr(atom.aval, "dtype", None), np.dtype)


def same(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
  """Whether two shapes are known to be equal."""
  return len(sizes) == len(others) and all(
    a is b or a == b for a, b in zip(sizes, others, strict=True)
  )
