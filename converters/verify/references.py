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
  plain, alone, checked = map(jax.jit, (fun, one_device(fun), checkify.checkify(fun)))

  def with_checks(*args: Any) -> Any:
    failure, results = checked(*args)
    failure.throw()
    return results

  current: Callable[..., Any] = plain

  def run(*args: Any) -> Any:
    nonlocal current
    if current is not plain:
      return current(*args)
    try:
      # JAX may find only when it runs that devices are missing.
      return jax.block_until_ready(plain(*args))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
      if "which was not functionalized" not in str(error):
        results = _unless(error, alone, args)
        current = alone
        return results
      current = with_checks
    return with_checks(*args)

  return run


def _unless(error: Exception, fun: Callable[..., Any], args: tuple[Any, ...]) -> Any:
  """The results of a function; raises the first error if it fails too."""
  try:
    return fun(*args)
  except Exception:
    raise error from None
