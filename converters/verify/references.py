"""JAX functions as they run to compare a model with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import checkify

from jax2tf import one_device


def jitted(fun: Callable[..., Any]) -> Callable[..., Any]:
  """The function under jax.jit; with `checkify` if it has checks, and on one device if it maps over
  devices that are not here. A failing check raises, as in the model."""
  plain, checked, has_checks = jax.jit(fun), jax.jit(checkify.checkify(fun)), False
  alone, is_alone = jax.jit(one_device(fun)), False

  def run(*args: Any) -> Any:
    nonlocal has_checks, is_alone
    try:
      if not (has_checks or is_alone):
        return jax.block_until_ready(plain(*args))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
      if "which was not functionalized" in str(error):
        has_checks = True
      else:
        results = _unless(error, alone, args)
        is_alone = True
        return results
    if is_alone:
      return alone(*args)
    failure, results = checked(*args)
    failure.throw()
    return results

  return run


def _unless(error: Exception, fun: Callable[..., Any], args: tuple[Any, ...]) -> Any:
  """The results of a function; raises the first error if it fails too."""
  try:
    return fun(*args)
  except Exception:
    raise error from None
