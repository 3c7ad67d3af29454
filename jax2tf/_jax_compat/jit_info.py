"""What `jax.jit` keeps about a function that it wraps."""

from __future__ import annotations

from typing import Any

from jax._src import named_sharding as _named_sharding
from jaxlib import _jax as _jaxlib

UNSPECIFIED = _named_sharding.UNSPECIFIED  # what jax.jit stores if no sharding is given
# The class itself: a program may have replaced `jax.jit` before this module is imported.
_JITTED = _jaxlib.PjitFunction


def is_jitted(fun: Any) -> bool:
  """Whether `fun` is the result of `jax.jit` itself. A bound method of one has its attributes, but
  not its arguments.

  An unpickled copy is not: it can be called, but not traced.
  """
  return isinstance(fun, _JITTED) and hasattr(fun, "_jit_info")


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
  """(static_argnums, static_argnames) of a `jax.jit`-ed function; empty for any other callable."""
  if not is_jitted(jitted):
    return (), ()
  return tuple(jitted._jit_info.static_argnums), tuple(jitted._jit_info.static_argnames)


def shardings(jitted: Any) -> bool:
  """Whether a `jax.jit`-ed function has shardings of arguments or results."""
  info = getattr(jitted, "_jit_info", None)
  # JAX resolves a PartitionSpec or None when it traces, by the mesh of the context.
  return info is not None and any(
    s is not UNSPECIFIED for s in (*info.in_shardings_leaves, *info.out_shardings_leaves)
  )
