"""Value numbering over jaxprs: finds tensors with equal values
(https://en.wikipedia.org/wiki/Value_numbering).

An idiom may compute a value without the intermediate ones. So values are named by JAX's equations,
whether or not a tensor exists.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from jax.extend.core import Literal

from jax2tf._tf_compat import scopes
from jax2tf.jaxprs import Eqn, inner_jaxprs, opened, variables
from jax2tf.normalise import key_of, key_of_literal
from jax2tf.program import Program

# The tensors of the variables of one jaxpr.
Env = dict[Any, tf.Tensor]
# A value: equal equations on equal values give equal values.
Name = int


class ValueNumbers:
  """The values of one graph and of the branches and bodies inside it, and their tensors.

  A name is that of a value everywhere. A tensor belongs to the scope that made it: only this scope
  and those inside it get it. So what a branch computes is computed once more where it is needed
  outside, and what was computed outside is captured.
  """

  def __init__(self) -> None:
    self._fresh = itertools.count()
    self._names: dict[Any, Name] = {}
    # keeps the tensor alive, so that its id stays unique
    self._of_tensor: dict[int, tuple[tf.Tensor, Name]] = {}
    self._tensors: dict[tuple[scopes.Scope, Name], tf.Tensor] = {}

  def name_of(self, key: Any) -> Name:
    """The value that equal keys name."""
    if key not in self._names:
      self._names[key] = next(self._fresh)
    return self._names[key]

  def of(self, tensor: tf.Tensor) -> Name:
    """The value that a tensor is."""
    if id(tensor) not in self._of_tensor:
      self._add(tensor, next(self._fresh))
    return self._of_tensor[id(tensor)][1]

  def add(self, key: Any, tensor: tf.Tensor) -> Name:
    """The value of a tensor, which `key` names too."""
    # a rule returned its operand, or an equation inside a call named it
    if id(tensor) in self._of_tensor:
      return self._names.setdefault(key, self._of_tensor[id(tensor)][1])
    self._add(tensor, name := self.name_of(key))
    return name

  def tensor(self, key: Any) -> tf.Tensor | None:
    """A tensor of the value that `key` names, which ops that are made now may use; or None."""
    if (name := self._names.get(key)) is None:
      return None
    tensors = (self._tensors.get((scope, name)) for scope in scopes.scopes_around())
    return next((tensor for tensor in tensors if tensor is not None), None)

  def _add(self, tensor: tf.Tensor, name: Name) -> None:
    self._of_tensor[id(tensor)] = tensor, name
    self._tensors.setdefault((scopes.scope_of(tensor), name), tensor)


class JaxprNumbering:
  """The values of the variables of one jaxpr, as it is emitted.

  Args:
    values: those of the graph.
    jaxpr: as JAX traced it; other equations for the same variables may be emitted.
    env: the tensors of the variables, where there are some.
  """

  def __init__(self, values: ValueNumbers, jaxpr: Any, env: Env):
    self._values, self._env = values, env
    self._made_by = {v: (eqn, i) for eqn in opened(jaxpr).eqns for i, v in enumerate(eqn.outvars)}
    self._known: dict[Any, Name] = {}
    self._keys: dict[Any, Any] = {}

  def has(self, eqn: Eqn) -> bool:
    """Whether there are tensors of all results of an equation, which are then in the
    environment."""
    if not all(v in self._made_by for v in eqn.outvars):
      return False
    tensors = [self._values.tensor(self._key(v)) for v in eqn.outvars]
    if any(tensor is None for tensor in tensors):
      return False
    self._env.update(zip(eqn.outvars, tensors, strict=True))
    return True

  def name(self, eqn: Eqn) -> None:
    """Names the results of an equation, which are in the environment."""
    for v in eqn.outvars:
      if v in self._made_by:
        self._known[v] = self._values.add(self._key(v), self._env[v])

  def _name(self, atom: Any) -> Name:
    if isinstance(atom, Literal):
      return self._values.name_of(key_of_literal(atom))
    if atom not in self._known:
      self._known[atom] = (
        self._values.of(self._env[atom])
        if atom in self._env
        else self._values.name_of(self._key(atom))
      )
    return self._known[atom]

  def _key(self, variable: Any) -> Any:
    if variable not in self._keys:
      self._keys[variable] = self._new_key(*self._made_by[variable])
    return self._keys[variable]

  def _new_key(self, eqn: Eqn, i: int) -> Any:
    return key_of(eqn, [self._name(v) for v in eqn.invars]), i


class WorkList:
  """The equations that are left to emit, in order; this one has all equations of a program.

  Args:
    eqns: in the order in which they are emitted.
  """

  def __init__(self, eqns: Sequence[Eqn]):
    self._left = [*reversed(eqns)]

  def next(self) -> Eqn | None:
    """The equation to emit now, whose operands are in the environment; None at the end."""
    return self._left.pop() if self._left else None

  def emitted(self, eqn: Eqn) -> None:
    """Says that the results of an equation are in the environment."""


class NamedWorkList(WorkList):
  """All equations of a program, which get names as they are emitted."""

  def __init__(self, eqns: Sequence[Eqn], names: JaxprNumbering):
    super().__init__(eqns)
    self._names = names

  def emitted(self, eqn: Eqn) -> None:
    self._names.name(eqn)


class LazyWorkList(NamedWorkList):
  """The equations that have effects, or that the results need and whose own results are not there.

  Those with effects and calls come first, in order, the latter because their bodies name their
  results. The others follow on demand.
  """

  def __init__(self, program: Program, env: Env, names: JaxprNumbering):
    self._made_by = {v: eqn for eqn in program.equations for v in eqn.outvars}
    first = [eqn for eqn in program.equations if eqn.effects or inner_jaxprs(eqn)]
    super().__init__([*first, *self._producers(program.jaxpr.outvars)], names)
    self._env = env
    self._emitted: set[int] = set()

  def emitted(self, eqn: Eqn) -> None:
    super().emitted(eqn)
    self._emitted.add(id(eqn))

  def next(self) -> Eqn | None:
    while self._left:
      eqn = self._left[-1]
      if id(eqn) in self._emitted or (not eqn.effects and self._is_there(eqn)):
        self._left.pop()
      elif missing := [
        producer for producer in self._producers(eqn.invars) if not self._is_there(producer)
      ]:
        self._left.extend(reversed(missing))
      else:
        return self._left.pop()
    return None

  def _producers(self, atoms: Sequence[Any]) -> list[Eqn]:
    return [self._made_by[v] for v in variables(atoms) if v in self._made_by]

  def _is_there(self, eqn: Eqn) -> bool:
    """Whether there are tensors of all results, which are then in the environment."""
    return all(v in self._env for v in eqn.outvars) or self._names.has(eqn)


@dataclass(frozen=True)
class Numbering:
  """How programs are emitted into graphs whose values have names.

  Attributes:
    values: of the graph.
    reuses: whether a value that is there is not computed again.
  """

  values: ValueNumbers = field(default_factory=ValueNumbers)
  reuses: bool = False

  def work(self, program: Program, env: Env) -> WorkList:
    """The equations of a program to emit, given the tensors of its operands."""
    names = JaxprNumbering(self.values, program.jaxpr, env)
    return (
      LazyWorkList(program, env, names) if self.reuses else NamedWorkList(program.equations, names)
    )
