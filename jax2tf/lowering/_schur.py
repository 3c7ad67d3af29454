"""Schur forms in JAX: a Hessenberg form, then Francis' double QR steps to blocks of size 1 and 2.

All matrices of a batch take their steps together. The working matrix f32[b,r,m] is the Hessenberg
form in a frame of zeros, so m = n + 2: a step may read and write beyond the last row. Below it are
the vectors, so one product updates both.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax2tf.lowering._schur_blocks import Arrays, block_facts, eigenvectors, or_one, rotations

# Sweeps without a deflation after which other shifts are tried, as in LAPACK.
_EXCEPTIONAL = 10
# Sweeps for each eigenvalue, of 10 at least, after which a matrix has failed.
_MOST_SWEEPS = 30


def schur(a: jax.Array, *, vectors: bool) -> list[jax.Array]:
  """a f32[...,n,n] -> the form t f32[...,n,n] and, with `vectors`, z f32[...,n,n]; a = z t z^H.

  Real forms have the standard blocks of LAPACK: equal diagonals, and off-diagonal elements of
  opposite signs. A matrix that is not finite, or does not converge, gives NaN.
  """
  *batch, n, _ = a.shape
  a = a.reshape(math.prod(batch), n, n)
  finite = jnp.isfinite(a).all((-2, -1))
  a = jnp.where(finite[:, None, None], a, 0)
  scale = _scale(a)
  a = a * scale.astype(a.dtype)
  work, form = _hessenberg(a, vectors)
  work, converged, facts = _iterated(work, form)
  work = _standardised(work, facts, form)
  inside = slice(1, n + 1)
  results = [work[:, inside, inside] / scale.astype(a.dtype)]
  if vectors:
    results.append(work[:, n + 2 :, inside])
  ok = (finite & converged)[:, None, None]
  return [jnp.where(ok, x, jnp.nan).reshape(*batch, n, n) for x in results]


def _scale(a: jax.Array) -> jax.Array:
  """a f32[b,n,n] -> f32[b,1,1], a power of two that keeps sums and small elements in range."""
  largest = jnp.abs(a).max((-2, -1), keepdims=True)
  exponent = jnp.finfo(a.dtype).maxexp // 2  # 64 or 512
  down, up = 2.0 ** (-exponent // 2), 2.0**exponent
  scale = jnp.where(largest > up, down, jnp.where(largest < down, up, 1))
  return scale.astype(largest.dtype)


class _Form(NamedTuple):
  """Which elements of the working matrix are what.

  Attributes:
    row, column: numbers, i32[r,1] and i32[1,m].
    below: those on the diagonal below the main one, bool[r,m].
    lower: those below that, zero in a Hessenberg form.
  """

  row: jax.Array
  column: jax.Array
  below: jax.Array
  lower: jax.Array

  def diagonals(self, work: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """work -> f32[b,m] thrice: at i the element (i, i), the one left of it, the one above it."""
    size = work.shape[-1]
    square = work[:, :size]
    row, column = self.row[:size], self.column
    main = jnp.where(row == column, square, 0).sum(-1)
    left = jnp.where(row == column + 1, square, 0).sum(-1)
    above = jnp.where(row + 1 == column, square, 0).sum(-2)
    return main, left, above

  def cleared(self, work: jax.Array, n: int) -> jax.Array:
    """work with zeros below the diagonal for what is negligible, or not in a Hessenberg form."""
    main, left, above = self.diagonals(work)
    cut = jnp.pad(_negligible(main, left, above, n), ((0, 0), (0, work.shape[1] - main.shape[1])))
    return jnp.where(self.lower | (self.below & cut[:, :, None]), 0, work)


def _hessenberg(a: jax.Array, vectors: bool) -> tuple[jax.Array, _Form]:
  """a f32[b,n,n] -> the working matrix of its Hessenberg form, with r = n + 2 or 2*n + 2."""
  n = a.shape[-1]
  order = _order(a)
  a = jnp.take_along_axis(jnp.take_along_axis(a, order[:, :, None], 1), order[:, None, :], 2)
  packed, taus = lax.linalg.hessenberg(a)
  work = jnp.pad(jnp.triu(packed, -1), ((0, 0), (1, 1), (1, 1)))
  if vectors:
    rest = lax.linalg.householder_product(packed[:, 1:, :-1], taus)
    first = jnp.zeros((1, n), a.dtype).at[0, 0].set(1)
    first = jnp.broadcast_to(first, (a.shape[0], 1, n))
    q = jnp.concatenate([first, jnp.pad(rest, ((0, 0), (0, 0), (1, 0)))], 1)
    permutation = (jnp.arange(n)[:, None] == order[:, None, :]).astype(a.dtype)
    z = jnp.pad(_product(permutation, q), ((0, 0), (0, 0), (1, 1)))
    work = jnp.concatenate([work, z], 1)
  row = lax.broadcasted_iota(jnp.int32, (work.shape[1], 1), 0)
  column = lax.broadcasted_iota(jnp.int32, (1, work.shape[2]), 1)
  square = row < work.shape[2]
  return work, _Form(row, column, square & (row == column + 1), square & (row > column + 1))


def _order(a: jax.Array) -> jax.Array:
  """a f32[b,n,n] -> i32[b,n], an order of rows and columns in which known eigenvalues stand apart.

  A row without other elements goes to the end, a column without other elements to the front, and so
  on with the rest. So the form of any permuted triangular matrix is exact.
  """
  n = a.shape[-1]
  others = (a != 0) & (jnp.arange(n)[:, None] != jnp.arange(n))

  def isolate(axis: int, sign: int, rank: jax.Array, free: jax.Array) -> Arrays:
    def step(state: Any) -> Any:
      count, rank, free, _ = state
      among = free[:, None, :] if axis == 2 else free[:, :, None]
      alone = free & ~(others & among).any(axis)
      return count + 1, jnp.where(alone, sign * (n - count), rank), free & ~alone, alone.any()

    start = jnp.zeros((), jnp.int32), rank, free, jnp.ones((), bool)
    _, rank, free, _ = lax.while_loop(lambda state: state[3], step, start)
    return rank, free

  rank, free = jnp.zeros(a.shape[:2], jnp.int32), jnp.ones(a.shape[:2], bool)
  rank, _ = isolate(1, -1, *isolate(2, 1, rank, free))
  return jnp.argsort(rank, axis=-1, stable=True).astype(jnp.int32)


def _iterated(work: jax.Array, form: _Form) -> tuple[jax.Array, jax.Array, jax.Array]:
  """work -> (the same with blocks of size 1 and 2, what has converged bool[b], its `block_facts`).

  XLA may compute a value in two places, with different roundings. So the loop carries what must be
  the same in both.
  """
  n = work.shape[2] - 2
  limit = _MOST_SWEEPS * jnp.maximum(10, n)

  def running(state: Any) -> jax.Array:
    count, _, _, _, active, _ = state
    return (count < limit) & active.any()

  def sweep(state: Any) -> Any:
    count, work, last, since, _, _ = state
    main, left, above = form.diagonals(work)
    linked = left != 0
    position = jnp.arange(n + 2, dtype=jnp.int32)
    bottom = jnp.where(linked & jnp.roll(linked, 1, -1), position, 0).max(-1)
    active = bottom > 0
    top = jnp.where(~linked & (position < bottom[:, None]), position, 0).max(-1)
    since = jnp.where(bottom == last, since + 1, 0)
    first, vectors = _starts(main, left, above, top, bottom, since)
    first = jnp.where(active, first, n + 2)
    end = jnp.where(active, bottom, 0).max()
    chase = functools.partial(_chased, first=first, bottom=bottom, vectors=vectors, form=form)
    work = form.cleared(lax.fori_loop(first.min(), end, chase, work), n)
    return count + 1, work, bottom, since, active, block_facts(main, left, above)

  lanes = work.shape[0]
  none = jnp.zeros(lanes, jnp.int32)
  work = form.cleared(work, n)
  facts = block_facts(*form.diagonals(work))
  start = jnp.zeros((), jnp.int32), work, none, none, jnp.ones(lanes, bool), facts
  _, work, _, _, active, facts = lax.while_loop(running, sweep, start)
  return work, ~active, facts


def _negligible(main: jax.Array, left: jax.Array, above: jax.Array, n: int) -> jax.Array:
  """f32[b,m] thrice -> bool[b,m], which elements below the diagonal are zero to rounding.

  The criterion is that of Ahues and Tisseur (1997), as in LAPACK.
  """
  info = jnp.finfo(main.dtype)
  tiny = info.tiny * (n / info.eps)
  here, before = main, jnp.roll(main, 1, -1)
  size = jnp.abs(here) + jnp.abs(before)
  beside = jnp.abs(jnp.roll(left, 1, -1)) + jnp.abs(jnp.roll(left, -1, -1))
  size = jnp.where(size == 0, beside, size)
  low, high = jnp.abs(left), jnp.abs(above)
  larger, smaller = jnp.maximum(low, high), jnp.minimum(low, high)
  difference, own = jnp.abs(before - here), jnp.abs(here)
  most, least = jnp.maximum(own, difference), jnp.minimum(own, difference)
  total = most + larger
  total = or_one(total)
  refined = smaller * (larger / total) <= jnp.maximum(tiny, info.eps * (least * (most / total)))
  return (low <= tiny) | ((low <= info.eps * size) & refined)


def _starts(
  main: jax.Array,
  left: jax.Array,
  above: jax.Array,
  top: jax.Array,
  bottom: jax.Array,
  since: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Where each matrix' sweep starts, i32[b], and the first columns of shifted products f32[b,3,m].

  There is one for each row, up to a factor.
  """
  center, root = _shifts(main, left, above, top, bottom, since)
  next_main, next_left, next_above = (jnp.roll(x, -1, -1) for x in (main, left, above))
  shifted = main - center
  size = or_one(jnp.abs(shifted) + jnp.abs(root) + jnp.abs(next_left))
  under = next_left / size
  square = root * (root / size)
  # Two shifts of a real matrix are conjugates, and root is what they have behind the i.
  moved = shifted * (shifted / size) + (-square if jnp.iscomplexobj(main) else square)
  x = moved + under * next_above
  y = under * (shifted + next_main - center)
  z = under * jnp.roll(left, -2, -1)
  total = or_one(jnp.abs(x) + jnp.abs(y) + jnp.abs(z))
  x, y, z = x / total, y / total, z / total
  # Two small elements in a row: a sweep from there is one of the whole block, to rounding.
  rest = jnp.abs(left) * (jnp.abs(y) + jnp.abs(z))
  around = jnp.abs(jnp.roll(main, 1, -1)) + jnp.abs(main) + jnp.abs(next_main)
  cut = rest <= jnp.finfo(main.dtype).eps * jnp.abs(x) * around
  position = jnp.arange(main.shape[1], dtype=jnp.int32)
  valid = (position >= top[:, None]) & (position <= bottom[:, None] - 2)
  first = jnp.where(valid & (cut | (position == top[:, None])), position, 0).max(-1)
  return first, jnp.stack([x, y, z], 1)


