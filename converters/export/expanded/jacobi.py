"""Eigenvalues of symmetric matrices and singular values, by Jacobi's rotations.

A round rotates all pairs of a perfect matching of the rows at once: row j and its partner. The
matchings of a round-robin tournament make a sweep, which meets every pair. Vectors are determined
up to a sign only, and so are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..expansion import expands
from ..replay import sizes_of
from ._matrices import identities, joined, like_leading, loop, padded
from .orthogonal import qr, sizes_are_known

_SWEEPS = 15  # at most; 8 are enough for 64 rows
_Rotate = Callable[..., tuple[tf.Tensor, ...]]

# --- rounds ---


def _partners(n: int) -> np.ndarray:
  """n even -> i32[n - 1, n]: the partner of each row in each round (the circle method: the last row
  stays, the others turn)."""
  rounds, rows = np.arange(n - 1)[:, np.newaxis], np.arange(n - 1)
  others = (2 * rounds - rows) % (n - 1)
  others = np.where(others == rows, n - 1, others)
  return np.concatenate([others, rounds], 1).astype(np.int32)


def _diagonal(x: tf.Tensor) -> tf.Tensor:
  """x [..., n, n] -> [..., n, 1]."""
  n = x.shape[-1]
  return tf.reduce_sum(tf.where(tf.eye(n, dtype=tf.bool), x, tf.zeros([], x.dtype)), -1, True)


def _angles(
  own: tf.Tensor, other: tf.Tensor, product: tf.Tensor, partner: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """(cosine, sine) [..., n, 1] of the rotations that make the products of rows and partners zero
  (Golub and Van Loan, 8.5.2): of squared lengths, or elements of a diagonal. The sine of a partner
  is the opposite."""
  zero, one, two = (tf.constant(c, own.dtype) for c in (0.0, 1.0, 2.0))
  difference, twice = other - own, two * product
  is_first = partner > tf.range(own.shape[-2])[:, tf.newaxis]
  larger = (difference > zero) | (tf.equal(difference, zero) & is_first)
  length = tf.abs(difference) + tf.sqrt(tf.square(difference) + tf.square(twice))
  tangent = tf.where(larger, twice, -twice) / tf.where(length > zero, length, one)
  cosine = one / tf.sqrt(one + tf.square(tangent))
  return cosine, cosine * tangent


def _swept(rotate: _Rotate, done: Callable[..., tf.Tensor], *state: tf.Tensor) -> Any:
  """Sweeps of `rotate(partner i32[n, 1], *state) -> state` until `done(*state)`."""
  partners = _partners(state[0].shape[-2])

  def turn(k: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return rotate(tf.gather(partners, k), *state)

  def sweep(k: tf.Tensor, stop: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
    state = loop(len(partners), turn, *state)
    return (k + 1, done(*state), *state)

  shapes = tuple(x.shape for x in state)
  _, _, *results = tf.while_loop(
    lambda k, stop, *_: (k < _SWEEPS) & ~stop,
    sweep,
    (0, done(*state), *state),
    shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), *shapes),
  )
  return results


def _turned(x: tf.Tensor, partner: tf.Tensor, cosine: tf.Tensor, sine: tf.Tensor) -> tf.Tensor:
  """The rows of x [..., n, k], each rotated with that of its partner."""
  return cosine * x - sine * tf.gather(x, partner, axis=-2)


def _tolerance(dtype: tf.DType, terms: int) -> tf.Tensor:
  """What rounding leaves of a product of this many terms that is to be zero."""
  return tf.constant(np.finfo(dtype.as_numpy_dtype).eps * max(2.5, terms**0.5), dtype)


def _scaled(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """(a / scale, scale [..., 1, 1]), so that squares neither overflow nor vanish; 1 for ordinary
  sizes, by which a quotient is exact."""
  largest = tf.reduce_max(tf.abs(a), [-2, -1], keepdims=True)
  one = tf.ones([], a.dtype)
  extreme = (largest > tf.constant(1e12, a.dtype)) | (largest < tf.constant(1e-12, a.dtype))
  scale = tf.where(extreme & (largest > tf.zeros([], a.dtype)), largest, one)
  return a / scale, scale


def _orthogonal(v: tf.Tensor) -> tf.Tensor:
  """The orthogonal matrix next to v, whose rows rounding has led away from it: a step of Newton's
  and Schulz' iteration."""
  gram = tf.matmul(v, v, transpose_b=True)
  three, half = tf.constant(3, v.dtype), tf.constant(0.5, v.dtype)
  return half * (three * v - tf.matmul(gram, v))


