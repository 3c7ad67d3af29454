"""Normalises jaxprs before anything looks at them: calls are inlined, equal equations merged, dead
ones dropped.

What a user wraps in `jax.jit` costs nothing and hides nothing: a pass sees one jaxpr, and `jax.nn`,
`jax.numpy` and `jax.lax` wrap many of their functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal, Primitive, Var

from jax2tf import _jax_compat, jaxprs
from jax2tf.jaxprs import Eqn, opened
from jax2tf.placement.propagation import places_named_by
from jax2tf.placement.shardings import has_sharding
from jax2tf.registry import IN_TENSORFLOW
from jax2tf.traits import BODIES, UNDETERMINED


@jaxprs.transformation
def normalised(jaxpr: Jaxpr) -> Jaxpr:
  """The same function, in which no plain call is left; also in the bodies of loops and branches.

  Functions with custom derivative rules stay calls, and so do those with effects or a placement.
  """
  inside = [
    jaxprs.map_inner(eqn, normalised) if eqn.primitive in BODIES else eqn for eqn in jaxpr.eqns
  ]
  eqns, results = flattened(Flat(), inside, jaxpr.outvars)
  return jaxprs.with_equations(jaxpr, eqns, results)


def flattened(
  flat: Flat, eqns: Sequence[Eqn], results: Sequence[Any]
) -> tuple[list[Eqn], list[Any]]:
  """(equations without calls, results), those that `flat` makes of these."""
  flat.add(eqns)
  new_results = [flat.read(v) for v in results]
  return jaxprs.live(flat.eqns, new_results), new_results


class Flat:
  """A sequence of equations without plain calls and without duplicates.

  Args:
    atoms: {variable of the equations to add: its replacement}.
    inside: whether to make new variables, because the equations may be added twice.
  """

  def __init__(self, atoms: dict[Any, Any] | None = None, *, inside: bool = False):
    self.eqns: list[Eqn] = []
    self._atoms = atoms or {}
    self._inside = inside
    self._known: dict[Any, list[Any]] = {}

  def read(self, atom: Any) -> Any:
    """The replacement of an atom of the added equations."""
    return atom if isinstance(atom, Literal) else self._atoms.get(atom, atom)

  def add(self, eqns: Sequence[Eqn]) -> None:
    """Adds equations, with the calls among them inlined."""
    for eqn in eqns:
      operands = [self.read(v) for v in eqn.invars]
      results = (
        self._called(eqn, operands)
        if _is_plain(eqn)
        else self.results(_with_operands(eqn, operands))
      )
      self._atoms.update(zip(eqn.outvars, results, strict=True))

  def results(self, eqn: Eqn) -> list[Any]:
    """The results of an equation, which is added unless an equal one is there, or its result is a
    number or its operand."""
    if (known := _converted(eqn)) is not None or (known := _unchanged(eqn)) is not None:
      return [known]
    key = key_of(eqn, [_key_of_atom(v) for v in eqn.invars])
    if key in self._known:
      return self._known[key]
    if self._inside:
      eqn = eqn.replace(outvars=[Var(v.aval) for v in eqn.outvars])
    self.eqns.append(eqn)
    self._known[key] = list(eqn.outvars)
    return self._known[key]

  def _called(self, call: Eqn, operands: Sequence[Any]) -> list[Any]:
    inner = opened(call.params["jaxpr"])
    atoms, was_inside = self._atoms, self._inside
    self._atoms, self._inside = dict(zip(inner.invars, operands, strict=True)), True
    self.add([_jax_compat.in_place_of(call, eqn) for eqn in inner.eqns])
    results = [self.read(v) for v in inner.outvars]
    self._atoms, self._inside = atoms, was_inside
    return results


def _converted(eqn: Eqn) -> Literal | None:
  """The result of the conversion of a number, as JAX computes it where it differentiates; else
  None."""
  if eqn.primitive is not P.convert_element_type_p or not isinstance(eqn.invars[0], Literal):
    return None
  aval: Any = eqn.outvars[0].aval
  literal: Any = eqn.invars[0]
  number = np.asarray(literal.val, literal.aval.dtype)
  if number.shape or not (_is_real(number.dtype) and _is_real(aval.dtype)):
    return None
  with np.errstate(all="ignore"):
    new = number.astype(aval.dtype)
    is_exact = bool(new.astype(number.dtype) == number)
  rounds_as_xla = jnp.issubdtype(aval.dtype, np.floating) and abs(new) >= jnp.finfo(aval.dtype).tiny
  return Literal(new[()], aval) if is_exact or rounds_as_xla or number.dtype == aval.dtype else None


def _unchanged(eqn: Eqn) -> Any:
  """The operand of a product with 1, or of a quotient by 1, which has its bits; else None. A mean
  over no axis divides by 1."""
  if eqn.primitive not in (P.mul_p, P.div_p):
    return None
  left, right = eqn.invars
  if isinstance(left, Literal) and eqn.primitive is P.mul_p:
    left, right = right, left
  if isinstance(left, Literal) or not isinstance(right, Literal) or not _is_real(left.aval.dtype):
    return None
  is_whole = left.aval.shape == eqn.outvars[0].aval.shape
  return left if is_whole and np.shape(right.val) == () and right.val == 1 else None


def _is_real(dtype: Any) -> bool:
  """Whether numbers of the dtype are bools, integers or floats."""
  return isinstance(dtype, np.dtype) and not jnp.issubdtype(dtype, np.complexfloating)


def key_of(eqn: Eqn, operands: Sequence[Any]) -> Any:
  """A key that equations with equal results share. One that has an effect or draws shares its key
  with none.

  Args:
    eqn: the equation.
    operands: keys of its operands.
  """
  if eqn.effects or _is_undetermined(eqn.primitive) or any(map(_draws, jaxprs.inner_jaxprs(eqn))):
    return object()
  params = [(name, _bits(value)) for name, value in eqn.params.items()]
  context = eqn.ctx.threefry_partitionable, *places_named_by(eqn)
  key = eqn.primitive, context, *params, *operands
  try:
    hash(key)
  except TypeError:  # such as of NumPy arrays
    return object()
  return key


def _is_undetermined(primitive: Primitive) -> bool:
  """Whether two equal equations may give different numbers."""
  return primitive in UNDETERMINED or primitive in IN_TENSORFLOW


@_jax_compat.weakly_cached
def _draws(jaxpr: Jaxpr) -> bool:
  return any(_is_undetermined(eqn.primitive) for eqn in jaxprs.walk(jaxpr))


def key_of_literal(literal: Literal) -> Any:
  """A key that literals of one type and with the same bits share."""
  return str(literal.aval), np.asarray(literal.val).tobytes()


def _key_of_atom(atom: Any) -> Any:
  return key_of_literal(atom) if isinstance(atom, Literal) else atom


def _bits(param: Any) -> Any:
  """A param, such that 0.0 and -0.0 differ, which are equal as keys; and so do 1, 1.0 and True."""
  if isinstance(param, float | np.inexact):
    return type(param), np.asarray(param).tobytes()
  return (type(param), param) if isinstance(param, bool | int | np.generic) else param


def _with_operands(eqn: Eqn, operands: Sequence[Any]) -> Eqn:
  same = all(a is b for a, b in zip(eqn.invars, operands, strict=True))
  return eqn if same else eqn.replace(invars=list(operands))


def _is_plain(eqn: Eqn) -> bool:
  """Whether an equation is a call that does nothing but call."""
  if eqn.primitive is not P.jit_p or eqn.effects or eqn.params["jaxpr"].consts:
    return False
  return not (has_sharding(eqn) or places_named_by(eqn))
