"""How close is close, per primitive; what is known not to work; and what is compared instead of raw
values.

Tolerances are in units of the dtype's machine epsilon, relative to the value. The default is a few
units; each exception says why. Integers and bools are always exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

_DEFAULT = 4.0

# Ways that compare derivatives, and what a tolerance is multiplied by there; they are relative to
# the largest value.
DERIVATIVES = {"gradient": 4.0, "second": 16.0}

# group -> (units, why); these are relative to the largest value of the array: their errors are
# those of its terms.
OF_THE_LARGEST: dict[str, tuple[float, str]] = {
  **dict.fromkeys(
    [
      "conv_general_dilated",
      "dot_general",
      "cumsum",
      "cumprod",
      "cumlogsumexp",
      "reduce_sum",
      "reduce",
      "reduce_window_add",
      "fft",
    ],
    (32.0, "terms in another order"),
  ),
  **dict.fromkeys(
    [
      "eigh",
      "svd",
      "eig",
      "lu",
      "qr",
      "cholesky",
      "triangular_solve",
      "custom_linear_solve",
      "tridiagonal_solve",
    ],
    (
      1024.0,
      "another factorisation (LAPACK against Eigen): bounded by the condition of the matrix",
    ),
  ),
}

# group -> (units, why)
TOLERANCES: dict[str, tuple[float, str]] = {
  **dict.fromkeys(
    ["igamma", "igammac", "igamma_grad_a", "lgamma", "digamma", "random_gamma"],
    (2048.0, "another series; lgamma and digamma are relative to 1 near their zeros"),
  ),
  **dict.fromkeys(
    ["polygamma", "zeta"],
    (64.0, "a sum of ten powers, which round differently and cancel for negative arguments"),
  ),
  **dict.fromkeys(
    ["erf_inv", "regularized_incomplete_beta"], (64.0, "another series; erf_inv is steep near 1")
  ),
  **dict.fromkeys(
    ["bessel_i1e", "cosh", "sinh"], (8.0, "another polynomial, or exp, of the two math libraries")
  ),
  "erfc": (40.0, "another polynomial: 35 units apart in the tail of float32, near 8.36"),
  "log1p": (
    128.0,
    "JAX 0.10 in float64 is 120 units off near -0.414, where JAX 0.12, NumPy and TensorFlow agree "
    "to 2",
  ),
  "integer_pow": (8.0, "complex products in another order"),
  "atanh": (128.0, "JAX 0.10 subtracts two logarithms, which cancel for small operands"),
  "log": (256.0, "the real part of a complex logarithm cancels near |z| = 1"),
  "pow": (256.0, "a complex power is exp(y log x), whose error grows with |y log x|"),
}

# group -> (units, why), where four times those of the value are not enough.
GRADIENT_TOLERANCES: dict[str, tuple[float, str]] = {
  "cholesky": (16384.0, "two solves with the factor: the square of its condition"),
  "erf_inv": (512.0, "exp(erf_inv(x)²) has the condition of erf_inv(x)²"),
  "pad": (128.0, "the cotangent of the padding value is a sum with cancellation"),
}

# (does it concern this harness in this way?, reason); each has a line in docs/limitations.md.
LIMITATIONS: list[tuple[Callable[[Any, str], bool], str]] = [
  (
    lambda harness, way: (
      way in DERIVATIVES
      and harness.group_name == "approx_top_k"
      and np.dtype(harness.dtype).itemsize == 2
    ),
    "of equal values any may be chosen, and the cotangent goes with it",
  ),
  (
    lambda harness, way: (
      way == "second" and harness.group_name == "integer_pow" and harness.dtype == np.float16
    ),
    "XLA on CPU keeps intermediate values in float32, of which some overflow float16",
  ),
  (
    lambda harness, way: way == "xla" and harness.group_name == "eig",
    "TensorFlow's XLA has no kernel",
  ),
  (
    lambda harness, way: (
      way == "xla" and harness.group_name == "svd" and np.dtype(harness.dtype).kind == "c"
    ),
    "TensorFlow's XLA has no kernel",
  ),
  (
    lambda harness, way: (
      way == "xla" and harness.group_name == "eigh" and np.finfo(harness.dtype).bits == 64
    ),
    "XLA's Jacobi sweeps stop early",
  ),
  (
    lambda harness, way: way == "xla" and "_inf_nan_" in harness.fullname,
    "TensorFlow runs XLA with fast min/max, which loses NaN",
  ),
  (
    lambda harness, way: way == "xla" and harness.group_name == "tridiagonal_solve",
    "TensorFlow's XLA has no kernel",
  ),
]


def _eigh(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """Eigenvectors are free up to phase: compare the values, V w V^H and V^H V."""

  def invariants(v: Any, w: Any) -> list[Any]:
    return [w, (v * w[..., None, :]) @ _adjoint(v), _adjoint(v) @ v]

  return invariants(*actual), invariants(*expected)


def _eigh_gradient(harness: Any, results: Any) -> Any:
  """Differentiate the values, and V sin(w) V^H: vectors that are free up to phase have no
  comparable gradient."""
  v, w = results
  return [w, (v * jnp.sin(w)[..., None, :]) @ _adjoint(v)]


def _svd(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """Singular vectors are free up to phase: compare the values, U s V^H, U^H U and V^H V."""

  def invariants(s: Any, *vectors: Any) -> list[Any]:
    if not vectors:
      return [s]
    u, vt = vectors
    k = s.shape[-1]
    return [s, (u[..., :k] * s[..., None, :]) @ vt[..., :k, :], _adjoint(u) @ u, vt @ _adjoint(vt)]

  return invariants(*actual), invariants(*expected)


def _svd_gradient(harness: Any, results: Any) -> Any:
  """Differentiate the values, and U sin(s) V^H."""
  if len(results) == 1:
    return results
  s, u, vt = results
  k = s.shape[-1]
  return [s, (u[..., :k] * jnp.sin(s)[..., None, :]) @ vt[..., :k, :]]


def _eig_gradient(harness: Any, results: Any) -> Any:
  """Differentiate symmetric functions of the values, which come in any order, and V sin(w) V^-1."""
  w, *vectors = results
  sums = [jnp.sum(jnp.sin(w), -1), jnp.sum(w * w, -1)]
  if not vectors:
    return sums
  if harness.params["compute_left_eigenvectors"]:
    return results  # JAX has no derivative of these, and says so
  return [
    *sums,
    jnp.linalg.solve(
      jnp.matrix_transpose(vectors[0]), jnp.matrix_transpose(vectors[0] * jnp.sin(w)[..., None, :])
    ),
  ]


def _eig(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """Eigenvalues come in any order, eigenvectors with any phase: compare sorted values, and A v with
  w v."""
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


def _cholesky(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """The bare primitive leaves the upper triangle undefined; its derivative rule, and every public
  function, clears it."""
  return np.tril(actual), np.tril(expected)


def _sort(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """An unstable sort may put rows with equal keys in any order: compare the keys, and the rows as a
  set."""
  if harness.params.get("is_stable", True) or not isinstance(expected, list | tuple):
    return actual, expected

  def invariants(results: Any) -> list[Any]:
    rows = np.stack([x.ravel().astype(np.float64) for x in results])
    return [*results[: harness.params["num_keys"]], rows[:, np.lexsort(rows)]]

  return invariants(actual), invariants(expected)


def _approx_top_k(harness: Any, args: Any, actual: Any, expected: Any) -> tuple[Any, Any]:
  """Of equal values any may be chosen: compare the values, and what stands at the indices."""
  operand = np.asarray(args[0])
  return [actual[0], np.take_along_axis(operand, actual[1], -1)], [expected[0], expected[0]]


def _sorted(w: np.ndarray) -> np.ndarray:
  order = np.lexsort((w.imag.round(2), w.real.round(2)))
  return np.take_along_axis(w, order, -1)


def _adjoint(a: Any) -> Any:
  return a.conj().swapaxes(-1, -2)


# group -> (harness, args, actual, expected) -> (actual, expected) to compare instead: results that
# mathematics leaves open.
CUSTOM_CHECKS: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, Any]]] = {
  "eigh": _eigh,
  "svd": _svd,
  "eig": _eig,
  "cholesky": _cholesky,
  "sort": _sort,
  "approx_top_k": _approx_top_k,
}


def coarsest_epsilon(harness: Any, args: Any) -> float:
  """The machine epsilon below which an error means nothing, whatever the dtype of the result."""
  if harness.group_name == "conv_general_dilated" and all(x.dtype == np.complex64 for x in args):
    # XLA on CPU adds such products in complex64 also where complex128 is preferred
    return float(np.finfo(np.complex64).eps)
  return 0.0


def units_and_reason(group: str) -> tuple[float, str]:
  """The tolerance of a group, and why it is not the default."""
  if group in OF_THE_LARGEST:
    units, why = OF_THE_LARGEST[group]
    return units, f"relative to the largest value: {why}"
  return TOLERANCES.get(group, (_DEFAULT, ""))


def tolerance(harness: Any, dtype: Any, way: str) -> float:
  """The allowed error of a result of this dtype, in units of its epsilon."""
  if np.dtype(dtype).kind in "biu":
    return 0.0
  units, _ = units_and_reason(harness.group_name)
  if way not in DERIVATIVES:
    return units
  of_gradient, _ = GRADIENT_TOLERANCES.get(
    harness.group_name, (DERIVATIVES["gradient"] * units, "")
  )
  return of_gradient * DERIVATIVES[way] / DERIVATIVES["gradient"]


# group -> (harness, results) -> the functions of them to differentiate instead, of JAX arrays: the
# same freedoms.
WELL_DEFINED: dict[str, Callable[[Any, Any], Any]] = {
  "eigh": _eigh_gradient,
  "svd": _svd_gradient,
  "eig": _eig_gradient,
}
