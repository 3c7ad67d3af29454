"""Cholesky factors and triangular systems.

Both eliminate one column after another from the columns after it, by products of numbers alone, so
that a NaN or an infinity reaches those elements that it reaches in LAPACK.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ..expansion import expands
from ._matrices import (
  BLOCK,
  adjoint,
  block,
  blocks_of,
  joined,
  like_leading,
  loop,
  nan,
  padded,
  parts,
  ranks_are_known,
  size,
  zeros,
)

# --- Cholesky ---


@expands("Cholesky", takes=ranks_are_known)
def _cholesky(op: Any, a: tf.Tensor) -> list[tf.Tensor]:
  """a f32[..., n, n] -> f32[..., n, n]; reads the lower triangle. NaN in place of a factor that
  does not exist."""
  if a.shape.num_elements() == 0:
    return [tf.identity(a)]
  n, matrices = size(a, -1), joined(a)
  factor = _factor(matrices, n) if isinstance(n, int) and n <= BLOCK else _by_blocks(matrices, n)
  return [like_leading(factor, a)]


def _columns(a: tf.Tensor, n: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
  """a [..., m, n] whose first n rows are Hermitian -> the columns of L from their diagonal on, and
  the numbers whose roots are the diagonal."""
  below_all = a.shape[-2] != n  # rows that are no part of the square
  columns, pivots = [], []
  for k in range(n):
    left = n - k - 1
    column, right = parts(a, [1, left], -1)
    pivot, column = column[..., :1, :], column[..., 1:, :]
    root = tf.sqrt(pivot)
    pivots.append(pivot)
    if not (left or below_all):
      columns.append(root)
      break
    column = column / root
    columns.append(tf.concat([root, column], -2))
    if left:
      row = adjoint(column[..., :left, :] if below_all else column)
      a = right[..., 1:, :] - column * row
  return columns, pivots


def _failed(pivots: tf.Tensor) -> tf.Tensor:
  """[..., n, 1] -> bool[..., 1, 1]. As in LAPACK, a NaN is no failure, and spreads."""
  real = tf.math.real(pivots) if pivots.dtype.is_complex else pivots
  return tf.reduce_any(real <= tf.zeros([], real.dtype), [-2, -1], keepdims=True)


def _factor(a: tf.Tensor, n: int) -> tf.Tensor:
  """Without a loop: the columns one below the other, and a zero for the upper triangle."""
  columns, pivots = _columns(a, n)
  packed = tf.where(_failed(tf.concat(pivots, -2)), nan(a), tf.concat(columns, -2))
  zero = tf.zeros_like(pivots[0])
  starts = np.cumsum([0, *range(n, 0, -1)])
  position = np.full([n, n], starts[-1])
  for k in range(n):
    position[k:, k] = starts[k] + np.arange(n - k)
  numbers = tf.gather(tf.concat([packed, zero], -2), position.ravel(), axis=-2)
  return tf.reshape(numbers, [*_leading(a), n, n])


def _leading(a: tf.Tensor) -> list[Any]:
  return [-1 if a.shape[0] is None else a.shape[0]] if a.shape.rank == 3 else []


def _by_blocks(a: tf.Tensor, n: Any) -> tf.Tensor:
  """A loop over blocks of columns: what those before it leave of a block is factored without a
  loop."""
  count = blocks_of(n)
  whole = count * BLOCK
  rows, columns = tf.range(whole)[:, tf.newaxis], tf.range(whole)[tf.newaxis]
  # The rest is an identity, whose factor is one.
  a = padded(a, whole - n, whole - n)
  a = tf.where(tf.equal(rows, columns) & (rows >= n), tf.ones([], a.dtype), a)

  def step(k: tf.Tensor, factor: tf.Tensor, failed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    start = k * BLOCK
    rest = block(a, start, -1) - tf.matmul(factor, adjoint(block(factor, start, -2)))
    stacked = tf.concat([block(rest, start, -2), rest], -2)
    results, pivots = _columns(stacked, BLOCK)
    panel = tf.concat([column[..., BLOCK - i :, :] for i, column in enumerate(results)], -1)
    panel = tf.where(rows >= start + tf.range(BLOCK), panel, tf.zeros([], a.dtype))
    ones = [1] * (a.shape.rank - 1)
    here = (columns >= start) & (columns < start + BLOCK)
    factor = tf.where(here, tf.tile(panel, [*ones, count]), factor)
    return factor, failed | _failed(tf.concat(pivots, -2))

  not_failed = tf.zeros_like(a[..., :1, :1], tf.bool)
  factor, failed = loop(count, step, zeros(a), not_failed)
  factor = tf.where(failed & (rows >= columns), nan(a), factor)
  return factor[..., :n, :n]


# --- triangular systems ---


@expands("MatrixTriangularSolve", takes=ranks_are_known)
def _triangular_solve(op: Any, a: tf.Tensor, b: tf.Tensor) -> list[tf.Tensor]:
  """a f32[..., n, n], b f32[..., n, k] -> f32[..., n, k]; reads one triangle. Leading axes
  broadcast."""
  if b.shape.num_elements() == 0:
    return [tf.identity(b)]
  lower = op.get_attr("lower")
  if op.get_attr("adjoint"):
    a, lower = adjoint(a), not lower
  model = b
  if max(a.shape.rank, b.shape.rank) > 3:
    a, b = _same_leading(a, b)
    model, a, b = b, joined(a), joined(b)
  n = size(a, -1)
  if isinstance(n, int) and n <= BLOCK:
    x = _substituted(a, b, n, lower)
  else:
    x = _substituted_by_blocks(a, b, n, lower)
  return [like_leading(x, model)]


def _same_leading(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  shape_a, shape_b = tf.shape(a), tf.shape(b)
  leading = tf.broadcast_dynamic_shape(shape_a[:-2], shape_b[:-2])
  known = tf.broadcast_static_shape(a.shape[:-2], b.shape[:-2])
  results = []
  for x, shape in ((a, shape_a), (b, shape_b)):
    y = tf.broadcast_to(x, tf.concat([leading, shape[-2:]], 0))
    y.set_shape([*known, *x.shape[-2:]])
    results.append(y)
  return results[0], results[1]


def _substituted(a: tf.Tensor, b: tf.Tensor, n: int, lower: bool) -> tf.Tensor:
  """Without a loop: each row of x is eliminated from the rest of b."""
  columns = parts(a, [1] * n, -1)
  rows = []
  for k in range(n):
    if lower:
      _, diagonal, others = parts(columns[k], [k, 1, n - k - 1], -2)
      row, rest = parts(b, [1, n - k - 1], -2)
    else:
      others, diagonal, _ = parts(columns[n - k - 1], [n - k - 1, 1, k], -2)
      rest, row = parts(b, [n - k - 1, 1], -2)
    row = row / diagonal
    rows.append(row)
    if rest is not None:
      b = rest - others * row
  return tf.concat(rows if lower else rows[::-1], -2)


def _substituted_by_blocks(a: tf.Tensor, b: tf.Tensor, n: Any, lower: bool) -> tf.Tensor:
  """A loop over blocks of rows."""
  count = blocks_of(n)
  whole = count * BLOCK
  positions = tf.range(whole)
  a, b = padded(a, whole - n, whole - n), padded(b, whole - n, 0)
  is_rest = tf.equal(positions[:, tf.newaxis], positions) & (positions >= n)
  a = tf.where(is_rest, tf.ones([], a.dtype), a)

  def step(k: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor]:
    start = (k if lower else count - 1 - k) * BLOCK
    known = positions < start if lower else positions >= start + BLOCK
    rows = block(a, start, -2)
    # Zeros of x would make NaN of infinities.
    left = tf.where(known, rows, tf.zeros([], a.dtype))
    rest = block(b, start, -2) - tf.matmul(left, x)
    solved = _substituted(block(rows, start, -1), rest, BLOCK, lower)
    here = (positions >= start) & (positions < start + BLOCK)
    ones = [1] * (solved.shape.rank - 2)
    return (tf.where(here[:, tf.newaxis], tf.tile(solved, [*ones, count, 1]), x),)

  # of the shape of the result: the leading axes of both
  (x,) = loop(count, step, zeros(b + a[..., :1]))
  return x[..., :n, :]
