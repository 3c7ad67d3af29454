"""Eigenvalues of Hermitian matrices and singular values, by Jacobi's rotations.

A round rotates all pairs of a perfect matching of the rows at once: row j and its partner. The
matchings of a round-robin tournament make a sweep, which meets every pair. Vectors are determined
up to a sign only, and so are ours; the first element of a complex eigenvector is real, as LAPACK
leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..expansion import expands
from ..replay import sizes_of
from ._matrices import (
  adjoint,
  by_parts,
  conj,
  extent,
  identities,
  joined,
  like_leading,
  loop,
  padded,
  real,
  squared,
)
from .orthogonal import qr, sizes_are_known

_SWEEPS = 15  # at most; 8 are enough for 64 rows
_SMALL_STEP = 2.0**-11  # whose square is a rounding
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
  (Golub and Van Loan, 8.5.2): of squared lengths, or elements of a diagonal, which are real. The
  sine of a partner is the opposite, and conjugate."""
  if product.dtype.is_complex:  # a phase makes it real
    size = tf.abs(product)
    cosine, sine = _angles(own, other, size, partner)
    return cosine, by_parts(product, lambda part: sine * tf.math.divide_no_nan(part, size))
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
  return _rotated(x, tf.gather(x, partner, axis=-2), cosine, sine)


def _rotated(x: tf.Tensor, other: tf.Tensor, cosine: tf.Tensor, sine: tf.Tensor) -> tf.Tensor:
  return by_parts(x, lambda part: cosine * part) - sine * other


def _tolerance(dtype: tf.DType, terms: int) -> tf.Tensor:
  """What rounding leaves of a product of this many terms that is to be zero."""
  eps = np.finfo(dtype.as_numpy_dtype).eps
  return tf.constant(eps * max(2.5, terms**0.5), dtype.real_dtype)


