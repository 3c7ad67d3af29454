"""Householder reflections: QR, Hessenberg and tridiagonal forms, and products with their orthogonal
factors.

A reflection is H = I - tau v v^H with v[k] = 1 and zeros above, packed as LAPACK does: the rest of
v below the diagonal of the result, tau aside. Signs are LAPACK's (xLARFG): beta = -sign(alpha) |x|.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from jax import lax
from jax.extend.core import primitives as P

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.lowering._matrices import (
  adjoint,
  call,
  conj,
  largest,
  loop,
  outer,
  powers_of_two,
  real,
  size,
)
from jax2tf.registry import lowers

# --- QR ---


@lowers(P.qr_p)
def _qr(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  pivoting: bool,
  full_matrices: bool,
  use_magma: Any = None,
) -> list[tf.Tensor]:
  """operand f32[m,n] -> q f32[m,k], r f32[k,n] and, with pivoting, the order of columns i32[n]; k =
  min(m, n), or m for full matrices."""
  aval, q_aval = ctx.avals_in[0], ctx.avals_out[0]
  m, k = q_aval.shape[-2:]
  if 0 in aval.shape:
    q = tf.broadcast_to(
      tf.eye(ctx.dim(m), ctx.dim(k), dtype=operand.dtype), ctx.shape(q_aval.shape)
    )
    return [
      q,
      *(
        tf.zeros(ctx.shape(a.shape), t)
        for a, t in zip(ctx.avals_out[1:], (operand.dtype, tf.int32), strict=False)
      ),
    ]
  if not pivoting:  # Eigen's reflections have LAPACK's signs
    # TF 2.21: Eigen squares the elements, so the columns are scaled to their size; Q stays the
    # same.
    scales = powers_of_two(tf.reduce_max(tf.abs(operand), -2, keepdims=True))
    q, r = tf.linalg.qr(operand / tf.cast(scales, operand.dtype), full_matrices)
    return [q, r * tf.cast(scales, r.dtype)]
  n, taus_size = aval.shape[-1], min(aval.shape[-2:])
  batch = aval.shape[:-2]
  shapes = [aval.shape, (*batch, n), aval.shape, (*batch, n), (*batch, taus_size)]
  packed, order, taus = call(
    ctx,
    householder_qr,
    operand,
    tf.zeros(ctx.shape(shapes[1]), tf.int32),
    batch=len(batch),
    shapes=shapes,
  )
  q = _product(packed[..., : ctx.dim(taus_size)], taus, ctx.dim(k))
  return [q, tf.linalg.band_part(packed, 0, -1)[..., : ctx.dim(k), :], order - 1]


@lowers(_jax_compat.geqrf_p)
def _geqrf(ctx: RuleContext, operand: tf.Tensor) -> list[tf.Tensor]:
  """operand f32[m,n] -> R above and the reflections below f32[m,n], taus f32[min(m,n)]."""
  if 0 in ctx.avals_in[0].shape:
    return [operand, tf.zeros(ctx.shape(ctx.avals_out[1].shape), operand.dtype)]
  return call(ctx, householder_qr, operand, batch=len(ctx.avals_in[0].shape) - 2)


@lowers(_jax_compat.geqp3_p)
def _geqp3(
  ctx: RuleContext, operand: tf.Tensor, fixed: tf.Tensor, *, use_magma: Any = None
) -> list[tf.Tensor]:
  """operand f32[m,n], fixed i32[n] -> packed f32[m,n], order of columns i32[n] from 1, taus
  f32[min(m,n)].

  Columns with `fixed` != 0 come first, the others by largest rest.
  """
  if 0 in ctx.avals_in[0].shape:
    return [operand, fixed, tf.zeros(ctx.shape(ctx.avals_out[2].shape), operand.dtype)]
  return call(ctx, householder_qr, operand, fixed, batch=len(ctx.avals_in[0].shape) - 2)


def householder_qr(a: tf.Tensor, fixed: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
  """a[batch,m,n] -> (packed, taus), or (packed, order from 1, taus) with exchanges of columns."""
  m, n = size(a, -2), size(a, -1)
  steps = min(m, n) if isinstance(m, int) and isinstance(n, int) else tf.minimum(m, n)
  rows, columns = tf.range(m), tf.range(n)
  order = tf.broadcast_to(columns, [tf.shape(a)[0], n])
  if fixed is not None:
    order = tf.argsort(tf.cast(tf.equal(fixed, 0), tf.int32), stable=True)
    a = tf.gather(a, order, axis=2, batch_dims=1)
    frozen = tf.math.count_nonzero(fixed, 1, keepdims=True, dtype=tf.int32)

  def reflect(
    k: tf.Tensor, a: tf.Tensor, order: tf.Tensor, taus: tf.Tensor
  ) -> tuple[tf.Tensor, ...]:
    if fixed is not None:
      sizes = tf.where((rows >= k)[:, tf.newaxis], tf.abs(a), 0)
      rest = tf.norm(sizes / powers_of_two(tf.reduce_max(sizes, [1, 2], keepdims=True)), axis=1)
      pivot = tf.cast(largest(tf.where(columns >= k, rest, -1))[:, tf.newaxis], tf.int32)
      pivot = tf.where(k < frozen, k, pivot)
      at_k, at_pivot = tf.equal(columns, k), tf.equal(columns, pivot)
      exchange = tf.where(at_k, pivot, tf.where(at_pivot, k, columns))
      order = tf.gather(order, exchange, axis=1, batch_dims=1)
      # Two selects: a Gather of columns moves one element at a time.
      here, there = a[:, :, k, tf.newaxis], tf.gather(a, pivot, axis=2, batch_dims=1)
      a = tf.where(at_k, there, tf.where(at_pivot[:, tf.newaxis], here, a))
    v, tau, column = _reflection(a[:, :, k], k, rows)
    a = tf.where(columns > k, a - outer(conj(tau) * v, _row_times(v, a)), a)
    a = tf.where(tf.equal(columns, k), column[:, :, tf.newaxis], a)
    return a, order, tf.where(tf.equal(tf.range(steps), k), tau, taus)

  a, order, taus = loop(steps, reflect, a, order, tf.zeros([tf.shape(a)[0], steps], a.dtype))
  return (a, taus) if fixed is None else (a, order + 1, taus)


def _reflection(
  x: tf.Tensor, k: tf.Tensor, rows: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """x[batch,m] -> (v [batch,m], tau [batch,1], x with beta at k and v packed below it): H^H x is
  beta at k and zero below."""
  one = tf.ones([], x.dtype)
  alpha, below = tf.gather(x, [k], axis=1), tf.where(rows > k, x, 0)
  # The largest modulus is taken out of the norm, so that squares neither overflow nor vanish.
  sizes = tf.abs(tf.where(rows >= k, x, 0))
  scale = tf.reduce_max(sizes, 1, keepdims=True)
  length = scale * tf.norm(tf.math.divide_no_nan(sizes, scale), axis=1, keepdims=True)
  beta = tf.cast(tf.where(real(alpha) >= 0, -length, length), x.dtype)
  trivial = tf.reduce_all(tf.equal(below, 0), 1, keepdims=True) & tf.equal(
    alpha, tf.cast(real(alpha), x.dtype)
  )
  tau = tf.where(trivial, 0 * one, (beta - alpha) / tf.where(trivial, one, beta))
  tail = below / tf.where(trivial, one, alpha - beta)
  at_k = tf.equal(rows, k)
  return (
    tf.where(at_k, one, tail),
    tau,
    tf.where(rows > k, tail, tf.where(at_k & ~trivial, beta, x)),
  )


def _row_times(v: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
  """v[batch,m], a[batch,m,n] -> v^H a [batch,n]."""
  return tf.matmul(v[:, :, tf.newaxis], a, adjoint_a=True)[:, 0]


# --- products with the orthogonal factor ---


@lowers(P.householder_product_p)
def _householder_product(ctx: RuleContext, a: tf.Tensor, taus: tf.Tensor) -> tf.Tensor:
  """a f32[m,n], taus f32[k] -> f32[m,n], the first columns of Q = H_0 H_1 ... H_(k-1)."""
  return _product(
    a[..., : ctx.dim(ctx.avals_in[1].shape[-1])], taus, ctx.dim(ctx.aval_out.shape[-1])
  )


@lowers(lax.linalg.ormqr_p)
def _ormqr(
  ctx: RuleContext, a: tf.Tensor, taus: tf.Tensor, c: tf.Tensor, *, left: bool, transpose: bool
) -> tf.Tensor:
  """a f32[m,n], taus f32[k], c f32[m,p] -> Q c or Q^H c; without `left` c Q or c Q^H."""
  v = _vectors(a[..., : ctx.dim(ctx.avals_in[1].shape[-1])])
  if left:
    return c - tf.matmul(v, _middle(v, taus, tf.matmul(v, c, adjoint_a=True), transpose))
  return c - tf.matmul(
    _middle(v, taus, tf.matmul(v, c, adjoint_a=True, adjoint_b=True), not transpose),
    v,
    adjoint_a=True,
    adjoint_b=True,
  )


def _product(a: tf.Tensor, taus: tf.Tensor, columns: Any) -> tf.Tensor:
  v = _vectors(a)
  q = tf.matmul(v, _middle(v, taus, adjoint(v[..., :columns, :]), False))
  return tf.eye(tf.shape(v)[-2], columns, dtype=a.dtype) - q


def _vectors(a: tf.Tensor) -> tf.Tensor:
  """a[m,k] packed -> [m,k], a reflection's v in each column."""
  a = tf.linalg.band_part(a, -1, 0)
  return tf.linalg.set_diag(a, tf.ones_like(tf.linalg.diag_part(a)))


