"""Builds and traverses jaxprs.

JAX 0.10 has jaxprs and closed jaxprs (a jaxpr and the values of its constants). In JAX 0.12 both
are one class. Only this module handles the difference: elsewhere, a `ClosedJaxpr` has constants,
`eqns`, `invars` and `outvars`.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax.extend.core import Jaxpr, Literal, Primitive, jaxprs_in_params

from jax2tf import _jax_compat
from jax2tf._jax_compat import ClosedJaxpr as ClosedJaxpr  # noqa: PLC0414  (import these three from here)
from jax2tf._jax_compat import Eqn as Eqn  # noqa: PLC0414
from jax2tf._jax_compat import closed as closed  # noqa: PLC0414
from jax2tf._jax_compat import replaced as replaced  # noqa: PLC0414
from jax2tf.lines import definition, user_line
from jax2tf.traits import LOOPS


def opened(jaxpr: Any) -> Jaxpr:
  """A jaxpr without the values of its constants: one object for all closed jaxprs that share it, so
  caches can be keyed by it."""
  return getattr(jaxpr, "jaxpr", jaxpr)


def variables(atoms: Iterable[Any]) -> list[Any]:
  """The variables among them; the others are literals."""
  return [atom for atom in atoms if not isinstance(atom, Literal)]


def part(jaxpr: Any, eqns: Sequence[Eqn], results: Sequence[Any]) -> ClosedJaxpr:
  """Some equations of a jaxpr as a separate jaxpr: values from the rest -> `results`."""
  results_inside = {v for eqn in eqns for v in eqn.outvars}
  operands = [
    v
    for v in dict.fromkeys(v for eqn in eqns for v in variables(eqn.invars))
    if v not in results_inside
  ]
  names = jaxpr.debug_info.with_unknown_names()
  return closed(
    opened(jaxpr).replace(
      constvars=[], invars=operands, outvars=list(results), eqns=list(eqns), debug_info=names
    )
  )


def constants_as_operands(jaxpr: ClosedJaxpr) -> Jaxpr:
  """An open jaxpr that takes its constants as first operands."""
  inner = opened(jaxpr)
  without: dict[str, Any] = {} if inner is not jaxpr else {"consts": []}
  operands = [*inner.constvars, *inner.invars]
  names = inner.debug_info.with_unknown_names()
  return inner.replace(constvars=[], invars=operands, debug_info=names, **without)


def inner_jaxprs(eqn: Eqn) -> list[Jaxpr]:
  """The jaxprs among the params of an equation, opened."""
  return list(jaxprs_in_params(eqn.params))


def walk(
  jaxpr: Any,
  inside: Callable[[Eqn], Sequence[Any]] = inner_jaxprs,
  of: Callable[[Jaxpr], Sequence[Eqn]] = lambda jaxpr: jaxpr.eqns,
) -> Iterator[Eqn]:
  """All equations, those of inner jaxprs included, each jaxpr once.

  Args:
    jaxpr: open or closed.
    inside: gives the inner jaxprs of an equation to enter, open or closed.
    of: gives the equations of one jaxpr.
  """
  return (eqn for eqn, _ in located(jaxpr, inside, of))


def located(
  jaxpr: Any,
  inside: Callable[[Eqn], Sequence[Any]] = inner_jaxprs,
  of: Callable[[Jaxpr], Sequence[Eqn]] = lambda jaxpr: jaxpr.eqns,
) -> Iterator[tuple[Eqn, Callable[[], str]]]:
  """As `walk`: (equation, a function that returns the user's line)."""
  seen: set[Jaxpr] = set()

  def visit(jaxpr: Jaxpr, caller: Callable[[], str]) -> Iterator[tuple[Eqn, Callable[[], str]]]:
    if jaxpr in seen:
      return
    seen.add(jaxpr)
    for eqn in of(jaxpr):
      where = functools.partial(_line, eqn, caller)
      yield eqn, where
      for inner in inside(eqn):
        yield from visit(opened(inner), where)

  return visit(opened(jaxpr), functools.partial(definition, jaxpr))


def _line(eqn: Eqn, caller: Callable[[], str]) -> str:
  return user_line(eqn, "") or caller()


def transformation(change: Callable[[Jaxpr], Jaxpr]) -> Callable[[Any], Any]:
  """Makes a function of open jaxprs one of open or closed jaxprs, whose results are kept as long as
  its arguments.

  An argument that `change` returns is returned itself, and so is a result: `change` has nothing
  left to do there.
  """
  results: weakref.WeakSet[Jaxpr] = weakref.WeakSet()

  @_jax_compat.weakly_cached
  def changed(jaxpr: Jaxpr) -> Jaxpr | None:
    new = change(jaxpr)
    if new is jaxpr:
      return None  # the cache would keep its own key
    results.add(new)
    return new

  @functools.wraps(change)
  def of(jaxpr: Any) -> Any:
    if opened(jaxpr) in results or (new := changed(opened(jaxpr))) is None:
      return jaxpr
    return new if isinstance(new, type(jaxpr)) else closed(new, jaxpr.consts)

  return of


def with_equations(
  jaxpr: Jaxpr, eqns: Sequence[Eqn], results: Sequence[Any] | None = None
) -> Jaxpr:
  """An open jaxpr with these equations and results, its own by default; the same object if the
  equations are its own."""
  are_same = len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns))
  if are_same:
    return jaxpr
  return jaxpr.replace(eqns=list(eqns), outvars=jaxpr.outvars if results is None else list(results))