def _shifts(
  main: jax.Array,
  left: jax.Array,
  above: jax.Array,
  top: jax.Array,
  bottom: jax.Array,
  since: jax.Array,
) -> Arrays:
  """The mean of two shifts for each matrix and half their difference, without the i, f32[b,1]
  twice.

  They are the eigenvalues of the last block of size 2, but others after many sweeps: permutations
  and other orthogonal matrices do not change under the former.
  """

  def at(x: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, index[:, None], 1)

  a, b, c, d = at(main, bottom - 1), at(above, bottom), at(left, bottom), at(main, bottom)
  center, root = _of_block(a, b, c, d)
  turn = since[:, None] % (2 * _EXCEPTIONAL)
  low = (jnp.abs(c) + jnp.abs(at(left, bottom - 1))).astype(a.dtype)
  high = (jnp.abs(at(left, top + 1)) + jnp.abs(at(left, top + 2))).astype(a.dtype)
  for number, x, s in ((_EXCEPTIONAL, at(main, top), high), (0, d, low)):
    others = _of_block(x + 0.75 * s, -0.4375 * s, s, x + 0.75 * s)
    due = (since[:, None] > 0) & (turn == number)
    center, root = jnp.where(due, others[0], center), jnp.where(due, others[1], root)
  return center, root


