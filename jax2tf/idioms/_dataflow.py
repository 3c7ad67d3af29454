"""The producer of a value and the number of its uses, for idioms, and how they absorb equations."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Literal, Primitive, Var

from jax2tf.jaxprs import Eqn, variables

Equations = list[Eqn]


class Dataflow:
  """The equations of one jaxpr while idioms rewrite them.

  Attributes:
    numbers: {array that a loop stacks: its values}, if they depend only on counters.
  """

  def __init__(self, eqns: Sequence[Eqn], results: Sequence[Any]):
    self.numbers: dict[Any, Any] = {}
    self._equations: list[Equations] = [[eqn] for eqn in eqns]
    self._producers: dict[Any, tuple[int, Eqn]] = {}
    self._uses: collections.Counter[Any] = collections.Counter(variables(results))
    for position, eqn in enumerate(eqns):
      self._note(position, eqn)

  def _note(self, position: int, eqn: Eqn) -> None:
    for v in eqn.outvars:
      self._producers[v] = position, eqn
    self._uses.update(variables(eqn.invars))

  def producer(self, atom: Any, *primitives: Primitive) -> Eqn | None:
    """The equation that produces `atom`, if its primitive is among these (any, if none are given);
    otherwise None."""
    if isinstance(atom, Literal) or atom not in self._producers:
      return None
    eqn = self._producers[atom][1]
    return eqn if eqn.primitive in primitives or not primitives else None

  def single_use(self, atom: Any, *primitives: Primitive) -> Eqn | None:
    """The producer of `atom` if it has exactly one use, so it may be fused; None otherwise."""
    eqn = self.producer(atom, *primitives)
    return eqn if eqn is not None and self._uses[atom] == 1 else None

  def uses(self, atom: Any) -> int:
    """How often equations and results use a value."""
    return self._uses[atom]

  def replace(self, position: int, eqns: Equations) -> None:
    """Replaces the equations at one position, and removes equations whose results are no longer
    used."""
    old, self._equations[position] = self._equations[position], eqns
    for eqn in eqns:
      self._note(position, eqn)
    for eqn in old:
      self._release(eqn)

  def _release(self, eqn: Eqn) -> None:
    for v in variables(eqn.invars):
      self._uses[v] -= 1
      if not self._uses[v] and v in self._producers:
        position, producer = self._producers[v]
        if not producer.effects and not any(self._uses[out] for out in producer.outvars):
          remaining = [other for other in self._equations[position] if other is not producer]
          self._equations[position] = remaining
          self._release(producer)

  def equations(self) -> Sequence[Eqn]:
    """The remaining equations in topological order."""
    return [eqn for eqns in self._equations for eqn in eqns]


def new_var(like: Any, shape: Sequence[Any]) -> Any:
  """A variable of the dtype of `like`, of another shape."""
  return Var(ShapedArray(tuple(shape), like.aval.dtype))


def reshape(eqn: Eqn, source: Any, target: Any) -> Eqn:
  """target = reshape(source), at the line of `eqn`."""
  params = {"new_sizes": target.aval.shape, "dimensions": None, "sharding": None}
  return eqn.replace(primitive=P.reshape_p, invars=[source], outvars=[target], params=params)


def is_array(atom: Any) -> bool:
  """Whether a value is an array of numbers, no typed key and no token."""
  return isinstance(getattr(atom.aval, "dtype", None), np.dtype)


def provably_equal(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
  """Whether two shapes are known to be equal."""
  return len(sizes) == len(others) and all(
    a is b or a == b for a, b in zip(sizes, others, strict=True)
  )