def _middle(v: tf.Tensor, taus: tf.Tensor, x: tf.Tensor, transpose: bool) -> tf.Tensor:
  """T x or T^H x, where Q = I - v T v^H.

  T is upper triangular with the inverse diag(1/tau) + (v^H v above the diagonal), so that T = M^-1
  diag(tau) with M = I + diag(tau) (v^H v above the diagonal), which a zero tau does no harm.
  """
  taus = taus[..., tf.newaxis]
  gram = taus * tf.matmul(v, v, adjoint_a=True)
  m = tf.linalg.set_diag(gram, tf.ones_like(tf.linalg.diag_part(gram)))
  if transpose:
    return conj(taus) * tf.linalg.triangular_solve(m, x, lower=False, adjoint=True)
  return tf.linalg.triangular_solve(m, taus * x, lower=False)


# --- two-sided ---


@lowers(P.hessenberg_p)
def _hessenberg(ctx: RuleContext, operand: tf.Tensor) -> list[tf.Tensor]:
  """operand f32[n,n] -> the Hessenberg form with the reflections below it f32[n,n], taus
  f32[n-1]."""
  if ctx.avals_in[0].shape[-1] == 1 or 0 in ctx.avals_in[0].shape:
    return [operand, tf.zeros(ctx.shape(ctx.avals_out[1].shape), operand.dtype)]
  return call(ctx, hessenberg, operand, batch=len(ctx.avals_in[0].shape) - 2)


