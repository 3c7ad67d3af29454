"""Rows for `jax2tf/lowering/special.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.scipy import special

import jax2tf
from tests.support.case import HOSTILE_F32, Case, run

QUICK = {"saved": "dtype sweep", "eager": "dtype sweep"}
MILD = np.array([0.1, 0.5, 0.9, 2.0, 3.7, 10.0, 0.25], np.float32)
EDGES = np.array([0.0, 0.5, 1.0, 2.5, 30.0, -1.0, -0.5, np.nan], np.float32)
SHAPES = np.array([0.0, 0.5, 3.0, -1.0, np.inf], np.float32)
ORDERS = np.array([1.5, 2.0, 5.0, 1.0, 0.0, -0.5, -2.0, 100.0, np.inf, np.nan], np.float32)
LEFT = np.array(
  [0.1, 2.0, 10.0, 0.0, -0.5, -1.0, -8.28, -9.125, -40.25, -3e38, 1e5, np.inf, -np.inf, np.nan],
  np.float32,
)
UNIT = np.array(
  [
    0.0,
    -0.0,
    1e-30,
    -1e-8,
    0.1,
    -0.5,
    0.9,
    0.999,
    -0.99999,
    0.9999999,
    1.0,
    -1.0,
    1.1,
    -np.inf,
    np.nan,
  ],
  np.float32,
)
INFINITE = np.array([0.0, 1.0, 2.0, 30.0, -1.0, np.inf, -np.inf, np.nan], np.float32)


def grid(*values: np.ndarray) -> list[np.ndarray]:
  return [side.ravel() for side in np.meshgrid(*values)]


def errors(x):
  return lax.erf(x), lax.erfc(x)


def bessel(x):
  return lax.bessel_i0e(x), lax.bessel_i1e(x)


def zeta_above_1(x, q):
  return lax.zeta(x + jnp.ones_like(x), q)


def gammas(a, x):
  return lax.igamma(a, x), lax.igammac(a, x)


# Series and asymptotics differ in the last digits between XLA and Eigen, and between JAX 0.10 and
# 0.12.
RTOL, RTOL_GAMMA, RTOL_64 = 1e-5, 1e-4, 1e-9
HALVES = (np.float16, ml_dtypes.bfloat16)

CASES = [
  Case("erf and erfc", errors, [HOSTILE_F32], poly="b", rtol=RTOL, grad=False),
  Case("erf gradient", errors, [MILD], rtol=RTOL, skip=QUICK),
  Case(
    "erf f64 at infinity",
    errors,
    [np.array([np.inf, -np.inf, 1e300, 5.9, -0.3, 0.0, np.nan])],
    x64=True,
    rtol=RTOL_64,
    grad=False,
  ),
  Case("erf_inv", lax.erf_inv, [UNIT], poly="b"),
  Case(
    "erf_inv gradient", lax.erf_inv, [np.array([0.1, -0.5, 0.9], np.float32)], skip=QUICK, rtol=RTOL
  ),
  # the condition of erf_inv near 1 is 1e6
  Case(
    "erf_inv f64",
    lax.erf_inv,
    [np.array([0.0, 1e-300, 1e-9, 0.3, -0.5, 0.9, 0.9999999, 1.0, -1.0, 2.0, np.nan])],
    x64=True,
    grad=False,
    rtol=1e-11,
  ),
  Case("bessel", bessel, [HOSTILE_F32], poly="b", rtol=RTOL, grad=False),
  Case("bessel gradient", bessel, [MILD], rtol=RTOL, atol=1e-6, skip=QUICK),
  # JAX 0.10's lgamma is off by 5e-4 of itself near its zeros at 1 and 2.
  Case(
    "lgamma",
    lax.lgamma,
    [np.array([0.0, -1.0, 0.5, 3.7, 10.0, 1e10, -0.5, -3.5, np.inf, -np.inf, np.nan], np.float32)],
    rtol=RTOL,
    grad=False,
    poly="b",
  ),
  Case("lgamma gradient", lax.lgamma, [MILD], rtol=RTOL, skip=QUICK),
  Case(
    "digamma",
    lax.digamma,
    [np.array([0.0, -0.0, -1.0, 0.5, 3.7, 10.0, 1e10, -0.5, np.inf, np.nan], np.float32)],
    rtol=RTOL_GAMMA,
    grad=False,
    poly="b",
  ),
  Case("digamma gradient", lax.digamma, [MILD], rtol=RTOL, skip=QUICK),
  Case("igamma", gammas, grid(EDGES, EDGES), rtol=RTOL_GAMMA, grad=False, poly="b"),
  Case(
    "igamma at infinities",
    gammas,
    grid(INFINITE, INFINITE),
    rtol=RTOL_GAMMA,
    grad=False,
    skip=QUICK,
  ),
  Case(
    "igamma_grad_a at infinities",
    lax.igamma_grad_a,
    grid(INFINITE, INFINITE),
    rtol=1e-3,
    grad=False,
    skip=QUICK,
  ),
  Case("igamma gradient", lax.igamma, grid(MILD, MILD), rtol=1e-3, atol=1e-5, skip=QUICK),
  Case("igammac gradient", lax.igammac, grid(MILD, MILD), rtol=1e-3, atol=1e-5, skip=QUICK),
  Case("igamma_grad_a", lax.igamma_grad_a, grid(EDGES, EDGES), rtol=1e-3, atol=1e-6, grad=False),
  Case(
    "igamma f64",
    gammas,
    [x.astype(np.float64) for x in grid(EDGES, EDGES)],
    x64=True,
    rtol=RTOL_64,
    grad=False,
    skip=QUICK,
  ),
  Case("polygamma", lax.polygamma, grid(ORDERS, LEFT), rtol=RTOL, poly="b", grad=False),
  Case(
    "polygamma gradient",
    lambda x: lax.polygamma(jnp.full_like(x, 1), x),
    [MILD],
    rtol=RTOL,
    skip=QUICK,
  ),
  Case("zeta", lax.zeta, grid(ORDERS, LEFT), rtol=RTOL, grad=False, poly="b"),
  # The corrections cancel each other for q < 0: zeta(100, -40.25) keeps eleven digits.
  Case(
    "zeta f64",
    lax.zeta,
    [x.astype(np.float64) for x in grid(ORDERS, LEFT)],
    x64=True,
    rtol=1e-10,
    grad=False,
    skip=QUICK,
  ),
  Case(
    "betainc",
    lax.betainc,
    grid(SHAPES, SHAPES, np.array([0.0, 0.3, 1.0, -0.1, 1.1, np.nan], np.float32)),
    rtol=RTOL_GAMMA,
    grad=False,
    poly="b",
  ),
  Case(
    "betainc gradient",
    lambda x: lax.betainc(jnp.full_like(x, 2), jnp.full_like(x, 0.5), x),
    [np.array([0.1, 0.4, 0.8], np.float32)],
    rtol=RTOL_GAMMA,
    skip=QUICK,
  ),
  Case(
    "betainc of sizes 1 and n",
    lambda a, b, x: [
      lax.betainc(a, b, x),
      lax.betainc(x, b, a),
      jax.scipy.stats.beta.cdf(x, a, 2.0),
    ],
    [
      np.array([2.0], np.float32),
      np.array([0.5], np.float32),
      np.array([0.1, 0.4, 0.8], np.float32),
    ],
    poly=[None, "1", "n"],
    rtol=RTOL_GAMMA,
    grad=False,
  ),
  Case(
    "betainc of sizes 1 across each other",
    lax.betainc,
    [np.full(shape, 0.5, np.float32) for shape in [(3, 1, 2), (1, 4, 1), ()]],
    poly=["a, 1, c", "1, b, 1", None],
    rtol=RTOL_GAMMA,
    grad=False,
  ),
  Case(
    "random_gamma_grad", lax.random_gamma_grad, grid(MILD, MILD), rtol=1e-3, atol=1e-5, grad=False
  ),
  *(
    Case(f"{name} {dtype.__name__}", fun, [MILD.astype(dtype) / dtype(11)], skip=QUICK, grad=False)
    for name, fun in (
      ("erf", errors),
      ("erf_inv", lax.erf_inv),
      ("bessel", bessel),
      ("lgamma", lax.lgamma),
      ("digamma", lax.digamma),
    )
    for dtype in HALVES
  ),
  *(
    Case(
      f"{name} {dtype.__name__}",
      fun,
      [MILD.astype(dtype), MILD[::-1].astype(dtype)],
      skip=QUICK,
      grad=False,
    )
    for name, fun in (
      ("igamma", gammas),
      ("zeta", zeta_above_1),
      ("igamma_grad_a", lax.igamma_grad_a),
    )
    for dtype in HALVES
  ),
  Case(
    "scipy",
    lambda x: [f(x) for f in (special.ndtr, special.ndtri, special.entr, special.expit)],
    [MILD / 11],
    rtol=RTOL,
  ),
]
test_case, saved = run(CASES)


def test_zeros_keep_their_sign() -> None:
  """Each function in f32 and in f64."""
  functions = (
    lax.bessel_i1e,
    lax.cbrt,
    lax.erf,
    lax.erf_inv,
    lax.asinh,
    lax.expm1,
    lax.log1p,
    lax.tan,
  )
  with jax.enable_x64(True):
    converted = jax2tf.convert(
      lambda x: [f(x.astype(t)) for f in functions for t in (jnp.float32, jnp.float64)],
      with_gradient=False,
    )
    assert all(
      np.signbit(y.numpy()).tolist() == [False, True] for y in converted(np.array([0.0, -0.0]))
    )