def _order(values: tf.Tensor, descending: bool) -> tf.Tensor:
  """values f32[..., n, 1] -> the permutation f32[..., n, n] that sorts rows, equal ones by
  position."""
  n = values.shape[-2]
  others = tf.linalg.matrix_transpose(values)
  before = others > values if descending else others < values
  earlier = np.arange(n) < np.arange(n)[:, np.newaxis]
  before |= tf.equal(others, values) & earlier
  rank = tf.reduce_sum(tf.cast(before, tf.int32), -1)  # [..., n], the position of each row
  return tf.cast(tf.equal(tf.expand_dims(rank, -2), np.arange(n)[:, np.newaxis]), values.dtype)


# --- eigenvalues ---


@expands("SelfAdjointEigV2", takes=sizes_are_known)
def _eigh(op: Any, a: tf.Tensor) -> list[tf.Tensor]:
  """a f32[..., n, n] -> values f32[..., n] in ascending order, vectors f32[..., n, n] in columns;
  reads the lower triangle."""
  n, leading = a.shape[-1], sizes_of(a)[:-2]
  wants_vectors = op.get_attr("compute_v")
  if n == 0:
    return [tf.zeros([*leading, 0], a.dtype), tf.identity(a)]
  values, vectors = _eigen(joined(a), n)
  values = tf.reshape(values, [*leading, n])
  return [values, like_leading(vectors, a) if wants_vectors else tf.zeros([0], a.dtype)]


