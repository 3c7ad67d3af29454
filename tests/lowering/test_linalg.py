"""Linear algebra: values where JAX's are determined, products of the factors where they are not."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.lax import linalg

import jax2tf
from jax2tf import _jax_compat
from tests.support.case import Case, run

RNG = np.random.default_rng(0)


def matrices(*shape: int, dtype: Any = np.float32) -> np.ndarray:
  values = RNG.standard_normal(shape)
  if np.dtype(dtype).kind == "c":
    values = values + 1j * RNG.standard_normal(shape)
  return values.astype(dtype)


def positive(*shape: int, dtype: Any = np.float32) -> np.ndarray:
  a = matrices(*shape, dtype=dtype)
  return (a @ np.conj(np.swapaxes(a, -1, -2)) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def adjoint(x: Any) -> Any:
  return jnp.conj(jnp.swapaxes(x, -1, -2))


SQUARE, WIDE, TALL, POSITIVE = (
  matrices(2, 5, 5),
  matrices(2, 3, 5),
  matrices(2, 5, 3),
  positive(2, 5, 5),
)
DOMINANT = SQUARE + 5 * np.eye(5, dtype=np.float32)  # well conditioned, for solutions to agree
EXTREME = np.array([[1, 1], [2, 2], [3, -1]], np.float32)
NOT_POSITIVE = np.stack(
  [np.eye(3), np.diag([1, 0, 1]), np.diag([1, -1, 1]), np.full((3, 3), np.nan)]
).astype(np.float32)
SINGULAR = np.array(
  [
    [[1, 2, 3], [2, 4, 6], [1, 0, 1]],
    [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    [[0, 1, 0], [1, 0, 0], [0, 0, 2]],
  ],
  np.float32,
)
# Rounding errors of a factorisation are relative to the largest element and grow with the size.
NEAR = {"rtol": 1e-5, "atol": 1e-5}
ONCE = {"eager": "as in a graph", "saved": "as in a graph"}
NO_XLA = {"xla": "TF's XLA has no such kernel"}
X64 = {"x64": True, "rtol": 1e-12, "atol": 1e-12, "skip": ONCE}


def solve(a: Any, b: Any, **params: Any) -> Any:
  return linalg.triangular_solve(a, b, **params)


def eigen(a: Any, **params: Any) -> Any:
  """What is determined: values, vectors times their adjoint, and the matrix of both."""
  v, w = linalg.eigh(a, **params)
  return w, (v * w[..., None, :]) @ adjoint(v), adjoint(v) @ v


def singular(a: Any, **params: Any) -> Any:
  u, s, vh = linalg.svd(a, **params)
  k = s.shape[-1]
  return (
    s,
    (u[..., :k] * s[..., None, :]) @ vh[..., :k, :],
    jnp.abs(adjoint(u) @ u),
    jnp.abs(vh @ adjoint(vh)),
  )


def general_eigen(a: Any) -> Any:
  """Residuals (zeros), lengths (ones) and the values in an order of their own."""
  w, left, right = linalg.eig(a, compute_left_eigenvectors=True)
  residuals = jnp.stack(
    [a @ right - right * w[..., None, :], adjoint(a) @ left - left * jnp.conj(w)[..., None, :]]
  )
  lengths = jnp.stack([jnp.linalg.norm(left, axis=-2), jnp.linalg.norm(right, axis=-2)])
  return jnp.sort_complex(jnp.round(w, 3)), jnp.abs(residuals) < 1e-4, lengths


def packed_qr(a: Any) -> Any:
  packed, taus = _jax_compat.geqrf_p.bind(a)
  return packed, taus


def pivoted_qr(a: Any, fixed: Any) -> Any:
  return _jax_compat.geqp3_p.bind(a, fixed, use_magma=None)


def hessenberg_of(a: Any) -> Any:
  packed, taus = linalg.hessenberg(a)
  return packed, taus


def tridiagonal_of(a: Any, *, lower: bool) -> Any:
  return linalg.tridiagonal(a, lower=lower)


TRIANGULAR = [
  {
    "left_side": left,
    "lower": lower,
    "transpose_a": transpose,
    "conjugate_a": conjugate,
    "unit_diagonal": unit,
  }
  for left in (True, False)
  for lower in (True, False)
  for transpose in (True, False)
  for conjugate in (True, False)
  for unit in (True, False)
]
C64 = np.complex64
FIXED = np.array([[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], np.int32)

CASES = [
  # systems
  *[
    Case(
      f"triangular solve {tuple(int(v) for v in params.values())}",
      functools.partial(solve, **params),
      [matrices(3, 3, dtype=C64) + 3 * np.eye(3, dtype=C64), matrices(3, 3, dtype=C64)],
      skip={**ONCE, "xla": "one row is enough"},
      **NEAR,
    )
    for params in TRIANGULAR
  ],
  Case(
    "triangular solve",
    functools.partial(solve, left_side=True, lower=True),
    [DOMINANT, matrices(2, 5, 3)],
    poly=["b, n, n", "b, n, k"],
    **NEAR,
  ),
  *[
    Case(
      f"triangular solve {np.dtype(dtype)}",
      functools.partial(solve, left_side=False),
      [DOMINANT.astype(dtype), matrices(2, 4, 5).astype(dtype)],
      grad=False,
      skip=ONCE,
    )
    for dtype in (jnp.bfloat16, np.float16)
  ],
  Case(
    "triangular solve through zeros",
    functools.partial(solve, left_side=True, lower=True),
    [SINGULAR, np.ones((3, 3, 1), np.float32)],
    poly=["b, n, n", "b, n, _"],
    grad=False,
  ),
  Case(
    "triangular solve through zeros, adjoint",
    functools.partial(solve, left_side=True, lower=False, transpose_a=True, conjugate_a=True),
    [np.array([[1 + 1j, 2, 3], [0, 0, 1j], [0, 0, 2]], C64), np.ones((3, 2), C64)],
    grad=False,
    skip={"xla": "XLA multiplies infinities otherwise"},
  ),
  Case(
    "solve", jnp.linalg.solve, [DOMINANT, matrices(2, 5, 3)], poly=["b, n, n", "b, n, k"], **NEAR
  ),
  Case(
    "solve c64",
    jnp.linalg.solve,
    [matrices(4, 4, dtype=C64) + 4 * np.eye(4, dtype=C64), matrices(4, 2, dtype=C64)],
    skip=ONCE,
    **NEAR,
  ),
  Case("inv of singular", jnp.linalg.inv, [SINGULAR[:1]], grad=False, skip=NO_XLA),
  Case("det of singular", jnp.linalg.det, [SINGULAR], grad=False),
  Case("slogdet", jnp.linalg.slogdet, [SQUARE], poly="b, _, _", **NEAR),
  Case(
    "custom solve",
    lambda a, b: lax.custom_linear_solve(
      lambda x: a @ x, b, lambda _, y: jnp.linalg.solve(a, y), lambda _, y: jnp.linalg.solve(a.T, y)
    ),
    [DOMINANT[0], matrices(5)],
    **NEAR,
  ),
  Case(
    "tridiagonal solve",
    linalg.tridiagonal_solve,
    [matrices(2, 5), matrices(2, 5) + 5, matrices(2, 5), matrices(2, 5, 3)],
    poly=["b, n", "b, n", "b, n", "b, n, k"],
    skip=NO_XLA,
    **NEAR,
  ),
  Case(
    "symmetric product",
    lambda a, c: linalg.symmetric_product(a, c, alpha=2.0, beta=-1.0),
    [TALL, positive(2, 5, 5)],
    poly=["b, n, k", "b, n, n"],
    grad=False,
    **NEAR,
  ),
  # factorisations
  Case("cholesky", linalg.cholesky, [POSITIVE], poly="b, n, n", **NEAR),
  Case("cholesky c64", linalg.cholesky, [positive(4, 4, dtype=C64)], skip=ONCE, **NEAR),
  Case(
    "cholesky f64 in blocks",
    linalg.cholesky,
    [positive(130, 130, dtype=np.float64)],
    grad=False,
    **X64,
  ),
  Case("cholesky of not positive", linalg.cholesky, [NOT_POSITIVE], poly="b, n, n", grad=False),
  Case(
    "cholesky of some NaN",
    lambda a: linalg.cholesky(a.at[:, 3, 1].set(jnp.nan), symmetrize_input=False),
    [POSITIVE],
    grad=False,
    skip={"xla": "XLA's Cholesky makes it NaN from the first column on"},
    **NEAR,
  ),
  Case(
    "cholesky of what may be nothing",
    lambda a: linalg.cholesky(a[1:, 1:]),
    [np.ones((1, 1), np.float32)],
    poly="n, n",
    grad=False,
  ),
  Case("cholesky of nothing", linalg.cholesky, [np.zeros((2, 0, 0), np.float32)], grad=False),
  Case(
    "cholesky update",
    linalg.cholesky_update,
    [np.linalg.cholesky(POSITIVE[0]).T.copy(), np.array([1, 0, -2, 3, 0], np.float32)],
    grad=False,
    **NEAR,
  ),
  Case("lu", linalg.lu, [SQUARE], poly="b, n, n", **NEAR),
  Case("lu wide", linalg.lu, [WIDE], poly="b, 3, 5", skip=ONCE, **NEAR),
  Case("lu tall c64", linalg.lu, [matrices(2, 2, 5, 3, dtype=C64)], skip=ONCE, **NEAR),
  Case(
    "lu with ties",
    linalg.lu,
    [np.array([[1, 2, 3], [-1, 2, 0], [1, 1, 5], [0, 4, 4]], np.float32)],
    grad=False,
  ),
  Case("lu singular", linalg.lu, [SINGULAR], poly="b, n, n", grad=False),
  Case(
    "lu with ties, square",
    linalg.lu,
    [np.array([[1, 2, 3], [-1, 2, 0], [1, 1, 5]], np.float32)],
    poly="n, n",
    skip=ONCE,
    grad=False,
  ),
  Case(
    "lu, one of a batch singular",
    linalg.lu,
    [np.concatenate([SINGULAR, matrices(1, *SINGULAR.shape[1:])])],
    grad=False,
    **NEAR,
  ),
  Case("lu f64 in blocks", linalg.lu, [matrices(150, 140, dtype=np.float64)], grad=False, **X64),
  Case(
    "lu f64 in blocks, wide", linalg.lu, [matrices(2, 70, 140, dtype=np.float64)], grad=False, **X64
  ),
  Case(
    "lu with a subnormal pivot",
    linalg.lu,
    [np.array([[[1e-40]], [[2]], [[0]]], np.float32)],
    grad=False,
  ),
  Case("lu of nothing", linalg.lu, [np.zeros((2, 3, 0), np.float32)], grad=False),
  Case(
    "pivots",
    lambda p: linalg.lu_pivots_to_permutation(p, p.shape[-1] + 2),
    [np.array([[1, 1, 2, 5], [3, 3, 3, 3]], np.int32)],
    poly="b, k",
  ),
  *[
    Case(
      f"pivots from outside, {pivots.shape}",
      lambda p: linalg.lu_pivots_to_permutation(p, 12),
      [pivots],
      skip=ONCE,
    )
    for pivots in (
      np.array([19, -1, 2], np.int32),
      np.array([[-17, 0, 3], [2, -2, 12]], np.int32),
      np.array([-1, 9, -19, 0, 1, 12, 3, -4, 2**31 - 1, -(2**31)], np.int32)[None],
    )
  ],
  Case(
    "pivots of nothing",
    lambda p: linalg.lu_pivots_to_permutation(p, 3),
    [np.zeros((2, 0), np.int32)],
    skip=ONCE,
  ),
  # orthogonal
  *[
    Case(
      f"qr {name} {full}",
      functools.partial(linalg.qr, full_matrices=full),
      [a],
      poly=poly,
      grad=False if full else None,
      skip=skip,
      **NEAR,
    )
    for name, a, poly, skip in (
      ("square", SQUARE, "b, n, n", {}),
      ("tall", TALL, "b, n, 3", ONCE),
      ("wide", WIDE, "b, 3, n", ONCE),
      ("c64", matrices(4, 3, dtype=C64), None, ONCE),
    )
    for full in (False, True)
  ],
  *[
    Case(
      f"qr with pivots {name} {full}",
      functools.partial(linalg.qr, pivoting=True, full_matrices=full),
      [a],
      grad=False,
      skip=ONCE,
      **NEAR,
    )
    for name, a in (("tall", TALL), ("wide", WIDE), ("c64", matrices(4, 3, dtype=C64)))
    for full in (False, True)
  ],
  *[
    Case(
      f"qr extreme {name}",
      functools.partial(linalg.qr, full_matrices=False, **options),
      [a],
      grad=False,
      skip=ONCE,
      atol=1e-6,
    )
    for name, a, options in (
      ("huge", EXTREME * np.float32([1e20, 1]), {}),
      ("tiny", EXTREME * np.float32([1, 1e-30]), {}),
      ("both", EXTREME * np.float32([1e-30, 1e30]), {}),
      ("complex", (EXTREME * np.float32([1e30, 1e-30]) * (1 + 2j)).astype(C64), {}),
      ("zero", EXTREME * np.float32([0, 1e25]), {}),
      ("with pivots", EXTREME * np.float32([1e20, 3e20]), {"pivoting": True}),
    )
  ],
  Case(
    "qr of nothing",
    lambda a: (linalg.qr(a), linalg.qr(a.mT, full_matrices=False)),
    [np.zeros((2, 3, 0), np.float32)],
    grad=False,
  ),
  *[
    Case(f"packed qr {name}", packed_qr, [a], grad=False, poly=poly, **NEAR)
    for name, a, poly in (
      ("tall", TALL, "b, m, n"),
      ("wide c64", matrices(3, 5, dtype=C64), None),
      ("zeros", np.zeros((3, 3), np.float32), None),
      ("huge", np.array([[1e30, 1], [1e30, 2]], np.float32), None),
    )
  ],
  Case("pivoted qr, fixed columns", pivoted_qr, [matrices(2, 4, 5), FIXED], grad=False, **NEAR),
  Case(
    "householder product",
    linalg.householder_product,
    [TALL, matrices(2, 3)],
    poly=["b, _, _", "b, _"],
    grad=False,
    **NEAR,
  ),
  Case(
    "householder product c64",
    linalg.householder_product,
    [matrices(5, 4, dtype=C64), matrices(2, dtype=C64)],
    grad=False,
    skip=ONCE,
    **NEAR,
  ),
  *[
    Case(
      f"multiply by q {left} {transpose} {np.dtype(dtype)}",
      functools.partial(linalg.ormqr, left=left, transpose=transpose),
      [matrices(2, 4, 3, dtype=dtype), matrices(2, 3, dtype=dtype), matrices(2, 4, 4, dtype=dtype)],
      grad=False,
      skip=ONCE,
      **NEAR,
    )
    for left in (True, False)
    for transpose in (True, False)
    for dtype in (np.float32, C64)
  ],
  Case("hessenberg", hessenberg_of, [SQUARE], poly="b, n, n", grad=False, **NEAR),
  Case("hessenberg c64", hessenberg_of, [matrices(4, 4, dtype=C64)], grad=False, skip=ONCE, **NEAR),
  Case("hessenberg of one", hessenberg_of, [np.ones((2, 1, 1), np.float32)], grad=False, skip=ONCE),
  *[
    Case(
      f"tridiagonal {lower} {np.dtype(dtype)}",
      functools.partial(tridiagonal_of, lower=lower),
      [matrices(2, 5, 5, dtype=dtype)],
      grad=False,
      skip=ONCE,
      **NEAR,
    )
    for lower in (True, False)
    for dtype in (np.float32, C64)
  ],
  *[
    Case(
      f"tridiagonal {lower} of size 1",
      functools.partial(tridiagonal_of, lower=lower),
      [np.ones((2, 1, 1), np.float32)],
      poly="b, n, n",
      grad=False,
    )
    for lower in (True, False)
  ],
  Case(
    "cholesky update of nothing",
    linalg.cholesky_update,
    [np.zeros((0, 0), np.float32), np.zeros(0, np.float32)],
    grad=False,
  ),
  # spectral
  # the gradient divides by gaps between values
  Case("eigh", eigen, [POSITIVE], poly="b, n, n", rtol=1e-4, atol=1e-4),
  *[
    Case(
      f"eigh of a triangle {lower}",
      functools.partial(eigen, lower=lower, symmetrize_input=False),
      [matrices(4, 4, dtype=C64)],
      grad=False,
      skip=dict.fromkeys(["graph", "xla"], "JAX's vjp of eigh reads both triangles"),
      **NEAR,
    )
    for lower in (True, False)
  ],
  Case(
    "eigh with NaN",
    lambda a: linalg.eigh(a, symmetrize_input=False)[1],
    [np.stack([np.eye(3), np.full((3, 3), np.nan)]).astype(np.float32)],
    grad=False,
  ),
  *[
    Case(
      f"svd {name} {full}",
      functools.partial(singular, full_matrices=full),
      [a],
      grad=False,
      skip=ONCE,
      poly=poly,
      **NEAR,
    )
    for name, a, poly in (("square", SQUARE, "b, n, n"), ("tall", TALL, None), ("wide", WIDE, None))
    for full in (False, True)
  ],
  Case(
    "svd c64",
    functools.partial(singular, full_matrices=False),
    [matrices(4, 3, dtype=C64)],
    grad=False,
    skip=NO_XLA,
    **NEAR,
  ),
  Case(
    "svd f64",
    functools.partial(singular, full_matrices=False),
    [matrices(4, 3, dtype=np.float64)],
    grad=False,
    **{**X64, "skip": {"xla": "XLA's iteration stops at 1e-8"}},
  ),
  Case(
    "singular values",
    functools.partial(linalg.svd, compute_uv=False),
    [TALL],
    poly="b, n, _",
    **NEAR,
  ),
  Case(
    "svd with NaN",
    lambda a: linalg.svd(a)[1],
    [np.stack([np.eye(3), np.full((3, 3), np.nan)]).astype(np.float32)],
    grad=False,
  ),
  *[
    Case(
      f"svd of nothing {full}",
      functools.partial(linalg.svd, full_matrices=full),
      [np.zeros((2, 3, 0), np.float32)],
      grad=False,
    )
    for full in (False, True)
  ],
  # values are rounded to sort them
  Case("eig", general_eigen, [SQUARE], grad=False, skip=NO_XLA, rtol=1e-3, atol=1e-3),
  Case(
    "eig c64",
    general_eigen,
    [matrices(4, 4, dtype=C64)],
    grad=False,
    skip={**NO_XLA, **ONCE},
    rtol=1e-3,
    atol=1e-3,
  ),
  Case(
    "eig with NaN",
    lambda a: linalg.eig(a)[0],
    [np.full((3, 3), np.nan, np.float32)],
    grad=False,
    skip=NO_XLA,
  ),
  # users' functions
  Case(
    "least squares",
    lambda a, b: jnp.linalg.lstsq(a, b)[0],
    [TALL[0], matrices(5)],
    grad=False,
    **NEAR,
  ),
  Case("expm", jax.scipy.linalg.expm, [SQUARE[0] / 4], grad=False, **NEAR),
  Case("pinv", jnp.linalg.pinv, [TALL[0]], grad=False, **NEAR),
  Case(
    "cho_solve",
    lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b),
    [POSITIVE[0], matrices(5)],
    **NEAR,
  ),
]

test_case, saved = run(CASES)


@pytest.mark.parametrize(
  "strict",
  [jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise")],
  ids=["dtype", "rank"],
)
def test_promotion_in_rules_is_not_the_users(strict: Any) -> None:
  """`eig` divides complex vectors by real lengths."""

  def fun(a: Any) -> Any:
    return jnp.abs(jnp.linalg.eigvals(a)).sum()

  with strict:
    gradient = jax2tf.convert(jax.grad(fun))(SQUARE[0])
    values, vectors = jax2tf.convert(jnp.linalg.eig)(SQUARE[0])
  np.testing.assert_allclose(gradient, jax.grad(fun)(SQUARE[0]), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    SQUARE[0] @ vectors.numpy(), vectors.numpy() * values.numpy(), atol=1e-5
  )


def test_equal_factorisations_share_their_body() -> None:
  """A second Cholesky of the same size is one more call, not one more loop."""

  def nodes(fun: Any) -> int:
    graph = (
      tf.function(jax2tf.convert(fun, with_gradient=False))
      .get_concrete_function(tf.TensorSpec((5, 5)))
      .graph
    )
    return sum(len(f.node_def) for f in graph.as_graph_def().library.function)

  factor = linalg.cholesky_p.bind
  assert nodes(lambda a: factor(factor(a))) == nodes(factor)


@pytest.mark.parametrize("compiled", [False, True])
def test_nan_stays_nan(compiled: bool) -> None:
  """A NaN or an infinity in each place of a matrix: what is NaN in JAX is NaN, and rows and columns
  are exchanged, not lost."""
  matrix = matrices(4, 4)
  bad = np.stack(
    [
      np.where(np.arange(16).reshape(4, 4) == i, value, matrix)
      for i in range(16)
      for value in (np.nan, np.inf)
    ]
  )

  def fun(a: Any) -> Any:
    orders = linalg.lu(a)[2], linalg.qr(a, pivoting=True)[2]
    return (
      jnp.linalg.det(a),
      jnp.linalg.slogdet(a)[1],
      jnp.linalg.inv(a),
      jnp.linalg.solve(a, matrix),
      jnp.sort(jnp.stack(orders)),
    )

  *found, orders = tf.function(jax2tf.convert(fun), autograph=False, jit_compile=compiled)(bad)
  *expected, _ = jax.jit(fun)(bad)
  assert all(np.isnan(y.numpy()[np.isnan(e)]).all() for y, e in zip(found, expected, strict=True))
  np.testing.assert_array_equal(orders, np.broadcast_to(np.arange(4), orders.shape))


@pytest.mark.parametrize("name", ["eig", "svd", "tridiagonal_solve"])
def test_what_xla_has_no_kernel_of_is_refused(name):
  """With the user's line, where TensorFlow's own error has only ops."""
  square, rows = jnp.eye(3), jnp.ones(3)
  funs = {
    "eig": lambda x: jnp.linalg.eigvals(square * x),
    "svd": lambda x: jnp.linalg.svd((1j * x) * square),
    "tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(
      rows, 4 * rows, rows, x * rows[:, None]
    ),
  }
  fun = tf.function(jax2tf.convert(funs[name]), autograph=False, jit_compile=True)
  with pytest.raises(
    jax2tf.LoweringError,
    match=r"XLA has no kernel of .*\n  at .*test_linalg.py.*\n  leave out jit_compile",
  ):
    fun(tf.constant(1.0))
