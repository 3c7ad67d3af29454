"""Compares two trees of results: structure, dtypes, shapes, NaN, values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.tools.lab.jax_tests import leaves

Array = np.ndarray

# What JAX's tests allow where they say nothing, relative to the value and absolutely. Integers are
# exact.
_ALLOWED = {"bfloat16": 1e-2, "float16": 1e-3, "float32": 1e-6, "float64": 1e-15}
_ALLOWED |= {"complex64": _ALLOWED["float32"], "complex128": _ALLOWED["float64"]}
_ALLOWED_BELOW_16_BITS = 1e-1
# A difference of so many tolerances, or machine epsilons, of the largest number is one of rounding;
# of types of 16 and 8 bits, of fewer.
_TOLERANCES, _EPSILONS, _EPSILONS_OF_NARROW = 30, 240, 8
_NARROW = 1e-4  # the least machine epsilon of those
_MOST = 0.3


@dataclasses.dataclass(frozen=True)
class Tolerance:
  """What a test of JAX allows: numbers, {dtype: number}, or None for the default of JAX's tests."""

  rtol: Any = None
  atol: Any = None

  def of(self, dtype: np.dtype, largest: float) -> tuple[float, float]:
    """(relative, absolute) for one dtype. By default a result of small numbers gets less.

    Args:
      dtype: of the result.
      largest: its largest finite number.
    """
    scale = min(1.0, largest) if self.atol is None else 1.0
    return _of_dtype(dtype, self.rtol), _of_dtype(dtype, self.atol) * scale


@dataclasses.dataclass(frozen=True)
class Difference:
  """How two results differ.

  Attributes:
    kind: "" within the tolerance, else one of `_WORST_LAST`.
    size: the largest difference of two finite numbers.
    of_the_largest: `size` relative to the largest finite number of JAX's result.
    text: what differs.
  """

  kind: str = ""
  size: float = 0.0
  of_the_largest: float = 0.0
  text: str = ""


_WORST_LAST = ("", "rounding", "nan", "value", "dtype", "shape", "structure")


def compare(want: Any, got: Any, tolerance: Tolerance, coarsest: float = 0.0) -> Difference:
  """The worst difference of two trees of results.

  Args:
    want: JAX's.
    got: ours, arrays or tensors.
    tolerance: of the test.
    coarsest: the machine epsilon of the coarsest dtype that the results come from.
  """
  trees: list[Any] = [jax.tree.structure(tree) for tree in (want, got)]
  if trees[0] != trees[1]:
    return Difference("structure", text=f"{trees[1]}, JAX has {trees[0]}"[:300])
  theirs, ours = (map(leaves.as_numpy, jax.tree.leaves(tree)) for tree in (want, got))
  pairs = zip(theirs, ours, strict=True)
  return worst([_differs(i, x, y, tolerance, coarsest) for i, (x, y) in enumerate(pairs)])


def worst(differences: Sequence[Difference]) -> Difference:
  """The worst of several differences."""
  by_kind_and_size = lambda one: (_WORST_LAST.index(one.kind), one.size)  # noqa: E731
  return max(differences, key=by_kind_and_size, default=Difference())


def coarsest_epsilon(*trees: Any) -> float:
  """The largest machine epsilon among the inexact arrays."""
  arrays = [x for x in jax.tree.leaves(trees) if leaves.is_array(x)]
  dtypes = {np.dtype(x.dtype) for x in arrays if leaves.is_inexact(x)}
  return max((float(jnp.finfo(dtype).eps) for dtype in dtypes), default=0.0)


def _of_dtype(dtype: np.dtype, given: Any) -> float:
  if isinstance(given, Mapping):
    given = {np.dtype(key): value for key, value in given.items()}.get(dtype)
  if given is not None:
    return float(given)
  default = _ALLOWED_BELOW_16_BITS if jax.numpy.issubdtype(dtype, np.inexact) else 0.0
  return _ALLOWED.get(dtype.name, default)


def _differs(i: int, want: Array, got: Array, allowed: Tolerance, coarsest: float) -> Difference:
  if want.dtype == jax.dtypes.float0:
    return Difference()
  theirs, ours = (f"{x.dtype}{list(x.shape)}" for x in (want, got))
  if theirs != ours:
    kind = "dtype" if want.shape == got.shape else "shape"
    return Difference(kind, text=f"result {i}: {ours}, JAX has {theirs}")
  inexact = jax.numpy.issubdtype(want.dtype, np.inexact)
  difference = _of_numbers(want, got, allowed, coarsest) if inexact else _of_integers(want, got)
  if not difference.kind:
    return difference
  text = f"result {i}, {theirs}: {_first(want, got)}"
  return dataclasses.replace(difference, text=text)


def _first(want: Array, got: Array) -> str:
  with np.errstate(all="ignore"):
    unequal = np.flatnonzero(~leaves.same(want, got).ravel())
  at = unequal[0] if len(unequal) else 0
  values = f"{got.ravel()[at]}, JAX has {want.ravel()[at]}"
  return f"{len(unequal)} of {want.size} differ, the first at {at}: {values}"


def _of_integers(want: Array, got: Array) -> Difference:
  """Of integers and bools, in Python's integers, which do not wrap."""
  unequal = want != got
  if not unequal.any():
    return Difference()
  pairs = zip(got[unequal].ravel(), want[unequal].ravel(), strict=True)
  size = float(max(abs(int(x) - int(y)) for x, y in pairs))
  largest = max(1.0, float(max(abs(int(x)) for x in want.ravel())))
  return Difference("value", size, size / largest)


def _of_numbers(want: Array, got: Array, allowed: Tolerance, coarsest: float) -> Difference:
  epsilon = max(coarsest, float(jnp.finfo(want.dtype).eps))
  # TF 2.21: its CPU kernels flush subnormal numbers to zero.
  tiny = float(jnp.finfo(want.dtype).tiny)
  a, b = leaves.wide(want), leaves.wide(got)
  with np.errstate(all="ignore"):
    same = leaves.same(a, b)
    finite = np.isfinite(a) & np.isfinite(b)
    if (np.isnan(a) != np.isnan(b)).any():
      return Difference("nan")
    if (~same & ~finite).any():
      return Difference("value", np.inf, np.inf)
    largest = float(np.abs(a[finite]).max(initial=0.0))
    rtol, atol = allowed.of(want.dtype, largest)
    apart = np.where(same, 0.0, np.abs(a - b))
    close = same | (apart <= atol + tiny + rtol * np.abs(a))
  size = float(apart.max(initial=0.0))
  relative = size / largest if largest else float(size > 0) * np.inf
  if close.all():
    return Difference("", size, relative)
  of_epsilons = epsilon * (_EPSILONS if epsilon < _NARROW else _EPSILONS_OF_NARROW)
  limit = min(max(_TOLERANCES * rtol, of_epsilons), _MOST)
  return Difference("rounding" if relative <= limit else "value", size, relative)
