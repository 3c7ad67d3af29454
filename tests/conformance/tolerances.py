"""How close is close, per primitive; what is known not to work; and what is compared instead of raw values.

Tolerances are in units of the dtype's machine epsilon, relative to the value. The default is a few units;
each exception says why. Integers and bools are always exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_DEFAULT = 8.0

# group -> (units, why)
TOLERANCES: dict[str, tuple[float, str]] = {
  "conv_general_dilated": (256.0, "sums of products in another order"),
  "dot_general": (256.0, "sums of products in another order"),
  "cumsum": (64.0, "sums in another order"),
  "cumprod": (64.0, "products in another order"),
  "cumlogsumexp": (64.0, "sums in another order"),
  "reduce_sum": (64.0, "sums in another order"),
  "fft": (256.0, "another FFT algorithm (ducc against Eigen)"),
  **dict.fromkeys(["eigh", "svd", "eig", "lu", "qr", "cholesky", "triangular_solve", "custom_linear_solve", "tridiagonal_solve"],
                  (2048.0, "another factorisation (LAPACK against Eigen): bounded by the condition of the matrix")),
}

# (does it concern this harness in this way?, reason); each has a line in docs/limitations.md.
LIMITATIONS: list[tuple[Callable[[Any, str], bool], str]] = []

def _eigh(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """Eigenvectors are free up to phase: compare the values, V w V^H and V^H V."""
  def invariants(results: Any) -> list[Any]:
    v, w = results
    return [w, (v * w[..., None, :]) @ _adjoint(v), _adjoint(v) @ v]
  return invariants(actual), invariants(expected)


def _svd(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """Singular vectors are free up to phase: compare the values, U s V^H, U^H U and V^H V."""
  def invariants(results: Any) -> list[Any]:
    if len(results) == 1:
      return results
    s, u, vt = results
    k = s.shape[-1]
    return [s, (u[..., :k] * s[..., None, :]) @ vt[..., :k, :], _adjoint(u) @ u, vt @ _adjoint(vt)]
  return invariants(list(actual)), invariants(list(expected))


def _eig(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """Eigenvalues come in any order, eigenvectors with any phase: compare sorted values, and A v with w v."""
  matrix, actual, expected = args[0], list(actual), list(expected)
  ours, theirs = [_sorted(actual[0])], [_sorted(expected[0])]
  vectors = actual[1:]
  if harness.params["compute_left_eigenvectors"]:
    left = vectors.pop(0)
    ours.append(_adjoint(left) @ matrix)
    theirs.append(actual[0][..., None] * _adjoint(left))
  if harness.params["compute_right_eigenvectors"]:
    ours.append(matrix @ vectors[0])
    theirs.append(vectors[0] * actual[0][..., None, :])
  return ours, theirs


def _sorted(w: np.ndarray) -> np.ndarray:
  order = np.lexsort((w.imag.round(2), w.real.round(2)))
  return np.take_along_axis(w, order, -1)


def _adjoint(a: np.ndarray) -> np.ndarray:
  return np.conj(np.swapaxes(a, -1, -2))


# group -> (harness, args, actual, expected) -> (actual, expected) to compare instead: results that mathematics leaves open.
CUSTOM_CHECKS: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, Any]]] = {"eigh": _eigh, "svd": _svd, "eig": _eig}


def tolerance(harness: Any, dtype: Any, way: str) -> float:
  """The allowed error of a result of this dtype, in units of its epsilon."""
  units = TOLERANCES.get(harness.group_name, (_DEFAULT, ""))[0]
  return 0.0 if np.dtype(dtype).kind in "biu" else units * (4.0 if way == "gradient" else 1.0)
