"""What is determined of results that JAX leaves open: signs, bases, the order of equal things.

Each function takes the operands, the results and the params of an equation, arrays of NumPy, and
returns numbers that all right answers have in common, such as the product of the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

Arrays = Sequence[np.ndarray]


def _t(x: np.ndarray) -> np.ndarray:
  return np.conj(np.swapaxes(x, -1, -2))


def _eigh(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(vectors [..., n, k], values [..., k]): the values, the matrix, and the products of vectors."""
  vectors, values = results
  return [values, (vectors * values[..., None, :]) @ _t(vectors), _t(vectors) @ vectors]


def _svd(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(s, u, vt), or s alone; u and vt may have more vectors than there are values."""
  values, *vectors = results
  if not vectors:
    return [values]
  u, vt = vectors
  n = values.shape[-1]
  product = (u[..., :n] * values[..., None, :]) @ vt[..., :n, :]
  return [values, product, _t(u) @ u, vt @ _t(vt)]


def _qr(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(q, r) and, with pivoting, the order of columns: the product, and r below its diagonal."""
  q, r, *pivots = results
  product = q @ r
  if pivots:
    product = np.take_along_axis(product, np.argsort(pivots[0], -1)[..., None, :], -1)
  return [product, _t(q) @ q, np.tril(r, -1)]


def _lu(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(lu, pivots, permutation): the product with its rows in order."""
  lu, _, permutation = results
  n = min(lu.shape[-2:])
  lower = np.tril(lu, -1)[..., :, :n] + np.eye(lu.shape[-2], n)
  product = lower @ np.triu(lu)[..., :n, :]
  return [np.take_along_axis(product, np.argsort(permutation, -1)[..., None], -2)]


def _eig(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(values, left vectors, right vectors): the polynomial of the values, and what vectors lack."""
  [a], (values, *vectors) = operands, results
  found = [_polynomial(values)]
  left, right = params["compute_left_eigenvectors"], params["compute_right_eigenvectors"]
  sides = [(_t(a), np.conj(values))] * bool(left) + [(a, values)] * bool(right)
  for (of_side, numbers), v in zip(sides, vectors, strict=True):
    lacking = of_side @ v - v * numbers[..., None, :]
    found += [lacking + _scale(a), np.linalg.norm(v, axis=-2)]
  return found


def _polynomial(values: np.ndarray) -> np.ndarray:
  """[..., n] -> [..., n + 1]: the coefficients of the polynomial with these roots.

  Of a multiple eigenvalue half of the digits are open, or more; of these coefficients none are.
  """
  rows = values.reshape(-1, values.shape[-1])
  polynomials = [
    np.poly(row) if np.isfinite(row).all() else np.full(len(row) + 1, np.nan) for row in rows
  ]
  return np.array(polynomials).reshape(*values.shape[:-1], -1)


def _schur(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(t, q), or t alone: the product, and what is below the diagonal blocks of t."""
  t, *q = results
  return [
    _polynomial(np.linalg.eigvals(t)),
    np.tril(t, -2),
    *(x for v in q for x in (v @ t @ _t(v), _t(v) @ v)),
  ]


def _tridiagonal(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(reflectors, diagonal, off-diagonal, factors): the two diagonals, the second up to signs."""
  return [results[1], np.abs(results[2])]


def _hessenberg(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(matrix and reflectors, factors): the matrix up to signs."""
  return [np.abs(np.triu(results[0], -1))]


def _geqrf(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(r and reflectors, factors): r up to signs."""
  return [np.abs(np.triu(results[0]))]


def _approx_top_k(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """(values, indices): the values, and those at the indices."""
  values, indices = results
  return [values, np.take_along_axis(operands[0], indices, params["reduction_dimension"])]


def _sort(operands: Arrays, results: Arrays, params: dict[str, Any]) -> list[np.ndarray]:
  """The rows that belong together, those with equal keys in an order of their own."""
  axis = params["dimension"]
  order = np.lexsort([np.moveaxis(x, axis, -1) for x in reversed(results)], axis=-1)
  return [np.take_along_axis(x, np.moveaxis(order, -1, axis), axis) for x in results]


def _scale(a: np.ndarray) -> np.ndarray:
  """The largest number of each matrix, beside which 0 is compared."""
  return np.abs(a).max(axis=(-2, -1), keepdims=True, initial=0.0)


DETERMINED: dict[str, Callable[[Arrays, Arrays, dict[str, Any]], list[np.ndarray]]] = {
  "approx_top_k": _approx_top_k,
  "eig": _eig,
  "eigh": _eigh,
  "geqrf": _geqrf,
  "hessenberg": _hessenberg,
  "lu": _lu,
  "qr": _qr,
  "schur": _schur,
  "sort": _sort,
  "svd": _svd,
  "tridiagonal": _tridiagonal,
}


def is_open(eqn: Any) -> bool:
  """Whether JAX leaves results of an equation open."""
  return eqn.primitive.name in DETERMINED and not eqn.params.get("is_stable", False)


def _phase(vectors: Any, axis: int) -> Any:
  """The sign or phase of each vector along an axis, by a sum with fixed weights."""
  shape = [1] * vectors.ndim
  shape[axis] = vectors.shape[axis]
  weights = np.random.default_rng(0).uniform(1.0, 2.0, shape).astype(vectors.dtype)
  total = jnp.sum(vectors * weights, axis=axis, keepdims=True)
  return jnp.where(total == 0, 1, jnp.sign(total))


def signed(eqn: Any, results: Sequence[Any]) -> list[Any]:
  """The results of an equation, in JAX, with vectors of determined signs and phases."""
  name = eqn.primitive.name
  if name == "eigh":
    vectors, values = results
    return [vectors / _phase(vectors, -2), values]
  if name == "svd" and len(results) == 3:
    values, u, vt = results
    n = values.shape[-1]
    phase = _phase(u[..., :n], -2)
    rest = jnp.ones_like(u[..., :1, n:]), jnp.ones_like(vt[..., n:, :1])
    of_rows = jnp.concatenate([jnp.swapaxes(phase, -1, -2), rest[1]], -2)
    return [values, u / jnp.concatenate([phase, rest[0]], -1), vt * of_rows]
  if name == "qr":
    q, r, *pivots = results
    phase = _phase(q, -2)
    return [q / phase, r * jnp.swapaxes(phase, -1, -2), *pivots]
  return list(results)