def _of_block(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> Arrays:
  """The eigenvalues of [[a, b], [c, d]] as `_shifts` has them; of two real ones that closer to d,
  twice."""
  size = or_one(jnp.abs(a) + jnp.abs(b) + jnp.abs(c) + jnp.abs(d))
  half = (a - d) / 2 / size
  square = half * half + (b / size) * (c / size)
  if jnp.iscomplexobj(a):
    return (a + d) / 2, jnp.sqrt(square) * size
  root = jnp.sqrt(jnp.abs(square)) * size
  closer = (a + d) / 2 - jnp.where(half < 0, -root, root)
  return jnp.where(square > 0, closer, (a + d) / 2), jnp.where(square > 0, 0, root)


def _chased(
  k: jax.Array,
  work: jax.Array,
  first: jax.Array,
  bottom: jax.Array,
  vectors: jax.Array,
  form: _Form,
) -> jax.Array:
  """A step of a sweep: a reflection of rows and columns k, k + 1 and k + 2.

  Only matrices whose sweep is there take part: first <= k < bottom.
  """
  lanes, height, width = work.shape
  zero = jnp.zeros_like(k)
  below = lax.dynamic_slice(work, (zero, k, k - 1), (lanes, 3, 1))
  vector = lax.dynamic_slice(vectors, (zero, zero, k), (lanes, 3, 1))
  v, tau = _reflector(jnp.where((k == first)[:, None], vector[:, :, 0], below[:, :, 0]))
  tau = jnp.where(((k >= first) & (k < bottom))[:, None, None], tau[:, :, None], 0)
  rows = lax.dynamic_slice(work, (zero, k, zero), (lanes, 3, width))
  columns = lax.dynamic_slice(work, (zero, zero, k), (lanes, height, 3))
  positions = jnp.arange(3, dtype=jnp.int32)
  wide = _product(v[:, None, :], (form.column == k + positions[:, None]).astype(v.dtype))  # [b,1,m]
  tall = _product((form.row == k + positions).astype(v.dtype), v[:, :, None])  # [b,r,1]
  across = tau * _product(jnp.conj(v)[:, None, :], rows)  # v^H H
  down = _product(columns, v[:, :, None])  # H v
  both = _product(across, jnp.swapaxes(wide, 1, 2))  # v^H H v
  left = jnp.concatenate([tall, tau * (down - tall * both)], 2)
  right = jnp.concatenate([across, jnp.conj(wide)], 1)
  return work - _product(left, right)


def _reflector(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """x f32[b,3] -> v f32[b,3], tau f32[b,1]: I - tau v v^H makes x a multiple of (1, 0, 0).

  tau is 0 where x is one already.
  """
  size = jnp.abs(x)
  largest = size.max(-1, keepdims=True)
  scale = or_one(largest)
  x, size = x / scale, size / scale
  length = jnp.sqrt((size * size).sum(-1, keepdims=True))
  alpha, modulus = x[:, :1], size[:, :1]
  phase = jnp.where(modulus == 0, 1, alpha / or_one(modulus))
  v = jnp.concatenate([alpha + phase * length, x[:, 1:]], 1)
  # From v itself, not from the length: else the errors of many reflections have one sign.
  square = jnp.real(v * jnp.conj(v)).sum(-1, keepdims=True)
  trivial = (x[:, 1:] == 0).all(-1, keepdims=True)
  tau = jnp.where(trivial, 0, 2 / or_one(square))
  return v, tau.astype(v.dtype)


def _standardised(work: jax.Array, facts: jax.Array, form: _Form) -> jax.Array:
  """work with triangular blocks of size 2; those of complex eigenvalues become standard ones."""
  main, left, above = form.diagonals(work)
  before = jnp.roll(main, 1, -1)
  is_block = left != 0
  if jnp.iscomplexobj(work):
    (cos, sin), block = eigenvectors(facts, before, left, main), None
  else:
    (cos, sin), block = rotations(facts, before, above, left, main)
  # The rotation of rows i - 1 and i is written at i.
  cos, sin = jnp.where(is_block, cos, 1), jnp.where(is_block, sin, 0)
  ends = jnp.roll(is_block, -1, -1)
  size = main.shape[1]
  row, column = form.row[:size], form.column
  diagonal = jnp.where(is_block, jnp.conj(cos), jnp.where(ends, jnp.roll(cos, -1, -1), 1))
  rotation = jnp.where(row == column, diagonal[:, :, None], 0)
  rotation += jnp.where(row == column + 1, sin[:, :, None], 0)
  rotation -= jnp.where(row + 1 == column, jnp.conj(sin)[:, None, :], 0)
  work = _product(work, rotation)
  square = _product(jnp.conj(jnp.swapaxes(rotation, 1, 2)), work[:, :size])
  if block is not None:
    a, b, c, d = (jnp.where(is_block, x, 0) for x in block)
    square = jnp.where((row == column) & is_block[:, :, None], d[:, :, None], square)
    square = jnp.where((row == column) & ends[:, :, None], jnp.roll(a, -1, -1)[:, :, None], square)
    square = jnp.where((row + 1 == column) & is_block[:, None, :], b[:, None, :], square)
    left = c
  else:
    left = jnp.zeros_like(left)
  square = jnp.where(row == column + 1, left[:, :, None], jnp.where(row > column, 0, square))
  return jnp.concatenate([square, work[:, size:]], 1)


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
  return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)
