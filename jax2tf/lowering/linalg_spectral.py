"""Eigenvalues and singular values. Vectors are determined up to a phase only, and so are ours."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.extend.core import primitives as P

from jax2tf.context import RuleContext
from jax2tf.lowering import _schur
from jax2tf.lowering._matrices import adjoint, all_finite, nan_unless, real, refuse_xla
from jax2tf.registry import lowers


@lowers(P.eigh_p)
def _eigh(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  lower: bool,
  sort_eigenvalues: bool,
  subset_by_index: tuple[int, int] | None,
  algorithm: Any = None,
) -> list[tf.Tensor]:
  """operand f32[n,n] -> vectors f32[n,k], values f32[k] in ascending order; reads one triangle. NaN
  if that is not finite."""
  if 0 in ctx.avals_in[0].shape:
    return [
      tf.zeros(ctx.shape(aval.shape), dtype)
      for aval, dtype in zip(ctx.avals_out, (operand.dtype, real(operand).dtype), strict=True)
    ]
  a = tf.linalg.band_part(operand, *((-1, 0) if lower else (0, -1)))
  ok = all_finite(a)
  values, vectors = tf.raw_ops.SelfAdjointEigV2(input=_zero_unless(ok, a if lower else adjoint(a)))
  if subset_by_index is not None:
    first, last = subset_by_index
    values, vectors = values[..., first:last], vectors[..., first:last]
  return [nan_unless(ok, vectors), nan_unless(ok, real(values))]


@lowers(P.eig_p)
def _eig(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  compute_left_eigenvectors: bool,
  compute_right_eigenvectors: bool,
  enable_eigvec_derivs: bool = False,
  implementation: Any = None,
) -> list[tf.Tensor]:
  """operand f32[n,n] -> values c64[n], left vectors c64[n,n], right vectors c64[n,n]; NaN if it is
  not finite.

  The order of the values is Eigen's. As in LAPACK, a vector has length 1 and its largest element is
  real.
  """
  if 0 in ctx.avals_in[0].shape:
    return [
      tf.zeros(ctx.shape(aval.shape), dtype)
      for aval, dtype in zip(ctx.avals_out, 3 * [_complex(operand)], strict=False)
    ]
  refuse_xla(ctx, "eigenvalues of general matrices")
  ok = all_finite(operand)
  a = _zero_unless(ok, operand)
  if not (compute_left_eigenvectors or compute_right_eigenvectors):
    return [nan_unless(ok, tf.linalg.eigvals(a))]
  values, right = tf.linalg.eig(a)
  results = [values]
  avals = [jax.ShapeDtypeStruct(ctx.avals_in[0].shape, ctx.avals_out[0].dtype)]
  if compute_left_eigenvectors:
    results.append(ctx.lower_fun(_left_vectors, right, avals=avals))
  if compute_right_eigenvectors:
    results.append(ctx.lower_fun(_normalised, right, avals=avals))
  return [nan_unless(ok, x) for x in results]


def _left_vectors(right: jax.Array) -> jax.Array:
  return _normalised(jnp.conj(jnp.linalg.inv(right).mT))


def _normalised(vectors: jax.Array) -> jax.Array:
  size = jnp.abs(vectors)
  largest = jnp.take_along_axis(vectors, jnp.argmax(size, -2, keepdims=True), -2)
  vectors = vectors * (jnp.conj(largest) / jnp.abs(largest))
  return vectors / jnp.linalg.norm(vectors, axis=-2, keepdims=True)


@lowers(P.schur_p)
def _schur_form(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  compute_schur_vectors: bool,
  sort_eig_vals: bool,
  select_callable: Any,
) -> list[tf.Tensor]:
  """operand f32[n,n] -> its Schur form f32[n,n] and, if wanted, vectors f32[n,n]; NaN if not
  finite.

  The order of the eigenvalues is that of QR steps of our own, not LAPACK's.
  """
  if sort_eig_vals:
    ctx.refuse("JAX has no sorted Schur form either", "leave sort_eig_vals out")
  if 0 in ctx.avals_in[0].shape:
    return [operand for _ in ctx.avals_out]
  return ctx.lower_fun(functools.partial(_schur.schur, vectors=compute_schur_vectors), operand)


@lowers(P.svd_p)
def _svd(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  full_matrices: bool,
  compute_uv: bool,
  subset_by_index: tuple[int, int] | None,
  algorithm: Any = None,
) -> list[tf.Tensor]:
  """operand f32[m,n] -> values f32[k] in descending order, u f32[m,k], v^H f32[k,n]; NaN if it is
  not finite."""
  if 0 in ctx.avals_in[0].shape:
    return _empty_svd(ctx, operand)
  if operand.dtype.is_complex:
    refuse_xla(ctx, "singular values of complex matrices")
  ok = all_finite(operand)
  a = _zero_unless(ok, operand)
  part = slice(*subset_by_index) if subset_by_index is not None else slice(None)
  if not compute_uv:
    return [nan_unless(ok, tf.linalg.svd(a, compute_uv=False)[..., part])]
  values, u, v = tf.linalg.svd(a, full_matrices)
  if not full_matrices:
    values, u, v = values[..., part], u[..., part], v[..., part]
  return [nan_unless(ok, x) for x in (values, u, adjoint(v))]


def _empty_svd(ctx: RuleContext, operand: tf.Tensor) -> list[tf.Tensor]:
  """Identities for what full matrices leave."""
  values, *vectors = ctx.avals_out
  eyes = [
    tf.broadcast_to(
      tf.eye(*map(ctx.dim, aval.shape[-2:]), dtype=operand.dtype), ctx.shape(aval.shape)
    )
    for aval in vectors
  ]
  return [tf.zeros(ctx.shape(values.shape), real(operand).dtype), *eyes]


def _zero_unless(ok: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """x where ok, else zeros: TensorFlow's decompositions raise for NaN and infinities."""
  # tf2onnx 1.17 cannot index the result of a reduction over all axes.
  return tf.where(tf.expand_dims(tf.expand_dims(ok, -1), -1), x, 0)


def _complex(x: tf.Tensor) -> tf.DType:
  return {tf.float32: tf.complex64, tf.float64: tf.complex128}.get(x.dtype, x.dtype)
