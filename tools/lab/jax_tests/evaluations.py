"""JAX's other evaluations of the same function: op by op, and of arguments with other last bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.tools.lab.jax_tests import leaves, subjects

# What is left of arguments that cancel, in last bits of the largest.
_LAST_BITS = 8
# A difference of so many of those between JAX's own evaluations is one of rounding.
_ROUNDING = 30


def or_none(fun: Callable[..., Any], *args: Any) -> Any:
  """JAX's result; None if it raises."""
  try:
    return subjects.by_jax(fun, *args)
  except subjects.UntraceableError:
    return None


def op_by_op(fun: Callable[..., Any], *args: Any) -> Any:
  """JAX's result without jax.jit; None if it raises."""
  with jax.disable_jit():
    return or_none(fun, *args)


def shaken(values: Sequence[Any]) -> list[Any]:
  """The arrays and numbers of Python; inexact ones with other last bits."""
  rng = np.random.default_rng(0)
  return [_shaken(rng, x) if _is_inexact(x) else x for x in values]


def _is_inexact(x: Any) -> bool:
  return isinstance(x, float | complex) or (leaves.is_array(x) and leaves.is_inexact(x))


def _shaken(rng: np.random.Generator, x: Any) -> Any:
  if not leaves.is_array(x):  # JAX gives a number of Python its own widest type
    return x * (1 + float(jnp.finfo(jnp.result_type(x)).eps))
  array = np.asarray(x)
  factors = 1 + float(jnp.finfo(array.dtype).eps) * rng.choice([-1.0, 1.0], array.shape)
  with np.errstate(all="ignore"):
    return np.asarray(array * factors).astype(array.dtype)


def explain(want: Any, got: Any, others: Sequence[Any]) -> bool:
  """Whether each result differs from `want` by no more than JAX's own ones do, to a factor.

  Args:
    want: JAX's results.
    got: ours.
    others: those of JAX's other evaluations; None where it raised.
  """
  known = [jax.tree.leaves(other) for other in others if other is not None]
  pairs = zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True)
  for i, (x, y) in enumerate(pairs):
    of_jax = max((_apart(x, other[i]) for other in known), default=0.0)
    if _apart(x, y) > _ROUNDING * of_jax:
      return False
  return True


def cancel(want: Any, got: Any, arguments: Sequence[Any]) -> bool:
  """Whether results that differ are what is left of arguments that cancel: JAX's and ours are some
  last bits of the largest argument."""
  largest = max(
    (float(np.abs(np.asarray(x, np.float64)).max(initial=0.0)) for x in arguments if _is_real(x)),
    default=0.0,
  )
  for x, y in zip(
    map(leaves.as_numpy, jax.tree.leaves(want)),
    map(leaves.as_numpy, jax.tree.leaves(got)),
    strict=True,
  ):
    if not _is_real(x) or x.shape != y.shape:
      return False
    unequal = ~((x == y) | ((x != x) & (y != y)))
    last_bit = float(jnp.finfo(x.dtype).eps) * largest if leaves.is_inexact(x) else 0.0
    if any((np.abs(of[unequal]) > _LAST_BITS * last_bit).any() for of in (x, y)):
      return False
  return True


def _is_real(x: Any) -> bool:
  return leaves.is_array(x) and not jax.numpy.issubdtype(x.dtype, np.complexfloating)


def _apart(x: Any, y: Any) -> float:
  """The largest difference; infinite where one of two numbers, or the shape, is another."""
  a, b = leaves.as_numpy(x), leaves.as_numpy(y)
  if a.dtype == jax.dtypes.float0:
    return 0.0
  if a.shape != b.shape:
    return np.inf
  wide = np.complex128 if jax.numpy.issubdtype(a.dtype, np.complexfloating) else np.float64
  with np.errstate(all="ignore"):
    same = (a == b) | ((a != a) & (b != b))
    apart = np.where(same, 0.0, np.abs(a.astype(wide) - b.astype(wide)))
  return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))
