"""What else JAX computes where our result is not that of jax.jit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.tools.lab.jax_tests import comparing, leaves
from jax2tf.tools.lab.jax_tests.comparing import Difference, Tolerance
from jax2tf.tools.lab.jax_tests.outcomes import Outcome, concluded
from jax2tf.tools.lab.jax_tests.subjects import TooLongError, UntraceableError

# What is left of arguments that cancel, in last bits of the largest.
_LAST_BITS = 8
# A difference of so many of those between JAX's own evaluations is one of rounding.
_ROUNDING = 30


@dataclasses.dataclass(frozen=True)
class Evaluations:
  """JAX's other evaluations of the same. Each raises UntraceableError if JAX does.

  Attributes:
    arrays: the arguments.
    op_by_op: without jax.jit.
    shaken: of arguments with other last bits.
    by_parts: how what is determined differs; None if everything is.
  """

  arrays: Sequence[Any]
  op_by_op: Callable[[], Any]
  shaken: Callable[[], Any]
  by_parts: Callable[[], Difference | None]


def outcome(want: Any, got: Any, tolerance: Tolerance, jax_has: Evaluations) -> Outcome:
  """The comparison of our result with that of jax.jit, or with another evaluation of JAX."""
  coarsest = comparing.coarsest_epsilon(jax_has.arrays)
  difference = comparing.compare(want, got, tolerance, coarsest)
  if difference.kind not in ("rounding", "nan", "value"):
    return concluded(difference)
  try:
    op_by_op = _or_none(jax_has.op_by_op)
    if op_by_op is not None and not comparing.compare(op_by_op, got, tolerance, coarsest).kind:
      return concluded(Difference(), "op by op")
    if difference.kind == "rounding":
      return concluded(difference)
    parts = jax_has.by_parts()
    if parts is not None and parts.kind in ("", "rounding"):
      return concluded(parts, "what is determined")
    rounding = dataclasses.replace(difference, kind="rounding")
    if np.isfinite(difference.size) and explain(want, got, (op_by_op, _or_none(jax_has.shaken))):
      return concluded(rounding, "other last bits")
    if np.isfinite(difference.size) and cancel(want, got, jax_has.arrays):
      return concluded(rounding, "the arguments")
    return concluded(difference) if parts is None else concluded(parts, "what is determined")
  except TooLongError:
    return concluded(difference)


def _or_none(evaluation: Callable[[], Any]) -> Any:
  try:
    return evaluation()
  except UntraceableError:
    return None


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
  both = (map(leaves.as_numpy, jax.tree.leaves(tree)) for tree in (want, got))
  for x, y in zip(*both, strict=True):
    if not _is_real(x) or x.shape != y.shape:
      return False
    unequal = ~leaves.same(x, y)
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
  with np.errstate(all="ignore"):
    apart = np.where(leaves.same(a, b), 0.0, np.abs(leaves.wide(a) - leaves.wide(b)))
  return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))
