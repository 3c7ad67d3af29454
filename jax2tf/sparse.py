"""Dense definitions of what JAX computes with a sparse solver outside of XLA."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_SOLVED = tuple(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


def spsolve(
  data: jax.Array, indices: jax.Array, indptr: jax.Array, b: jax.Array, **how: Any
) -> jax.Array:
  """A in CSR as data f32[k], indices i32[k], indptr i32[n+1]; b f32[n] -> x f32[n] with A x = b.

  SciPy's definition, which JAX calls on CPU: equal indices are added, elements behind the last row
  are not read, and all of x is NaN if elimination finds a zero pivot. `how` concerns GPUs.

  Raises:
    TypeError: integers, or floats of 16 bits.
  """
  if data.dtype not in _SOLVED:
    raise TypeError(f"spsolve of {data.dtype}; cast to float32 first")
  n = b.shape[0]
  starts = jnp.zeros(indices.shape, np.int32).at[indptr].add(1, mode="drop")
  rows = jnp.cumsum(starts) - 1
  dense = jnp.zeros((n, n), data.dtype).at[rows, indices].add(data, mode="drop")
  lu, _, permutation = lax.linalg.lu(dense)
  solve = functools.partial(lax.linalg.triangular_solve, lu, left_side=True)
  x = solve(solve(b[permutation][:, None], lower=True, unit_diagonal=True), lower=False)
  return jnp.where((jnp.diag(lu) == 0).any(), jnp.nan, x[:, 0]).astype(b.dtype)
