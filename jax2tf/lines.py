"""Source lines: where in the user's code an equation comes from."""

from __future__ import annotations

from typing import Any

from jax.extend import source_info_util

from jax2tf import _jax_compat
from jax2tf._jax_compat import Eqn

UNKNOWN = "unknown line"


def user_line(eqn: Eqn, caller: str = UNKNOWN) -> str:
  """`file:line:col (function)` of the user's code that made an equation, else that of its
  caller."""
  line = source_info_util.summarize(eqn.source_info)
  return line if line and not line.startswith("<unknown>") else caller


def definition(jaxpr: Any) -> str:
  """`file:line (function)` of the definition of the traced function, or of the user's call if a
  library defines it."""
  name, _, line = jaxpr.debug_info.func_src_info.partition(" at ")
  if line and _jax_compat.is_user_file(line.rpartition(":")[0]):
    return f"{line} ({name})"
  return source_info_util.summarize(source_info_util.current()) or UNKNOWN
