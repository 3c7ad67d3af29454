"""QR by Householder's reflections, with LAPACK's signs and phases."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ..expansion import expands
from ..replay import sizes_of
from ._matrices import (
  adjoint,
  by_parts,
  conj,
  divided,
  extent,
  identities,
  joined,
  like_leading,
  loop,
  ranks_are_known,
  real,
  squared,
)

_UNROLLED = 8  # up to this size a loop makes no smaller file
_COMPLEX_UNROLLED = 4


def sizes_are_known(op: Any, x: tf.Tensor) -> bool:
  """Whether the size of a matrix is no symbol."""
  return ranks_are_known(op, x) and None not in x.shape[-2:]


@expands("Qr", takes=sizes_are_known)
def _qr(op: Any, a: tf.Tensor) -> list[tf.Tensor]:
  """a f32[..., m, n] -> (Q f32[..., m, k], R f32[..., k, n]), k = min(m, n), or m for full
  matrices."""
  m, n = a.shape[-2:]
  k = m if op.get_attr("full_matrices") else min(m, n)
  if 0 in (m, n):
    leading = sizes_of(a)[:-2]
    return [identities(leading, m, k, a.dtype), tf.zeros([*leading, k, n], a.dtype)]
  q, r = qr(joined(a))
  return [like_leading(q[..., :k], a), like_leading(r[..., :k, :], a)]


def qr(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """a [batch, m, n] or [m, n] of known m, n > 0 -> (Q [batch, m, m], R [batch, m, n])."""
  m, n = a.shape[-2:]
  # The last number of a square matrix has a reflection if it is complex, which makes it real.
  steps = min(m if a.dtype.is_complex else m - 1, n)
  identity = identities(sizes_of(a)[:-2], m, m, a.dtype)
  # Q^H and R are what the reflections make of the identity and of a: one product for both.
  both = tf.concat([a, identity], -1)
  if m <= (_COMPLEX_UNROLLED if a.dtype.is_complex else _UNROLLED):
    for k in range(steps):
      both = _reflected(both, k, m)
  elif steps:
    (both,) = loop(steps, lambda k, x: (_reflected(x, k, m),), both)
  r, q = tf.split(both, [n, m], -1)
  upper = np.arange(m)[:, np.newaxis] <= np.arange(n)
  return adjoint(q), tf.where(upper, r, tf.zeros([], a.dtype))


def _reflected(x: tf.Tensor, k: Any, m: int) -> tf.Tensor:
  """H^H x with H = I - tau v v^H, for which column k of it is zero below row k, and real at row k
  (LAPACK's xLARFG)."""
  zero, one = tf.zeros([], x.dtype), tf.ones([], x.dtype)
  nothing = real(zero)
  rows = tf.range(m)[:, tf.newaxis]
  column = x[..., k : k + 1] if isinstance(k, int) else tf.gather(x, [k], axis=-1)
  rest = tf.where(rows >= k, column, zero)
  alpha = rest[..., k : k + 1, :] if isinstance(k, int) else tf.gather(rest, [k], axis=-2)
  # The largest number is taken out of the norm, so that squares neither overflow nor vanish.
  scale = tf.reduce_max(extent(rest), -2, keepdims=True)
  safe = tf.where(scale > nothing, scale, real(one))
  squares = squared(by_parts(rest, lambda part: part / safe))
  norm = scale * tf.sqrt(tf.reduce_sum(squares, -2, keepdims=True))
  beta = tf.where(real(alpha) < nothing, norm, -norm)
  tail = tf.where(rows > k, column, zero)
  trivial = tf.reduce_all(tf.equal(tail, zero), -2, keepdims=True)
  if x.dtype.is_complex:
    trivial &= tf.equal(tf.math.imag(alpha), nothing)
  divisor = tf.where(trivial, real(one), beta)
  difference = tf.cast(beta, x.dtype) - alpha
  tau = tf.where(trivial, zero, by_parts(difference, lambda part: part / divisor))
  v = tf.where(tf.equal(rows, k), one, divided(tail, tf.where(trivial, one, -difference)))
  return x - v * (conj(tau) * tf.matmul(v, x, adjoint_a=True))
