"""Whether equations compute the same as a JAX function: the function is traced for the same avals,
and the two dataflows are compared.

So an idiom is written as the JAX code that it replaces, and follows JAX when JAX changes the
implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core.primitives as P
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun

from jax2tf.idioms._dataflow import provably_equal
from jax2tf.idioms.fused._inline import inlined
from jax2tf.jaxprs import ClosedJaxpr, Eqn, closed, part
from jax2tf.registry import PLACEMENT_PARAMS
from jax2tf.traits import COMMUTATIVE

# The placeholder for any number in a template; models do not use it.
HOLE = 0.8265371


@dataclass
class Match:
  """The values of a template's variables, and the equations that it replaces."""

  producer: Callable[[Any], Eqn | None]
  roughly: bool = False
  atoms: dict[Any, Any] = field(default_factory=dict)
  holes: list[float] = field(default_factory=list)
  eqns: dict[int, Eqn] = field(default_factory=dict)

  def copy(self) -> Match:
    return Match(self.producer, self.roughly, dict(self.atoms), list(self.holes), dict(self.eqns))


def matched(
  template: ClosedJaxpr, root: Eqn, producer: Callable[[Any], Eqn | None], *, roughly: bool = False
) -> Match | None:
  """How `root` computes the result of a template, with the equations before it, which `producer`
  finds; or None.

  With `roughly`, only the primitives are compared, so that a template of other sizes rejects most
  equations at once.
  """
  producers: dict[Any, Eqn] = {v: eqn for eqn in template.eqns for v in eqn.outvars}
  return _equation(producers, producers[template.outvars[0]], root, Match(producer, roughly))


def _equation(producers: Mapping[Any, Eqn], of: Eqn, eqn: Eqn, match: Match) -> Match | None:
  if (
    of.primitive is not eqn.primitive
    or len(of.invars) != len(eqn.invars)
    or len(of.outvars) != len(eqn.outvars)
  ):
    return None
  if not (match.roughly or _alike(of, eqn)):
    return None
  orders = (eqn.invars, eqn.invars[::-1]) if of.primitive in COMMUTATIVE else (eqn.invars,)
  for operands in orders:
    extended: Match | None = match.copy()
    for operand, atom in zip(of.invars, operands, strict=True):
      extended = extended and _atom(producers, operand, atom, extended)
    if extended:
      extended.eqns[id(eqn)] = eqn
      return extended
  return None


def _atom(producers: Mapping[Any, Eqn], operand: Any, atom: Any, match: Match) -> Match | None:
  if match.roughly and (isinstance(operand, Literal) or operand not in producers):
    return match
  if isinstance(operand, Literal):
    return _literal(operand, atom, match)
  if operand in match.atoms:
    return match if match.atoms[operand] is atom else None
  if not match.roughly and not (
    provably_equal(operand.aval.shape, atom.aval.shape) and operand.aval.dtype == atom.aval.dtype
  ):
    return None
  if operand in producers:
    eqn = match.producer(atom)
    extended = (
      eqn and len(eqn.outvars) == 1 and _equation(producers, producers[operand], eqn, match)
    )
    if not extended:
      return None
    match = extended
  match.atoms[operand] = atom
  return match


def _literal(operand: Any, atom: Any, match: Match) -> Match | None:
  if (
    type(atom) is not type(operand)
    or operand.aval.dtype != atom.aval.dtype
    or np.shape(operand.val) != np.shape(atom.val)
  ):
    return None
  dtype = operand.aval.dtype
  if dtype.kind == "f" and np.asarray(operand.val, dtype) == np.asarray(HOLE, dtype):
    match.holes.append(float(atom.val))
    return match
  return match if np.array_equal(operand.val, atom.val) else None


def _alike(of: Eqn, eqn: Eqn) -> bool:
  if of.primitive is P.custom_jvp_call_p:
    return _same_function(of, eqn)
  keys = of.params.keys() - PLACEMENT_PARAMS
  return keys == eqn.params.keys() - PLACEMENT_PARAMS and all(
    _equal(of.params[key], eqn.params[key]) for key in keys
  )


def _equal(a: Any, b: Any) -> bool:
  return a is b or bool(np.all(a == b))


def _same_function(of: Eqn, eqn: Eqn) -> bool:
  """Whether two functions with custom derivative rules have the same dataflow, and their rules
  too."""
  if [v.aval.str_short() for v in of.invars] != [v.aval.str_short() for v in eqn.invars]:
    return False
  try:
    return all(
      _same_dataflow(a, b)
      for a, b in zip(_function_and_rule(of), _function_and_rule(eqn), strict=True)
    )
  except Exception:  # of a custom rule, which JAX calls only to differentiate
    return False


def _same_dataflow(a: ClosedJaxpr, b: ClosedJaxpr) -> bool:
  producers = {v: eqn for eqn in b.eqns for v in eqn.outvars}
  pairing = (
    matched(a, producers[b.outvars[0]], producers.get)
    if b.outvars[0] in producers and a.eqns
    else None
  )
  return pairing is not None and all(
    pairing.atoms.get(u, v) is v for u, v in zip(a.invars, b.invars, strict=True)
  )


def _function_and_rule(eqn: Eqn) -> Iterator[ClosedJaxpr]:
  """A function, and its tangent as a function of primals and tangents."""
  body = closed(eqn.params["call_jaxpr"])
  yield inlined(body)
  whole = part(body, [eqn], eqn.outvars)
  specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in whole.in_avals]
  yield inlined(
    jax.make_jaxpr(lambda primals, tangents: jax.jvp(jaxpr_as_fun(whole), primals, tangents)[1])(
      specs, specs
    )
  )


class Templates:
  """Templates, traced once for each type of a result, as long as one jaxpr is rewritten: sizes of
  two functions cannot be compared."""

  def __init__(self) -> None:
    self._traced: dict[Any, ClosedJaxpr] = {}

  def __call__(
    self, function: Callable[..., Any], shape: tuple[Any, ...], dtype: Any, vectors: int, holes: int
  ) -> ClosedJaxpr:
    """The template of a function of an array like its result, of vectors along the last axis, and
    of numbers."""
    key = function, shape, dtype
    if key not in self._traced:
      specs = [
        jax.ShapeDtypeStruct(shape, dtype),
        *[jax.ShapeDtypeStruct(shape[-1:], dtype)] * vectors,
      ]
      self._traced[key] = inlined(
        jax.make_jaxpr(lambda *arrays: function(*arrays, *[HOLE] * holes))(*specs)
      )
    return self._traced[key]
