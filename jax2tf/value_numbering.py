"""Value numbering over jaxprs: finds tensors with equal values
(https://en.wikipedia.org/wiki/Value_numbering).

An idiom may compute a value without the intermediate ones. So values are named by JAX's equations,
whether or not a tensor exists.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from jax.extend.core import Literal

from jax2tf._tf_compat import scopes
from jax2tf.jaxprs import inner_jaxprs, opened, variables
from jax2tf.normalise import key_of, key_of_literal
from jax2tf.program import Program

# The tensors of the variables of one jaxpr.
Env = dict[Any, tf.Tensor]
# A value: equal equations on equal values give equal values.
Name = int


class Values:
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
    found = (self._tensors.get((scope, name)) for scope in scopes.scopes_around())
    return next((tensor for tensor in found if tensor is not None), None)

  def _add(self, tensor: tf.Tensor, name: Name) -> None:
    self._of_tensor[id(tensor)] = tensor, name
    self._tensors.setdefault((scopes.scope_of(tensor), name), tensor)


class Naming:
  """The values of the variables of one jaxpr, as it is emitted.

  Args:
    values: those of the graph.
    jaxpr: as JAX traced it; other equations for the same variables may be emitted.
    env: the tensors of the variables, where there are some.
  """

  def __init__(self, values: Values, jaxpr: Any, env: Env):
    self._values, self._env = values, env
    self._made_by = {v: (eqn, i) for eqn in opened(jaxpr).eqns for i, v in enumerate(eqn.outvars)}
    self._known: dict[Any, Name] = {}
    self._keys: dict[Any, Any] = {}

  def has(self, eqn: Any) -> bool:
    """Whether there are tensors of all results of an equation, which are then in the
    environment."""
    if not all(v in self._made_by for v in eqn.outvars):
      return False
    found = [self._values.tensor(self._key(v)) for v in eqn.outvars]
    if any(tensor is None for tensor in found):
      return False
    self._env.update(zip(eqn.outvars, found, strict=True))
    return True

  def name(self, eqn: Any) -> None:
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

  def _new_key(self, eqn: Any, i: int) -> Any:
    return key_of(eqn, [self._name(v) for v in eqn.invars]), i


def needed(program: Program, env: Env, values: Naming) -> Iterator[Any]:
  """The equations that have effects, or that the results need and whose own results are not there.

  Each is to be emitted before the next one is requested. Those with effects and calls come first,
  in order, the latter because their bodies name their results. The others follow on demand.
  """
  made_by = {v: eqn for eqn in program.equations for v in eqn.outvars}

  def of(atoms: Sequence[Any]) -> Iterator[Any]:
    waiting = [*reversed(variables(atoms))]
    while waiting:
      eqn = made_by.get(v := waiting[-1])
      if v in env or eqn is None or values.has(eqn):
        waiting.pop()
      elif missing := [
        u
        for u in variables(eqn.invars)
        if u not in env and not (u in made_by and values.has(made_by[u]))
      ]:
        waiting.extend(reversed(missing))
      else:
        yield eqn

  for eqn in program.equations:
    if eqn.effects:
      yield from of(eqn.invars)
      yield eqn
    elif inner_jaxprs(eqn):
      yield from of(eqn.outvars)
  yield from of(program.jaxpr.outvars)