def hessenberg(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """a[batch,n,n] -> (packed [batch,n,n], taus [batch,n-1])."""
  n = size(a, -1)
  rows = columns = tf.range(n)

  def reflect(k: tf.Tensor, a: tf.Tensor, taus: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    v, tau, column = _reflection(a[:, :, k], k + 1, rows)
    right = a - outer(tau * tf.linalg.matvec(a, v), conj(v))
    both = right - outer(conj(tau) * v, _row_times(v, right))
    a = tf.where(columns > k, both, tf.where(tf.equal(columns, k), column[:, :, tf.newaxis], a))
    return a, tf.where(tf.equal(tf.range(n - 1), k), tau, taus)

  return loop(n - 1, reflect, a, tf.zeros([tf.shape(a)[0], n - 1], a.dtype))


@lowers(P.tridiagonal_p)
def _tridiagonal(ctx: RuleContext, operand: tf.Tensor, *, lower: bool) -> list[tf.Tensor]:
  """operand f32[n,n] -> packed f32[n,n], diagonal f32[n], the one beside it f32[n-1], taus
  f32[n-1]; reads one triangle.

  The upper form is the lower one of the matrix read backwards.
  """
  flip = (lambda x, *axes: x) if lower else tf.reverse
  a = flip(operand, [-2, -1])
  strict = tf.linalg.band_part(a, -1, 0) - tf.linalg.band_part(a, 0, 0)
  full = tf.linalg.set_diag(
    strict + adjoint(strict), tf.cast(real(tf.linalg.diag_part(a)), a.dtype)
  )
  aval, *_, taus_aval = ctx.avals_out
  if aval.shape[-1] == 1:
    packed, taus = full, tf.zeros(ctx.shape(taus_aval.shape), a.dtype)
  else:
    packed, taus = call(
      ctx,
      hessenberg,
      full,
      batch=len(aval.shape) - 2,
      shapes=[aval.shape, aval.shape, taus_aval.shape],
    )
  # TF 2.21: a matrix of size 1 has no diagonal -1, the empty one below its first row has a diagonal
  # 0.
  diagonal, beside = (real(tf.linalg.diag_part(x)) for x in (packed, packed[..., 1:, :-1]))
  packed = tf.linalg.band_part(packed, -1, 0) + (a - tf.linalg.band_part(a, -1, 0))
  return [flip(packed, [-2, -1]), flip(diagonal, [-1]), flip(beside, [-1]), flip(taus, [-1])]