def live(eqns: Sequence[Eqn], results: Sequence[Any]) -> list[Eqn]:
  """The equations that have effects, or whose values reach the results: what is left after
  dead-code elimination."""
  used, live_eqns = set(variables(results)), []
  for eqn in reversed(eqns):
    if eqn.effects or not used.isdisjoint(eqn.outvars):
      used.update(variables(eqn.invars))
      live_eqns.append(eqn)
  return live_eqns[::-1]


def map_inner(eqn: Eqn, change: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Eqn:
  """The equation with each jaxpr among its params changed; the same object if no jaxpr is.

  Args:
    eqn: the equation.
    change: closed jaxpr -> closed jaxpr.
  """
  params = map_params(eqn.params, change)
  different = (params[name] is not value for name, value in eqn.params.items())
  return eqn.replace(params=params) if any(different) else eqn


def map_params(
  params: Mapping[str, Any], change: Callable[[ClosedJaxpr], ClosedJaxpr]
) -> dict[str, Any]:
  """The params of an equation with each jaxpr among them changed, as by `map_inner`."""

  def changed(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
      return change(value)
    if isinstance(value, Jaxpr):  # JAX 0.10: of jax.checkpoint
      return opened(change(closed(value)))
    if isinstance(value, tuple | list) and any(
      isinstance(item, ClosedJaxpr | Jaxpr) for item in value
    ):
      new = list(map(changed, value))
      if all(map(operator.is_, new, value)):
        return value
      return value._make(new) if hasattr(value, "_make") else type(value)(new)
    return value

  return {name: changed(value) for name, value in params.items()}


def contains(jaxpr: Any, primitives: Collection[Primitive]) -> bool:
  """Whether an equation of `jaxpr`, or of a jaxpr inside it, is of one of these primitives."""
  return not primitives_of(jaxpr).isdisjoint(primitives)


def primitives_of(jaxpr: Any) -> frozenset[Primitive]:
  """The primitives of the equations of `jaxpr` and of the jaxprs inside it."""
  return _primitives(opened(jaxpr))


@_jax_compat.weakly_cached
def _primitives(jaxpr: Jaxpr) -> frozenset[Primitive]:
  return frozenset(eqn.primitive for eqn in walk(jaxpr))


def function_of(eqn: Eqn) -> Jaxpr | None:
  """The inner jaxpr of an equation that calls it once with its own operands."""
  inner = inner_jaxprs(eqn)
  return (
    inner[0]
    if len(inner) == 1 and len(inner[0].invars) == len(eqn.invars) and eqn.primitive not in LOOPS
    else None
  )