def _eigen(a: tf.Tensor, n: int) -> tuple[tf.Tensor, tf.Tensor]:
  """a [batch, n, n] -> (values [batch, n, 1], vectors [batch, n, n])."""
  lower = np.arange(n)[:, np.newaxis] >= np.arange(n)
  a = tf.where(lower, a, tf.linalg.matrix_transpose(a))
  if n == 1:
    return a, tf.ones_like(a)
  a, scale = _scaled(a)
  odd, zero, half = n % 2, tf.zeros([], a.dtype), tf.constant(0.5, a.dtype)
  m = n + odd
  is_beside = ~np.eye(m, dtype=bool)

  def rotate(partner: tf.Tensor, x: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    diagonal = _diagonal(x)
    paired = tf.gather(x, partner, axis=-2)
    # The same for both of a pair, though rounding leaves x not quite symmetric: with two angles a
    # pair would not be rotated.
    beside = _diagonal(paired)
    product = half * (beside + tf.gather(beside, partner, axis=-2))
    other = tf.gather(diagonal, partner, axis=-2)
    cosine, sine = _angles(diagonal, other, product, tf.expand_dims(partner, -1))
    columns = tf.linalg.matrix_transpose(cosine * x - sine * paired)
    return _turned(columns, partner, cosine, sine), _turned(v, partner, cosine, sine)

  def done(x: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    size = tf.abs(x)
    largest = tf.reduce_max(size, [-2, -1])
    rest = tf.reduce_max(tf.where(is_beside, size, zero), [-2, -1])
    return tf.reduce_all(rest <= _tolerance(a.dtype, 1) * largest)

  _, v = _swept(rotate, done, padded(a, odd, odd), identities(sizes_of(a)[:-2], m, m, a.dtype))
  v = _orthogonal(v[..., :n, :n])
  # Rayleigh's quotients with a itself: the rotations' errors have added up in x.
  values = tf.reduce_sum(tf.matmul(v, a) * v, -1, keepdims=True)
  order = _order(values, descending=False)
  values, v = tf.matmul(order, values), tf.matmul(order, v)
  return values * scale, tf.linalg.matrix_transpose(v)


# --- singular values ---


@expands("Svd", takes=sizes_are_known)
def _svd(op: Any, a: tf.Tensor) -> list[tf.Tensor]:
  """a f32[..., m, n] -> values f32[..., p] in descending order, U f32[..., m, k], V f32[..., n, l];
  p = min(m, n) = k = l, or all columns for full matrices."""
  m, n = a.shape[-2:]
  leading, p = sizes_of(a)[:-2], min(m, n)
  full, wants_vectors = op.get_attr("full_matrices"), op.get_attr("compute_uv")
  if p == 0:
    u, v = (identities(leading, k, k if full else 0, a.dtype) for k in (m, n))
    return [tf.zeros([*leading, 0], a.dtype), u, v]
  x = joined(a)
  values, long, short = _singular(tf.linalg.matrix_transpose(x) if m < n else x, wants_vectors)
  values = tf.reshape(values, [*leading, p])
  if not wants_vectors:
    return [values, tf.zeros([0], a.dtype), tf.zeros([0], a.dtype)]
  long = like_leading(long if full else long[..., :p], a)
  short = like_leading(short, a)
  return [values, short, long] if m < n else [values, long, short]


def _singular(a: tf.Tensor, vectors: bool) -> tuple[tf.Tensor, Any, Any]:
  """a [batch, m, n] of m >= n -> (values [batch, n, 1], U [batch, m, m], V [batch, n, n])."""
  n = a.shape[-1]
  a, scale = _scaled(a)
  odd, zero, one = n % 2, tf.zeros([], a.dtype), tf.ones([], a.dtype)
  columns = tf.linalg.matrix_transpose(a)
  v = identities(sizes_of(a)[:-2], n, n, a.dtype)
  if n > 1:
    m = n + odd
    is_beside = ~np.eye(m, dtype=bool)

    def rotate(partner: tf.Tensor, x: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      paired = tf.gather(x, partner, axis=-2)
      own = tf.reduce_sum(tf.square(x), -1, keepdims=True)
      cosine, sine = _angles(
        own,
        tf.gather(own, partner, axis=-2),
        tf.reduce_sum(x * paired, -1, keepdims=True),
        tf.expand_dims(partner, -1),
      )
      return cosine * x - sine * paired, _turned(v, partner, cosine, sine)

    def done(x: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
      gram = tf.matmul(x, x, transpose_b=True)
      length = tf.sqrt(_diagonal(gram))
      largest = tf.reduce_max(length, [-2, -1], keepdims=True)
      tolerance = _tolerance(a.dtype, columns.shape[-1])
      bound = tolerance * length * tf.linalg.matrix_transpose(length)
      bound += tf.square(tolerance * largest)
      return tf.reduce_max(tf.where(is_beside, tf.abs(gram) - bound, zero)) <= zero

    _, v = _swept(
      rotate, done, padded(columns, odd, 0), identities(sizes_of(a)[:-2], m, m, a.dtype)
    )
    v = _orthogonal(v[..., :n, :n])
    # a itself once more: the rotations' errors have added up.
    columns = tf.matmul(v, columns)
  length = tf.reduce_max(tf.abs(columns), -1, keepdims=True)
  safe = tf.where(length > zero, length, one)
  values = length * tf.sqrt(tf.reduce_sum(tf.square(columns / safe), -1, keepdims=True))
  order = _order(values, descending=True)
  values = tf.matmul(order, values)
  if not vectors:
    return values * scale, None, None
  columns = tf.matmul(order, columns) / tf.where(values > zero, values, one)
  # The columns of Q are these but for signs, and orthogonal also where values are zero.
  q, r = qr(tf.linalg.matrix_transpose(columns))
  signs = tf.linalg.matrix_transpose(tf.where(_diagonal(r[..., :n, :]) < zero, -one, one))
  u = tf.concat([q[..., :n] * signs, q[..., n:]], -1)
  return values * scale, u, tf.linalg.matrix_transpose(tf.matmul(order, v))
