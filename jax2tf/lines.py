"""The user's lines: where in their code an equation comes from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from jax2tf import _jax_compat

UNKNOWN = "unknown line"


def user_line(eqn: Any, caller: str = UNKNOWN) -> str:
  """`file:line:col (function)` of the user's code that made an equation, else that of its caller."""
  line = source_info_util.summarize(eqn.source_info)
  return line if line and not line.startswith("<unknown>") else caller


def definition(jaxpr: ClosedJaxpr) -> str:
  """`file:line (function)` where the traced function is defined; where the user calls us, if that is inside of a library."""
  name, _, place = jaxpr.jaxpr.debug_info.func_src_info.partition(" at ")
  if place and _jax_compat.is_user_file(place.rpartition(":")[0]):
    return f"{place} ({name})"
  return source_info_util.summarize(source_info_util.current()) or UNKNOWN


def equations(jaxpr: ClosedJaxpr, enter: Callable[[Any], bool] = lambda eqn: True) -> Iterator[tuple[Any, Callable[[], str]]]:
  """(equation, what gives the user's line) for all, also of inner jaxprs, each jaxpr once; `enter` says of which equations."""
  yield from _equations(jaxpr.jaxpr, definition(jaxpr), enter, set())


def _equations(jaxpr: Jaxpr, caller: str, enter: Callable[[Any], bool], seen: set[int]) -> Iterator[tuple[Any, Callable[[], str]]]:
  if id(jaxpr) in seen:
    return
  seen.add(id(jaxpr))
  for eqn in jaxpr.eqns:
    where = functools.partial(user_line, eqn, caller)
    yield eqn, where
    if enter(eqn):
      for inner in jaxprs_in_params(eqn.params):
        yield from _equations(inner, where(), enter, seen)
