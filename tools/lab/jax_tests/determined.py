"""Compares functions whose results JAX leaves open, such as the signs of eigenvectors, in parts.

A function is cut at its open equations. The results of each must be a right answer for the operands
that JAX computes, and the rest of the function, which takes JAX's own answers there, must have
JAX's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import DropVar, Literal, jaxpr_as_fun

import jax2tf
from jax2tf import jaxprs
from jax2tf.tools.lab.jax_tests import comparing, leaves, subjects, undetermined
from jax2tf.tools.lab.jax_tests.comparing import Difference, Tolerance
from jax2tf.tools.lab.jax_tests.subjects import Subject

# Calls, whose equations are looked at.
_CALLS = ("jit", "pjit", "closed_call", "core_call")
# These have derivatives of their own, which a function that is differentiated keeps.
_WITH_DERIVATIVES = ("custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")
_ALL_CALLS = _CALLS + _WITH_DERIVATIVES
_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr")

# Gives the results of an open equation, from the equation and its operands.
At = Callable[[Any, list[Any]], Sequence[Any]]


def by_parts(subject: Subject, tolerance: Tolerance) -> Difference | None:
  """The worst difference of the parts; None if JAX leaves nothing open."""
  arrays = [np.array(x) for x in subject.arguments.arrays]
  jaxpr = jax.make_jaxpr(_of_arrays(subject))(*arrays)
  if not any(map(undetermined.is_open, _equations(jaxpr))):
    return None
  cuts: list[tuple[Any, list[Any], list[Any]]] = []

  def note(eqn: Any, operands: list[Any]) -> list[Any]:
    cuts.append((eqn, operands, _bound(eqn, operands)))
    return cuts[-1][-1]

  evaluate(jaxpr, arrays, note, _ALL_CALLS)
  given = [results for *_, results in cuts]

  def rest(arrays: Sequence[Any], given: Sequence[Sequence[Any]]) -> list[Any]:
    answers = iter(given)
    return evaluate(jaxpr, arrays, lambda *_: next(answers), _ALL_CALLS)

  want = subjects.jit(rest)(arrays, given)
  got = jax2tf.convert(rest)(arrays, jax.tree.map(leaves.tensor, given))
  of_rest = comparing.compare(want, got, tolerance, comparing.coarsest_epsilon(arrays))
  return comparing.worst([of_rest, *(_of_equation(*cut) for cut in cuts)])


def with_signs(fun: Callable[..., Any], *args: Any) -> Callable[..., Any] | None:
  """A function of arrays with vectors of determined signs, so that its derivatives are.

  Returns:
    None if JAX leaves nothing open.
  """
  jaxpr = jax.make_jaxpr(fun)(*args)
  if not any(map(undetermined.is_open, _equations(jaxpr))):
    return None

  def sign(eqn: Any, operands: list[Any]) -> list[Any]:
    return undetermined.signed(eqn, _bound(eqn, operands))

  return lambda *args: evaluate(jaxpr, args, sign, _CALLS)


def evaluate(jaxpr: Any, args: Sequence[Any], at: At, calls: Sequence[str]) -> list[Any]:
  """The flat results of a jaxpr, equation by equation.

  Args:
    jaxpr: a closed jaxpr.
    args: its arguments, arrays or tracers.
    at: gives the results of an open equation.
    calls: the names of the primitives whose jaxprs are evaluated in this way too.
  """
  opened = jaxprs.opened(jaxpr)
  values = dict(zip(opened.constvars, jaxpr.consts, strict=True))
  values |= zip(opened.invars, args, strict=True)

  def value(atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]

  for eqn in opened.eqns:
    operands = [value(atom) for atom in eqn.invars]
    inner = _inner(eqn, calls)
    if inner is not None:
      results: Sequence[Any] = evaluate(inner, operands, at, calls)
    elif undetermined.is_open(eqn):
      results = at(eqn, operands)
    else:
      results = _by_jax(opened, eqn, operands)
    values.update(zip(eqn.outvars, results, strict=True))
  return [value(atom) for atom in opened.outvars]


def _inner(eqn: Any, calls: Sequence[str]) -> Any:
  """The closed jaxpr of a call; None for other equations."""
  if eqn.primitive.name not in calls:
    return None
  return next(jaxprs.closed(eqn.params[name]) for name in _JAXPRS if name in eqn.params)


def _equations(jaxpr: Any) -> Iterator[Any]:
  """The equations of a jaxpr and of its calls."""
  for eqn in jaxprs.opened(jaxpr).eqns:
    inner = _inner(eqn, _ALL_CALLS)
    yield from [eqn] if inner is None else _equations(inner)


def _bound(eqn: Any, operands: Sequence[Any]) -> list[Any]:
  """The results of an open equation. No such primitive takes functions; all have several."""
  return list(eqn.primitive.bind(*operands, **eqn.params))


def _by_jax(jaxpr: Any, eqn: Any, operands: Sequence[Any]) -> list[Any]:
  """The results of any equation; None for those that nothing takes."""
  named = [v for v in eqn.outvars if not isinstance(v, DropVar)]
  alone = jaxprs.part(jaxpr, [eqn], named)
  pairs = zip(eqn.invars, operands, strict=True)
  values = {v: x for v, x in pairs if not isinstance(v, Literal)}
  results = jaxpr_as_fun(alone)(*[values[v] for v in jaxprs.opened(alone).invars])
  of_names = dict(zip(named, results, strict=True))
  return [of_names.get(v) for v in eqn.outvars]


def _of_arrays(subject: Subject) -> Callable[..., Any]:
  """The function of a subject, of its arrays alone."""

  def fun(*arrays: Any) -> Any:
    args, kwargs = subject.arguments.rebuilt(arrays)
    return subject.fun(*args, **kwargs)

  return fun


def _of_equation(eqn: Any, operands: list[Any], results: list[Any]) -> Difference:
  """Whether ours is a right answer, to some units in the last place of the largest number."""
  arrays = [np.asarray(x) for x in operands]
  ours = jax2tf.convert(lambda *operands: _bound(eqn, operands))(*arrays)
  determined = undetermined.DETERMINED[eqn.primitive.name]
  wide = [_wide(x) for x in arrays]
  pair = [[_wide(leaves.as_numpy(x)) for x in of] for of in (results, ours)]
  want, got = (determined(wide, of, eqn.params) for of in pair)
  coarsest = comparing.coarsest_epsilon(arrays)
  difference = comparing.compare(want, got, Tolerance(0.0, 0.0), coarsest)
  return Difference() if difference.kind == "rounding" else difference


def _wide(x: np.ndarray) -> np.ndarray:
  """In 64 bits, so that what is computed of it rounds no more."""
  if not leaves.is_inexact(x):
    return x
  is_complex = jax.numpy.issubdtype(x.dtype, np.complexfloating)
  return x.astype(np.complex128 if is_complex else np.float64)