def _scaled(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """(a / scale, scale [..., 1, 1]), so that squares neither overflow nor vanish; 1 for ordinary
  sizes, by which a quotient is exact."""
  largest = tf.reduce_max(extent(a), [-2, -1], keepdims=True)
  zero, one, least, most = (tf.constant(c, largest.dtype) for c in (0.0, 1.0, 1e-12, 1e12))
  extreme = (largest > most) | (largest < least)
  scale = tf.where(extreme & (largest > zero), largest, one)
  return by_parts(a, lambda part: part / scale), scale


def _refined(v: tf.Tensor, products: tf.Tensor) -> tf.Tensor:
  """Vectors v in rows without most of what the rotations' rounding has added up to (Ogita and
  Aishima, "Iterative refinement for symmetric eigenvalue decomposition", 2018).

  Args:
    v: [..., n, n], nearly unitary.
    products: v A v^H, nearly diagonal.
  """
  n = v.shape[-1]
  identity = tf.eye(n, dtype=v.dtype)
  lacking = identity - tf.matmul(v, v, adjoint_b=True)
  values = real(_diagonal(products)) / real(_diagonal(identity - lacking))
  of_columns = tf.linalg.matrix_transpose(values)
  half = tf.constant(0.5, values.dtype)
  gaps, means = of_columns - values, half * (of_columns + values)
  error = products + by_parts(lacking, lambda part: part * means)
  # Hermitian but for rounding, which would be a step away from unitary vectors.
  error = by_parts(error + adjoint(error), lambda part: half * part)
  # A pair of close values has any two vectors of its plane; they need to be orthogonal only.
  clear = extent(error) < tf.constant(_SMALL_STEP, gaps.dtype) * tf.abs(gaps)
  safe = tf.where(clear, gaps, tf.ones([], gaps.dtype))
  turn = tf.where(clear, by_parts(error, lambda part: part / safe), tf.zeros([], v.dtype))
  step = turn + by_parts(lacking, lambda part: half * part)
  return v + tf.matmul(step, v, adjoint_a=True)


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
  reads the lower triangle. Values of complex matrices are complex numbers, too."""
  n, leading = a.shape[-1], sizes_of(a)[:-2]
  wants_vectors = op.get_attr("compute_v")
  if n == 0:
    return [tf.zeros([*leading, 0], a.dtype), tf.identity(a)]
  values, vectors = _eigen(joined(a), n)
  values = tf.cast(tf.reshape(values, [*leading, n]), a.dtype)
  return [values, like_leading(vectors, a) if wants_vectors else tf.zeros([0], a.dtype)]


def _eigen(a: tf.Tensor, n: int) -> tuple[tf.Tensor, tf.Tensor]:
  """a [batch, n, n] -> (values [batch, n, 1], vectors [batch, n, n])."""
  lower = np.arange(n)[:, np.newaxis] >= np.arange(n)
  a = tf.where(lower, a, adjoint(a))
  if a.dtype.is_complex:  # the imaginary parts of the diagonal count for nothing
    im = tf.math.imag(a)
    a = tf.complex(real(a), tf.where(np.eye(n, dtype=bool), tf.zeros([], im.dtype), im))
  if n == 1:
    return real(a), tf.ones_like(a)
  a, scale = _scaled(a)
  odd, zero, half = n % 2, tf.zeros([], scale.dtype), tf.constant(0.5, a.dtype)
  m = n + odd
  is_beside = ~np.eye(m, dtype=bool)

  def rotate(partner: tf.Tensor, x: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    diagonal = real(_diagonal(x))
    paired = tf.gather(x, partner, axis=-2)
    # The same for both of a pair, though rounding leaves x not quite symmetric: with two angles a
    # pair would not be rotated.
    beside = conj(_diagonal(paired))
    product = half * (beside + conj(tf.gather(beside, partner, axis=-2)))
    other = tf.gather(diagonal, partner, axis=-2)
    cosine, sine = _angles(diagonal, other, product, tf.expand_dims(partner, -1))
    columns = adjoint(_rotated(x, paired, cosine, sine))
    return _turned(columns, partner, cosine, sine), _turned(v, partner, cosine, sine)

  def done(x: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    size = extent(x)
    largest = tf.reduce_max(size, [-2, -1])
    rest = tf.reduce_max(tf.where(is_beside, size, zero), [-2, -1])
    return tf.reduce_all(rest <= _tolerance(a.dtype, 1) * largest)

  _, v = _swept(rotate, done, padded(a, odd, odd), identities(sizes_of(a)[:-2], m, m, a.dtype))
  v = v[..., :n, :n]
  v = _refined(v, tf.matmul(tf.matmul(v, a), v, adjoint_b=True))
  # Rayleigh's quotients with a itself: the rotations' errors have added up in x.
  values = tf.reduce_sum(real(tf.matmul(v, a) * conj(v)), -1, keepdims=True)
  values = values / tf.reduce_sum(squared(v), -1, keepdims=True)
  order = _order(values, descending=False)
  values, v = tf.matmul(order, values), by_parts(v, lambda part: tf.matmul(order, part))
  if a.dtype.is_complex:
    first = conj(v[..., :1])
    size = tf.abs(first)
    safe = tf.where(size > zero, size, tf.ones([], size.dtype))
    phase = by_parts(first, lambda part: part / safe)
    v = v * tf.where(size > zero, phase, tf.ones([], a.dtype))
  return values * scale, adjoint(v)


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
  values, long, short = _singular(adjoint(x) if m < n else x, wants_vectors)
  values = tf.cast(tf.reshape(values, [*leading, p]), a.dtype)
  if not wants_vectors:
    return [values, tf.zeros([0], a.dtype), tf.zeros([0], a.dtype)]
  long = like_leading(long if full else long[..., :p], a)
  short = like_leading(short, a)
  return [values, short, long] if m < n else [values, long, short]


def _singular(a: tf.Tensor, vectors: bool) -> tuple[tf.Tensor, Any, Any]:
  """a [batch, m, n] of m >= n -> (values [batch, n, 1], U [batch, m, m], V [batch, n, n])."""
  n = a.shape[-1]
  a, scale = _scaled(a)
  odd, zero, one = n % 2, tf.zeros([], scale.dtype), tf.ones([], scale.dtype)
  columns = tf.linalg.matrix_transpose(a)
  v = identities(sizes_of(a)[:-2], n, n, a.dtype)
  if n > 1:
    m = n + odd
    is_beside = ~np.eye(m, dtype=bool)

    def rotate(partner: tf.Tensor, x: tf.Tensor, v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      paired = tf.gather(x, partner, axis=-2)
      own = tf.reduce_sum(squared(x), -1, keepdims=True)
      cosine, sine = _angles(
        own,
        tf.gather(own, partner, axis=-2),
        tf.reduce_sum(x * conj(paired), -1, keepdims=True),
        tf.expand_dims(partner, -1),
      )
      return _rotated(x, paired, cosine, sine), _turned(v, partner, cosine, sine)

    def done(x: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
      gram = tf.matmul(x, x, adjoint_b=True)
      length = tf.sqrt(real(_diagonal(gram)))
      largest = tf.reduce_max(length, [-2, -1], keepdims=True)
      tolerance = _tolerance(a.dtype, columns.shape[-1])
      bound = tolerance * length * tf.linalg.matrix_transpose(length)
      bound += tf.square(tolerance * largest)
      return tf.reduce_max(tf.where(is_beside, extent(gram) - bound, zero)) <= zero

    _, v = _swept(
      rotate, done, padded(columns, odd, 0), identities(sizes_of(a)[:-2], m, m, a.dtype)
    )
    v = v[..., :n, :n]
    turned = tf.matmul(v, columns)
    v = _refined(v, tf.matmul(turned, turned, adjoint_b=True))
    # a itself once more: the rotations' errors have added up.
    columns = tf.matmul(v, columns)
  length = tf.reduce_max(extent(columns), -1, keepdims=True)
  safe = tf.where(length > zero, length, one)
  squares = squared(by_parts(columns, lambda part: part / safe))
  values = length * tf.sqrt(tf.reduce_sum(squares, -1, keepdims=True))
  order = _order(values, descending=True)
  values = tf.matmul(order, values)
  if not vectors:
    return values * scale, None, None
  divisor = tf.where(values > zero, values, one)
  columns = by_parts(columns, lambda part: tf.matmul(order, part) / divisor)
  # The columns of Q are these but for signs, and orthogonal also where values are zero.
  q, r = qr(tf.linalg.matrix_transpose(columns))
  signs = tf.linalg.matrix_transpose(tf.where(real(_diagonal(r[..., :n, :])) < zero, -one, one))
  u = tf.concat([by_parts(q[..., :n], lambda part: part * signs), q[..., n:]], -1)
  v = by_parts(v, lambda part: tf.matmul(order, part))
  return values * scale, u, tf.linalg.matrix_transpose(v)
