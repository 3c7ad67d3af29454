"""Schur forms and what JAX computes from them; sparse solutions.

Factors are not unique, so the rows compare what is determined.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental.sparse.linalg import spsolve
from jax.lax import linalg
from jax.scipy.linalg import funm, rsf2csf, schur, solve_sylvester, sqrtm

import jax2tf
from tests.support.case import Case, run

RNG = np.random.default_rng(0)
# A graph of a Schur form has two thousand nodes: one row is run in every way.
ONCE = {"graph": "as eagerly", "saved": "as eagerly"}
NO_EIG = {**ONCE, "xla": "JAX's function calls eigvals, and TF's XLA has no such kernel"}


def determined(a: Any, output: str = "real") -> Any:
  """The products of the factors, and of the vectors with their adjoint; whether the form is
  standard."""
  t, z = schur(a, output)
  adjoint = jnp.conj(jnp.swapaxes(z, -1, -2))
  size = jnp.maximum(jnp.abs(a).max((-2, -1), keepdims=True), jnp.finfo(t.dtype).tiny)
  row, column = jnp.arange(a.shape[-1])[:, None], jnp.arange(a.shape[-1])
  # At i the elements (i, i), (i - 1, i - 1), (i, i - 1) and (i - 1, i).
  main, below, above = (jnp.where(row == column + k, t, 0).sum(-1 - (k < 0)) for k in (0, 1, -1))
  before, left = jnp.roll(main, 1, -1), below != 0
  if jnp.iscomplexobj(t):
    standard = ~left.any(-1)
  else:
    equal = (main == before) & (jnp.sign(below) == -jnp.sign(above))
    standard = (equal | ~left).all(-1) & ~(left & jnp.roll(left, 1, -1)).any(-1)
  zeros = (jnp.where(row > column + 1, t, 0) == 0).all((-2, -1))
  return z @ (t / size) @ adjoint, z @ adjoint, zeros, standard


def hard(n: int, dtype: Any) -> np.ndarray:
  """Matrices whose QR iterations go wrong in one way or another, f32[k,n,n]."""
  a, eye = RNG.standard_normal((n, n)), np.eye(n)
  q, _ = np.linalg.qr(a)
  jordan, nilpotent = 2 * eye + np.eye(n, k=1), np.triu(a, 1)
  sizes = 10.0 ** np.linspace(-18, 18, n)
  order = RNG.permutation(n)
  permuted = np.triu(a)[order][:, order]
  wide, graded = a * 10.0 ** RNG.uniform(-20, 20, (n, n)), sizes[:, None] * a
  found = [
    *(a, a + a.T, a - a.T, q, np.roll(eye, 1, 0), eye[order], 0 * eye, eye),
    *(np.ones((n, n)), np.outer(a[0], a[1]), np.triu(a), np.tril(a), permuted, np.round(2 * a)),
    *(jordan, jordan.T, q @ jordan @ q.T, nilpotent, q @ nilpotent @ q.T),
    *(wide, graded, a * 1e30, a * 1e-30),
  ]
  stack = np.stack(found)
  if np.dtype(dtype).kind == "c":
    some = RNG.integers(0, 2, (len(stack), 1, 1))
    stack = stack * np.exp(1j * RNG.uniform(0, 6, stack.shape) * some)
  return stack.astype(dtype)


def eigenvalues(a: Any) -> Any:
  """Of real blocks and of triangles, in an order of their own."""
  form = linalg.schur(a, compute_schur_vectors=False)[0]
  t, _ = schur(a, "complex")
  values = jnp.sort_complex(jnp.round(jnp.diagonal(t, 0, -2, -1), 3))
  return values, jnp.trace(form, axis1=-2, axis2=-1), jnp.linalg.det(form)


def through_complex(a: Any) -> Any:
  t, z = rsf2csf(*schur(a))
  return z @ t @ jnp.conj(z.T), jnp.abs(jnp.tril(t, -1)).max()


SQUARE = RNG.standard_normal((5, 5)).astype(np.float32)
SPD = SQUARE @ SQUARE.T + np.eye(5, dtype=np.float32)
COUNTED = np.arange(9.0, dtype=np.float32).reshape(3, 3)
NOT_FINITE = np.stack(
  [np.where(i == COUNTED, bad, COUNTED) for i in (1, 4) for bad in (np.nan, np.inf)]
)


SPARSE = np.where(RNG.uniform(size=(7, 7)) < 0.4, RNG.standard_normal((7, 7)), 0) + 3 * np.eye(7)
CSR = scipy.sparse.csr_matrix(SPARSE.astype(np.float32))
B = RNG.standard_normal(7).astype(np.float32)
SYSTEM = [CSR.data, CSR.indices, CSR.indptr, B]


def row(name: str, fun: Any, *args: Any, error: float = 1e-5, skip: Any = ONCE, **how: Any) -> Case:
  """JAX has no derivative of a Schur form."""
  return Case(name, fun, args, grad=False, skip=skip, rtol=error, atol=error, **how)


def near(dtype: Any) -> dict[str, Any]:
  return {"error": 300 * np.finfo(dtype).eps, "x64": np.finfo(dtype).bits == 64}


def normal(*shape: int) -> np.ndarray:
  return RNG.standard_normal(shape).astype(np.float32)


F32 = near(np.float32)
CASES = [
  row("schur", determined, hard(7, np.float32), poly="b, n, n", skip={}, **F32),
  row("schur f64", determined, hard(12, np.float64), **near(np.float64)),
  row("schur c64", determined, hard(12, np.complex64), **near(np.complex64)),
  row("schur c128", determined, hard(6, np.complex128), **near(np.complex128)),
  row("eigenvalues of schur", eigenvalues, normal(2, 3, 9, 9), error=1e-3),
  row("schur not finite", lambda a: jnp.isnan(schur(a)[0]).any((-2, -1)), NOT_FINITE),
  row("schur of size 1", determined, normal(2, 1, 1), **F32),
  row("schur of size 2", determined, normal(40, 2, 2), **F32),
  row("schur of nothing", schur, np.zeros((2, 0, 0), np.float32)),
  row("sqrtm", sqrtm, SPD),
  row("sqrtm nilpotent", sqrtm, np.eye(3, k=-1, dtype=np.float32)),
  row("funm", functools.partial(funm, func=jnp.sin), SPD, error=1e-4, skip=NO_EIG),
  row("rsf2csf", through_complex, SQUARE, skip=NO_EIG),
  row("solve_sylvester", solve_sylvester, SPD, SPD[:3, :3], SQUARE[:, :3], error=1e-4, skip=NO_EIG),
  Case("spsolve", spsolve, SYSTEM, poly=("k", "k", "n + 1", "n"), rtol=1e-5, atol=1e-5),
]

test_case, saved = run(CASES)


def test_what_jax_does_not_have_is_refused() -> None:
  """The derivative, in JAX's words; the sorted form; sparse systems of other dtypes."""
  with pytest.raises(NotImplementedError, match="Differentiation rule for 'schur' not implemented"):
    jax2tf.convert(jax.grad(lambda a: schur(a)[0].sum()))(SPD)
  with pytest.raises(jax2tf.LoweringError, match="JAX has no sorted Schur form either"):
    jax2tf.convert(functools.partial(linalg.schur, sort_eig_vals=True))(SPD)
  halves = CSR.data.astype(np.float16), *SYSTEM[1:3], B.astype(np.float16)
  with pytest.raises(jax2tf.LoweringError, match="spsolve of float16; cast to float32 first"):
    jax2tf.convert(spsolve)(*halves)


def test_a_singular_sparse_system_gives_nan() -> None:
  """As SciPy does, with a warning, which is an error in these tests."""
  assert np.isnan(jax2tf.convert(spsolve)(0 * SYSTEM[0], *SYSTEM[1:])).all()


def test_native_lowering_leaves_schur_to_its_rule() -> None:
  t, z = jax2tf.convert(schur, native_serialization=True)(SPD)
  np.testing.assert_allclose(z.numpy() @ t.numpy() @ z.numpy().T, SPD, rtol=1e-4)
