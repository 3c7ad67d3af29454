"""Tridiagonal systems, with the row exchanges of LAPACK's gtsv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..expansion import expands
from ._matrices import joined, like_leading, nan, ranks_are_known, size

# A row holds three numbers of the matrix, from its first column that is not yet eliminated, and
# its right-hand sides.
_WIDTH = 3
_UNROLLED = 8  # from this size on a loop makes the smaller file


def _unperturbed(op: Any, *operands: tf.Tensor) -> bool:
  return ranks_are_known(op, *operands) and not op.get_attr("perturb_singular")


@expands("TridiagonalSolve", takes=_unperturbed)
def _tridiagonal_solve(op: Any, diagonals: tf.Tensor, rhs: tf.Tensor) -> list[tf.Tensor]:
  """diagonals f32[..., 3, n] from the upper to the lower, rhs f32[..., n, k] -> f32[..., n, k]. NaN
  where the matrix is singular."""
  if rhs.shape.num_elements() == 0:
    return [tf.identity(rhs)]
  b, n = joined(rhs), size(rhs, -2)
  upper, main, lower = tf.split(tf.linalg.matrix_transpose(joined(diagonals)), 3, -1)
  is_last = tf.equal(tf.range(n), n - 1)[:, tf.newaxis]
  upper = tf.where(is_last, tf.zeros([], upper.dtype), upper)
  rows = tf.concat([lower, main, upper, b], -1)
  axes = [1, 0, 2] if rows.shape.rank == 3 else [0, 1]
  solve = _solved if isinstance(n, int) and n <= _UNROLLED else _solved_by_loops
  x, pivots = solve(tf.transpose(rows, axes), n, op.get_attr("partial_pivoting"))
  x, pivots = tf.transpose(x, axes), tf.transpose(pivots, axes)
  singular = tf.reduce_any(tf.equal(pivots, 0), [-2, -1], keepdims=True)
  return [like_leading(tf.where(singular, nan(x), x), rhs)]


def _shifted(row: tf.Tensor) -> tf.Tensor:
  """The row without its first number, which is eliminated, or no part of the matrix."""
  numbers = row[..., 1:_WIDTH]
  return tf.concat([numbers, tf.zeros_like(numbers[..., :1]), row[..., _WIDTH:]], -1)


def _eliminated(row: tf.Tensor, below: tf.Tensor, pivoting: bool) -> tuple[tf.Tensor, tf.Tensor]:
  """(the row with the larger first number, the rest of the other one without its first)."""
  pivot, other = row, below
  if pivoting:
    keeps = tf.abs(row[..., :1]) >= tf.abs(below[..., :1])
    pivot, other = tf.where(keeps, row, below), tf.where(keeps, below, row)
  return pivot, _shifted(other - other[..., :1] / pivot[..., :1] * pivot)


def _substituted(row: tf.Tensor, next_x: tf.Tensor, x_after: tf.Tensor) -> tf.Tensor:
  pivot, beside, after, b = tf.split(row, [1, 1, 1, -1], -1)
  return (b - beside * next_x - after * x_after) / pivot


def _solved(rows: tf.Tensor, n: int, pivoting: bool) -> tuple[tf.Tensor, tf.Tensor]:
  """rows [n, ..., 3 + k] -> (x [n, ..., k], pivots [n, ..., 1])."""
  current, *following = tf.unstack(rows, n)
  current, eliminated = _shifted(current), []
  for below in following:
    row, current = _eliminated(current, below, pivoting)
    eliminated.append(row)
  eliminated.append(current)
  x_after = next_x = tf.zeros_like(current[..., _WIDTH:])
  solution = []
  for row in reversed(eliminated):
    next_x, x_after = _substituted(row, next_x, x_after), next_x
    solution.append(next_x)
  return tf.stack(solution[::-1]), tf.stack([row[..., :1] for row in eliminated])


def _solved_by_loops(rows: tf.Tensor, n: Any, pivoting: bool) -> tuple[tf.Tensor, tf.Tensor]:
  """As `_solved`."""
  first = _shifted(rows[0])

  def eliminate(k: tf.Tensor, row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return _eliminated(row, tf.gather(rows, k + 1), pivoting)

  eliminated, last = _scan(n - 1, eliminate, first, first)
  eliminated = tf.concat([eliminated, last[tf.newaxis]], 0)
  none = tf.zeros_like(first[..., _WIDTH:])

  def substitute(k: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    next_x, x_after = tf.unstack(state, 2)
    x = _substituted(tf.gather(eliminated, n - 1 - k), next_x, x_after)
    return x, tf.stack([x, next_x])

  backwards, _ = _scan(n, substitute, tf.stack([none, none]), none)
  return tf.reverse(backwards, [0]), eliminated[..., :1]


def _scan(
  steps: Any, body: Callable[..., tuple[tf.Tensor, tf.Tensor]], state: tf.Tensor, row: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """`body(k, state) -> (row, state)` for k = 0, 1 ... steps - 1 -> (the rows, the last state).

  Args:
    steps: int or i32[].
    body: its rows have the shape of `row`; the shape of the state does not change.
    state: the first one.
    row: of the shape of the rows.
  """
  rows = tf.TensorArray(row.dtype, steps, element_shape=row.shape)

  def step(k: tf.Tensor, state: tf.Tensor, rows: Any) -> tuple[Any, ...]:
    result, state = body(k, state)
    return k + 1, state, rows.write(k, result)

  _, state, rows = tf.while_loop(
    lambda k, *_: k < steps,
    step,
    (0, state, rows),
    shape_invariants=(tf.TensorShape([]), state.shape, tf.TensorShape([])),
  )
  return rows.stack(), state
