"""Reductions, cumulative reductions, softmax and norms, products of matrices, linear algebra,
Fourier transforms."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from tests.shape_poly.row import Row, bools, floats, ints, positive, spd

_CONSTANT = (
  "used in a context that requires a constant"  # JAX unrolls these derivatives over the size
)
_REDUCTIONS = [
  Row(
    "reduce: sum",
    lambda x: (x.sum(), x.sum(0), x.sum(1, keepdims=True)),
    "a, b",
    eager=True,
    xla=True,
  ),
  Row("reduce: max and min", lambda x: (x.max(0), x.min(1)), "a, b", second=True),
  Row("reduce: prod", lambda x: x.prod(0), "b, 3", no_gradient=_CONSTANT),
  Row("reduce: any and all", lambda x: (x.any(0), x.all(1), x.all()), bools("a, b")),
  Row(
    "reduce: xor and bits",
    lambda x: (lax.reduce_xor(x, (0,)), lax.reduce_and(x, (0,)), lax.reduce_or(x, (0,))),
    ints("a, b"),
  ),
  Row(
    "reduce: argmax and argmin", lambda x: (x.argmax(0), x.argmin(1), x.argmax()), "a, b", xla=True
  ),
  Row(
    "reduce: argmax with ties", lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), ints("a, b", 0, 3)
  ),
  Row("reduce: mean", lambda x: (x.mean(), x.mean(0)), "a, b", eager=True),
  Row("reduce: var and std", lambda x: (x.var(1), x.std(0)), "a+1, b+1", second=True),
  Row("reduce: corrected var", lambda x: jnp.var(x, axis=0, ddof=1), "b+1, 3"),
  Row(
    "reduce: norm",
    lambda x: (jnp.linalg.norm(x), jnp.linalg.norm(x, axis=1), jnp.linalg.norm(x, 1, axis=0)),
    "a, b",
  ),
  Row("reduce: logsumexp", lambda x: logsumexp(x, axis=1), "a, b"),
  Row(
    "reduce: masked",
    lambda x, m: jnp.sum(x, where=m, axis=1) / jnp.maximum(m.sum(1), 1),
    ("a, b", bools("a, b")),
  ),
  Row("reduce: count_nonzero", lambda x: jnp.count_nonzero(x > 0, axis=0), "a, b"),
  Row(
    "reduce: by a function",
    lambda x: lax.reduce(x, np.float32(1), lambda a, b: a + b - a * b / 8, (1,)),
    "b, 3",
    no_gradient=_CONSTANT,
  ),
  Row("reduce: two symbolic axes", lambda x: x.sum((0, 2)) + x.max((0, 2)), "a, 3, b", xla=True),
  Row(
    "reduce: bf16",
    lambda x: (x.sum(0), x.max(1), x.mean()),
    floats("a, b", ml_dtypes.bfloat16),
    rtol=2e-2,
  ),
  Row("reduce: int", lambda x: (x.sum(0), x.prod(1), x.max(), x.mean(0)), ints("a, b")),
  Row("reduce: ptp and median of rows", lambda x: (jnp.ptp(x, 0), jnp.median(x, 1)), "b, 3"),
  Row(
    "reduce: average with weights",
    lambda x, w: jnp.average(x, axis=0, weights=w),
    ("b, 3", positive("b")),
  ),
]

_ASSOCIATIVE = "associative scan over axis of non-constant size"
_CUMULATIVE = [
  Row("cumsum", lambda x: jnp.cumsum(x, 0), "b, 3", second=True, xla=True),
  Row("cumsum: reversed", lambda x: lax.cumsum(x, axis=1, reverse=True), "a, b"),
  Row(
    "cumsum: int8 and bf16",
    lambda x, y: (jnp.cumsum(x), jnp.cumsum(y)),
    (ints("b", dtype="int8"), floats("b", ml_dtypes.bfloat16)),
    rtol=2e-2,
  ),
  Row("cumprod", lambda x: jnp.cumprod(x, 0), positive("b, 3"), no_gradient=_ASSOCIATIVE),
  Row(
    "cumprod: reversed",
    lambda x: lax.cumprod(x, axis=1, reverse=True),
    positive("a, b"),
    no_gradient=_ASSOCIATIVE,
  ),
  Row("cummax", lambda x: lax.cummax(x, axis=0), "b, 3", xla=True, no_gradient=_ASSOCIATIVE),
  Row(
    "cummax: reversed",
    lambda x: lax.cummax(x, axis=1, reverse=True),
    "a, b",
    no_gradient=_ASSOCIATIVE,
  ),
  Row("cummin", lambda x: lax.cummin(x, axis=0), "b", eager=True, no_gradient=_ASSOCIATIVE),
  Row("cummin: reversed int", lambda x: lax.cummin(x, axis=1, reverse=True), ints("a, b")),
  Row("cumlogsumexp", lambda x: lax.cumlogsumexp(x, axis=0), "b, 3", no_gradient=_ASSOCIATIVE),
  Row(
    "cumlogsumexp: reversed",
    lambda x: lax.cumlogsumexp(x, axis=1, reverse=True),
    "a, b",
    no_gradient=_ASSOCIATIVE,
  ),
  Row(
    "cumprod, cummax, cummin: fixed axis",
    lambda x: (jnp.cumprod(x, 1), lax.cummax(x, axis=1), lax.cummin(x, axis=1, reverse=True)),
    "b, 5",
  ),
  Row("cumlogsumexp: fixed axis", lambda x: lax.cumlogsumexp(x, axis=1), "b, 5"),
  Row("cumsum: mean so far", lambda x: jnp.cumsum(x) / jnp.arange(1, x.shape[0] + 1), "b"),
]

_NORMS = [
  Row("softmax", lambda x: jax.nn.softmax(x, axis=-1), "a, b", second=True, xla=True),
  Row("softmax: over the first axis", lambda x: jax.nn.softmax(x, axis=0), "b, 3"),
  Row("log_softmax", lambda x: jax.nn.log_softmax(x), "a, b"),
  Row("softmax: masked", lambda x, m: jax.nn.softmax(x, where=m, axis=1), ("a, b", bools("a, b"))),
  # A variance near 0 at b = 1 makes the derivative large.
  Row(
    "layer norm",
    lambda x, g: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-2) * g,
    ("a, b", "b"),
    second=True,
    rtol=1e-5,
  ),
  Row(
    "batch norm",
    lambda x, g: (x - x.mean((0, 1))) / jnp.sqrt(x.var((0, 1)) + 1e-2) * g,
    ("b, t, 3", "3"),
    second=True,
    rtol=1e-5,
  ),
  Row("rms norm", lambda x: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6), "b, d"),
  Row("standardize", lambda x: jax.nn.standardize(x, axis=0, epsilon=1e-2), "b, 3", rtol=1e-5),
  Row("gelu and silu", lambda x: jax.nn.gelu(x) + jax.nn.silu(x) * jax.nn.softplus(x), "a, b"),
  Row(
    "cross entropy",
    lambda x, y: -jnp.sum(jax.nn.one_hot(y, x.shape[1]) * jax.nn.log_softmax(x), -1).mean(),
    ("b, c", ints("b", 0, 3)),
    eager=True,
  ),
  Row(
    "elementwise",
    lambda x: jnp.exp(-x) * jnp.sin(x) + jnp.arctan2(x, 2.0) - jnp.cbrt(x) * lax.erf(x),
    "a, b",
    second=True,
    xla=True,
  ),
  Row("powers", lambda x, y: x**y + x**3 + jnp.hypot(x, y), (positive("b, 2"), "2"), eager=True),
]

_einsum = functools.partial(functools.partial, jnp.einsum)

_PRODUCTS = [
  Row("dot: matrix, matrix", lambda x, y: x @ y, ("a, b", "b, c"), xla=True),
  Row("dot: matrix, vector", lambda x, y: x @ y, ("a, b", "b"), second=True),
  Row("dot: vector, vector", lambda x, y: jnp.dot(x, y), ("b", "b")),
  Row("dot: batched", lambda x, y: x @ y, ("b, t, 3", "b, 3, t"), xla=True),
  Row("dot: broadcast batch", lambda x, y: x @ y, ("a, b, t, 3", "3, 2")),
  Row("dot: batch of ones", lambda x, y: jnp.matmul(x, y), ("1, b, 2", "a, 2, b")),
  Row(
    "dot: tensordot",
    lambda x, y: jnp.tensordot(x, y, axes=([1, 2], [1, 0])),
    ("a, b, 3", "3, b, 2"),
  ),
  Row("dot: vdot and inner", lambda x, y: (jnp.vdot(x, y), jnp.inner(x, y)), ("a, b", "a, b")),
  Row(
    "dot: int8 into int32",
    lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32),
    (ints("a, b", dtype="int8"), ints("b, 2", dtype="int8")),
  ),
  Row(
    "dot: bf16 into f32",
    lambda x, y: lax.dot_general(
      x, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    ),
    (floats("a, b", ml_dtypes.bfloat16), floats("c, b", ml_dtypes.bfloat16)),
    rtol=2e-2,
  ),
  Row(
    "dot: contracting and batch in the middle",
    lambda x, y: lax.dot_general(x, y, (((1,), (2,)), ((2,), (0,)))),
    ("a, b, c", "c, 2, b"),
    second=True,
  ),
  Row(
    "dot: outer product",
    lambda x, y: lax.dot_general(x, y, (((), ()), ((0,), (0,)))),
    ("b, 2", "b, d"),
  ),
  Row("einsum: bij,bjk", _einsum("bij,bjk->bik"), ("b, t, 2", "b, 2, u"), second=True),
  Row(
    "einsum: attention scores",
    _einsum("bqhd,bkhd->bhqk"),
    ("b, q, 2, 3", "b, k, 2, 3"),
    eager=True,
    xla=True,
  ),
  Row("einsum: attention values", _einsum("bhqk,bkhd->bqhd"), ("b, 2, q, k", "b, k, 2, 3")),
  Row(
    "einsum: trace and diagonal", lambda x: (jnp.einsum("ii->i", x), jnp.einsum("ii", x)), "b, b"
  ),
  Row("einsum: three operands", _einsum("ab,bc,cd->ad"), ("a, b", "b, c", "c, 2")),
  Row("einsum: ellipsis", _einsum("...ij,...kj->...ik"), ("b, 2, t, 3", "b, 2, u, 3")),
  Row("einsum: sum over one side", _einsum("ij,k->ik"), ("a, b", "c")),
  Row("einsum: bilinear", _einsum("bi,ijk,bk->bj"), ("b, 2", "2, d, 3", "b, 3")),
  Row("gram matrix", lambda x: x.T @ x / x.shape[0], "b, 3", second=True),
  Row("pairwise distances", lambda x, y: jnp.sum((x[:, None] - y) ** 2, -1), ("a, 3", "b, 3")),
  Row(
    "polyval and interp",
    lambda x: (
      jnp.polyval(jnp.array([1.0, -2, 3]), x)
      + jnp.interp(x, jnp.arange(3.0), jnp.array([1.0, 3, 2]))
    ),
    "b",
  ),
]


# Factorisations and their derivatives amplify the rounding errors of the matrices, which are well
# conditioned.
def _sign_free_qr(x):
  q, r = jnp.linalg.qr(x)
  return q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :], r * jnp.sign(
    jnp.diagonal(r, axis1=-2, axis2=-1)
  )[..., None]


_LINALG = [
  Row(
    "cholesky", lambda x: jnp.linalg.cholesky(x), spd("b, 3, 3"), rtol=2e-5, second=True, xla=True
  ),
  Row("cholesky: two batches", lambda x: jnp.linalg.cholesky(x), spd("a, b, 2, 2"), rtol=2e-5),
  Row(
    "triangular_solve",
    lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    (spd("b, 3, 3"), "b, 3, 2"),
    rtol=2e-5,
    second=True,
  ),
  Row(
    "triangular_solve: symbolic right side",
    lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False, transpose_a=True),
    (spd("3, 3"), "d, 3"),
    sizes="d=3 4 7",
    constraints=["d >= 3"],
    rtol=2e-5,
  ),
  Row("qr", _sign_free_qr, spd("b, 3, 3"), rtol=5e-5),
  Row("qr: tall", lambda x: jnp.abs(jnp.linalg.qr(x)[1]), "b, 4, 2", rtol=5e-5),
  Row("eigh: values", lambda x: jnp.linalg.eigvalsh(x), spd("b, 3, 3"), rtol=2e-5, eager=True),
  Row("svd: values", lambda x: jnp.linalg.svd(x, compute_uv=False), "b, 3, 2", rtol=2e-5),
  Row("inv", lambda x: jnp.linalg.inv(x), spd("b, 3, 3"), rtol=2e-5),
  Row(
    "det and slogdet",
    lambda x: (jnp.linalg.det(x), jnp.linalg.slogdet(x)[1]),
    spd("b, 3, 3"),
    rtol=2e-5,
  ),
  Row(
    "solve",
    lambda a, b: jnp.linalg.solve(a, b),
    (spd("b, 3, 3"), "b, 3, d"),
    rtol=2e-5,
    second=True,
  ),
  Row(
    "cho_solve",
    lambda a, b: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b),
    (spd("3, 3"), "3, d"),
    sizes="d=3 4 7",
    constraints=["d >= 3"],
    rtol=2e-5,
  ),
  Row("matrix_power", lambda x: jnp.linalg.matrix_power(x, 3), spd("b, b"), rtol=1e-5, xla=True),
  Row("expm", lambda x: jax.scipy.linalg.expm(x * 0.1), "b, 2, 2", rtol=2e-5),
  Row(
    "gaussian log density",
    lambda x, m, c: jax.scipy.stats.multivariate_normal.logpdf(x, m, c),
    ("b, 3", "3", spd("3, 3")),
    sizes="b=3 5 8",
    constraints=["b >= 3"],
    rtol=2e-5,
  ),
]

_FFT = [
  Row("fft", lambda x: jnp.fft.fft(x), "b, 8", xla=True),
  Row("fft: two axes", lambda x: jnp.fft.fft2(lax.complex(x, -x)), "b, 4, 6"),
  Row("fft: inverse", lambda x: jnp.fft.ifft(lax.complex(x, x * 2)).real, "a, b, 5"),
  Row("fft: real", lambda x: jnp.fft.rfft(x), "b, 6", second=True),
  Row("fft: inverse real", lambda x: jnp.fft.irfft(lax.complex(x, -x), n=6), "b, 4"),
  Row("fft: middle axis", lambda x: jnp.abs(jnp.fft.fft(x, axis=1)) ** 2, "a, 4, b"),
  Row("fft: power spectrum", lambda x: jnp.abs(jnp.fft.rfft(x * jnp.hanning(8))).mean(0), "b, 8"),
]

ROWS = [*_REDUCTIONS, *_CUMULATIVE, *_NORMS, *_PRODUCTS, *_LINALG, *_FFT]
