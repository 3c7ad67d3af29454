"""JAX functions as they run to compare a model with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from jax2tf import one_device

from ..bundle import children

# In bytes of all arguments.
_LARGE = 2**28


def jitted(fun: Callable[..., Any]) -> Callable[..., Any]:
  """The function under jax.jit; with `checkify` if it has checks, and on one device if it maps over
  devices that are not here. A failing check raises, as in the model."""
  plain = current = compiled(fun)

  def run(*args: Any) -> Any:
    nonlocal current
    if current is not plain:
      return current(*args)
    try:
      # JAX may find only when it runs that devices are missing.
      return jax.block_until_ready(plain(*args))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
      if "which was not functionalized" not in str(error):
        alone = compiled(one_device(fun))
        results = _unless(error, alone, args)
        current = alone
        return results
    current = _with_checks(fun)
    return current(*args)

  return run


def _with_checks(fun: Callable[..., Any]) -> Callable[..., Any]:
  """The function whose failing checks raise."""
  checked = compiled(checkify.checkify(fun))

  def run(*args: Any) -> Any:
    failure, results = checked(*args)
    failure.throw()
    return results

  return run


def compiled(fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  """`jax.jit(fun, **options)`, which takes little memory beside large arguments.

  XLA has no products of bfloat16 on most processors, and widens the weights. By default it starts
  with all of them: 2 GB of weights take 4 GB more (JAX 0.12). In the order for little memory it
  widens one after the other; the values are the same.
  """
  usual = jax.jit(fun, **options)
  known: set[Any] = set()

  @functools.cache
  def sparing() -> Any:
    return jax.jit(fun, **options, compiler_options=_in_little_memory())

  def run(*args: Any) -> Any:
    leaves = jax.tree.leaves(args)
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    is_large = sum(getattr(leaf, "nbytes", 0) for leaf in leaves) > _LARGE
    if is_traced or not is_large:
      return usual(*args)
    shapes = tuple(map(jnp.shape, leaves))
    if shapes not in known:
      sparing().lower(*args).compile()  # the call below finds it
      children.give_back()  # what the compiler took
      known.add(shapes)
    return sparing()(*args)

  return run


@functools.cache
def _in_little_memory() -> dict[str, Any] | None:
  """Options of the compiler; None if XLA has them no more."""
  options: dict[str, Any] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
  try:
    jax.jit(lambda: 0, compiler_options=options)()
  except jax.errors.JaxRuntimeError:
    return None
  return options


def _unless(error: Exception, fun: Callable[..., Any], args: tuple[Any, ...]) -> Any:
  """The results of a function; raises the first error if it fails too."""
  try:
    return fun(*args)
  except Exception:
    raise error from None
