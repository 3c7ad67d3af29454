"""Linear systems and triangular factorisations.

TensorFlow's Lu and MatrixTriangularSolve raise if a pivot or a diagonal element is zero; LAPACK
continues, so JAX returns the LU of the singular matrix, or infinities. So the rules compute LU and
triangular solutions of singular matrices with other ops.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax
from jax.extend.core import primitives as P

from jax2tf.context import RuleContext
from jax2tf.dtypes import HALF
from jax2tf.lowering._matrices import (
  BLOCK,
  all_finite,
  call,
  conj,
  largest,
  loop,
  modulus,
  nan_unless,
  outer,
  real,
  refuse_xla,
  shared,
  size,
  unless_compiled,
)
from jax2tf.registry import lowers

# --- systems ---


@lowers(P.linear_solve_p, inner=lambda params: [params["jaxprs"].solve])
def _linear_solve(
  ctx: RuleContext, *operands: tf.Tensor, const_lengths: Any, jaxprs: Any
) -> list[tf.Tensor]:
  """(constants of four jaxprs, b) -> x, by the user's own `solve`."""
  *constants, b = _split(operands, list(const_lengths))
  return ctx.lower(jaxprs.solve, *constants[list(const_lengths._fields).index("solve")], *b)


def _split(items: Any, lengths: list[int]) -> list[Any]:
  """Runs of these lengths, then the rest."""
  starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
  return [items[i:j] for i, j in zip(starts, [*starts[1:], None], strict=True)]


@lowers(P.triangular_solve_p, lacks=HALF)  # TF 2.21: no MatrixTriangularSolve for 16 bits
def _triangular_solve(
  ctx: RuleContext,
  a: tf.Tensor,
  b: tf.Tensor,
  *,
  left_side: bool,
  lower: bool,
  transpose_a: bool,
  conjugate_a: bool,
  unit_diagonal: bool,
) -> tf.Tensor:
  """a f32[n,n], b f32[n,k] -> f32[n,k], the x of `op(a) x = b`; or b f32[k,n] -> the x of `x op(a)
  = b`.

  Reads one triangle of a.
  """
  shape_a, shape_b = ctx.avals_in[0].shape, ctx.avals_in[1].shape
  if 0 in (*shape_a, *shape_b):
    return b
  # TF 2.21: "'tf.MatrixDiagPartV3' op does not implement layout propagation". The derivative of
  # cholesky solves such systems.
  ctx.refuse_under_dtensor(
    "DTensor has no layout for triangular systems", "convert without dtensor_mesh"
  )
  if not left_side:  # the transposed system
    transpose_a, b = not transpose_a, tf.linalg.matrix_transpose(b)
    shape_b = (*shape_b[:-2], shape_b[-1], shape_b[-2])
  if conjugate_a != transpose_a:  # the op takes the matrix itself or its adjoint
    a = conj(a)
  if unit_diagonal:
    x = tf.linalg.triangular_solve(
      tf.linalg.set_diag(a, tf.ones(ctx.shape(shape_a[:-1]), a.dtype)), b, lower, transpose_a
    )
  else:
    (x,) = call(
      ctx,
      triangular_solve,
      a,
      b,
      batch=len(shape_a) - 2,
      shapes=[shape_a, shape_b, shape_b],
      lower=lower,
      adjoint=transpose_a,
      on_gpu=ctx.destination.only_on_gpus,
    )
  return tf.cast(x if left_side else tf.linalg.matrix_transpose(x), ctx.dtype_out)


def triangular_solve(
  a: tf.Tensor, b: tf.Tensor, *, lower: bool, adjoint: bool, on_gpu: bool
) -> tuple[tf.Tensor]:
  """a[batch,n,n], b[batch,n,k] -> [batch,n,k]; TensorFlow's op where it would not raise."""
  regular = tf.reduce_all(tf.abs(_diagonal(a, on_gpu)) > 0)  # not so for NaN
  return (
    tf.cond(
      regular,
      lambda: tf.linalg.triangular_solve(a, b, lower, adjoint),
      lambda: _substitute(a, b, lower, adjoint, on_gpu),
    ),
  )


def _diagonal(a: tf.Tensor, on_gpu: bool) -> tf.Tensor:
  """a[batch,n,n] -> [batch,n]."""
  if on_gpu:  # of MatrixDiagPartV3 a GPU reads the padding value from host memory
    return tf.raw_ops.MatrixDiagPart(input=a)
  return tf.linalg.diag_part(a)


def _substitute(a: tf.Tensor, b: tf.Tensor, lower: bool, adjoint: bool, on_gpu: bool) -> tf.Tensor:
  """Row by row, through zeros on the diagonal: x / 0 is an infinity, as in LAPACK."""
  n, diagonal = size(a, -1), _diagonal(a, on_gpu)
  a = tf.linalg.set_diag(
    tf.linalg.band_part(a, *((-1, 0) if lower else (0, -1))), tf.zeros_like(diagonal)
  )
  if adjoint:
    a, diagonal, lower = tf.linalg.adjoint(a), conj(diagonal), not lower

  def row(k: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor]:
    k = k if lower else n - 1 - k
    solved = (b[:, k] - tf.matmul(a[:, k, tf.newaxis], x)[:, 0]) / diagonal[:, k, tf.newaxis]
    return (tf.where(tf.equal(tf.range(n), k)[:, tf.newaxis], solved[:, tf.newaxis], x),)

  return loop(n, row, tf.zeros_like(b))[0]


@lowers(P.tridiagonal_solve_p)
def _tridiagonal_solve(
  ctx: RuleContext,
  lower: tf.Tensor,
  diagonal: tf.Tensor,
  upper: tf.Tensor,
  b: tf.Tensor,
  *,
  perturb_singular: bool = False,
) -> tf.Tensor:
  """lower f32[n], diagonal f32[n], upper f32[n], b f32[n,k] -> f32[n,k]; lower[0] and upper[n-1]
  are not read."""
  if 0 in ctx.aval_out.shape:
    return b
  refuse_xla(ctx, "tridiagonal systems")
  return tf.raw_ops.TridiagonalSolve(
    diagonals=tf.stack([upper, diagonal, lower], -2),
    rhs=b,
    partial_pivoting=True,
    perturb_singular=perturb_singular,
  )


@lowers(lax.linalg.symmetric_product_p)
def _symmetric_product(
  ctx: RuleContext, a: tf.Tensor, c: tf.Tensor, *, alpha: float, beta: float
) -> tf.Tensor:
  """a f32[n,k], c f32[n,n] -> f32[n,n], alpha a a^T + beta c."""
  return tf.cast(alpha, a.dtype) * tf.matmul(a, a, transpose_b=True) + tf.cast(beta, a.dtype) * c


# --- Cholesky ---


@lowers(P.cholesky_p)
def _cholesky(ctx: RuleContext, operand: tf.Tensor) -> tf.Tensor:
  """operand f32[n,n] -> f32[n,n], its lower factor; NaN when it is not positive definite. Reads the
  lower triangle."""
  if 0 in ctx.aval_out.shape:
    return operand
  # TF 2.21: Cholesky fills the lower triangle with NaN where it fails. A NaN of the operand is not
  # a failure, as in OpenBLAS.
  factor = tf.linalg.cholesky(operand)
  rows = tf.range(ctx.dim(ctx.aval_out.shape[-1]))
  # also where a symbolic n is 0
  failed = tf.reduce_any(tf.math.is_nan(real(factor[..., :1, :1])), [-2, -1])
  return nan_unless(~failed, tf.where(rows[:, tf.newaxis] >= rows, factor, operand))


@lowers(lax.linalg.cholesky_update_p)
def _cholesky_update(ctx: RuleContext, r: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
  """r f32[n,n], w f32[n] -> f32[n,n], the upper factor of r^T r + w w^T, by Givens rotations."""
  if 0 in ctx.aval_out.shape:
    return r
  return ctx.lower_fun(_rotate_into, r, w)


def _rotate_into(r: jax.Array, w: jax.Array) -> jax.Array:
  def rotate(k: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    r, w = state
    row, x, y = r[k], r[k, k], w[k]
    scale = jnp.where(y == 0, jnp.ones_like(x), jnp.maximum(jnp.abs(x), jnp.abs(y)))
    norm = jnp.sqrt((x / scale) ** 2 + (y / scale) ** 2)
    cos, sin = jnp.where(y == 0, 1, x / scale / norm), jnp.where(y == 0, 0, y / scale / norm)
    return r.at[k].set(cos * row + sin * w), cos * w - sin * row

  return lax.fori_loop(0, w.shape[0], rotate, (r, w))[0]


# --- LU ---

# Rows of a matrix of unknown size: more than 2^20, and their square is more than TensorFlow's
# tensors hold.
_MOST_ROWS_BITS = 20
_UNROLLED = 16  # up to this size a factorisation has no loop


@lowers(P.lu_p)
def _lu(ctx: RuleContext, operand: tf.Tensor) -> list[tf.Tensor]:
  """operand f32[m,n] -> L below and U above f32[m,n], row exchanges i32[min(m,n)], the permutation
  i32[m] that they make."""
  aval, pivots, permutation = ctx.avals_out
  if 0 in aval.shape:
    rows = tf.range(ctx.dim(permutation.shape[-1]))
    return [
      operand,
      tf.zeros(ctx.shape(pivots.shape), tf.int32),
      tf.broadcast_to(rows, ctx.shape(permutation.shape)),
    ]
  *batch, m, n = aval.shape
  return call(ctx, lu, operand, batch=len(batch), square=m == n)


def lu(a: tf.Tensor, square: bool = False) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """a[batch,m,n] -> (L and U [batch,m,n], exchanges [batch,min(m,n)], permutation [batch,m])."""
  by_columns = shared(_lu_of_few if _is_small(a) else _lu_blocks, a)
  if square and not a.dtype.is_complex:  # the op has another modulus of a complex pivot
    return unless_compiled(lambda: _lu_by_op(a, by_columns), lambda: by_columns(a))
  return by_columns(a)


def _lu_by_op(a: tf.Tensor, otherwise: Any) -> Any:
  """a f32[batch,n,n] by TensorFlow's Lu, which takes LAPACK's pivots; `otherwise(a)` where it would
  raise: for a zero pivot."""
  # By the factorisation of Lu: finite if that does not raise. Lu takes a subnormal pivot for zero,
  # the logarithm does not.
  _, log = tf.linalg.slogdet(
    tf.where(tf.abs(a) < np.finfo(a.dtype.as_numpy_dtype).tiny, tf.zeros_like(a), a)
  )
  regular = tf.math.is_finite(log)
  packed_lu, permutation = tf.linalg.lu(
    tf.where(regular[:, tf.newaxis, tf.newaxis], a, tf.eye(size(a, -1), dtype=a.dtype))
  )
  sure = tf.reduce_all(regular) & tf.reduce_all(all_finite(packed_lu))
  return tf.cond(
    sure, lambda: (packed_lu, _exchanges(permutation), permutation), lambda: otherwise(a)
  )


def _exchanges(permutation: tf.Tensor) -> tf.Tensor:
  """p i32[batch,m] -> i32[batch,m], the position e >= k with which step k exchanges: the first of
  p[k], p[p[k]] ... that is not below k.

  Row p[k] is at p[k] until the step of this number moves it to where that step's own exchange goes,
  and so on.
  """
  m, start = size(permutation, -1), tf.zeros_like(permutation) + tf.range(size(permutation, -1))
  steps = [(permutation, permutation)]  # the 2^i-th successor of each, and the largest up to there
  for _ in range((m - 1).bit_length() if isinstance(m, int) else _MOST_ROWS_BITS):
    successor, most = steps[-1]
    steps.append((_of(successor, successor), tf.maximum(most, _of(most, successor))))
  at = start
  for successor, most in reversed(steps):
    at = tf.where(_of(most, at) < start, _of(successor, at), at)
  return _of(permutation, at)


def _of(x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  """x[batch,m], i32[batch,k] -> [batch,k]."""
  return tf.gather(x, positions, axis=1, batch_dims=1)


def _is_small(a: tf.Tensor) -> bool:
  """Whether [batch,m,n] of real numbers is factored without a loop."""
  rows, columns = size(a, -2), size(a, -1)
  known = isinstance(rows, int) and isinstance(columns, int)
  return known and max(rows, columns) <= _UNROLLED and not a.dtype.is_complex


def _lu_of_few(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """`lu` without a loop: a step exchanges rows, the first of which is finished, and eliminates its
  column from the others. The number of a row moves with it, as an element before those of L."""
  m, n = size(a, -2), size(a, -1)
  numbers = tf.broadcast_to(tf.range(m, dtype=a.dtype)[:, tf.newaxis], [tf.shape(a)[0], m, 1])
  rows, finished, exchanges = tf.concat([numbers, a], 2), [], []
  for k in range(min(m - 1, n)):
    pivot = largest(tf.abs(rows[:, :, k + 1 : k + 2]))
    exchanges.append(pivot)
    order = tf.gather(_swaps(m - k), tf.squeeze(pivot, 1))
    first, rows = tf.split(tf.gather(rows, order, axis=1, batch_dims=1), [1, m - k - 1], 1)
    finished.append(first)
    sizes = [k + 1, 1, n - k - 1] if k < n - 1 else [k + 1, 1]
    _, top, *right_of_top = tf.split(first, sizes, 2)
    before, column, *rest = tf.split(rows, sizes, 2)
    # of a pivot of 0 the column stays
    column = column / tf.where(tf.equal(top, 0), tf.ones([], a.dtype), top)
    rest = [x - column * row for x, row in zip(rest, right_of_top, strict=True)]
    rows = tf.concat([before, column, *rest], 2)
  permutation, packed_lu = tf.split(tf.concat([*finished, rows], 1), [1, n], 2)
  if m <= n:  # the last row stays
    exchanges.append(tf.zeros([tf.shape(a)[0], 1], tf.int64))
  relative = tf.cast(tf.concat(exchanges, 1), tf.int32)
  return packed_lu, relative + tf.range(min(m, n)), tf.cast(permutation[..., 0], tf.int32)


def _swaps(n: int) -> np.ndarray:
  """i64[n,n], whose row p is 0, 1 ... n - 1 with p and 0 exchanged."""
  swaps = np.tile(np.arange(n), [n, 1])
  swaps[:, 0] = np.arange(n)
  np.fill_diagonal(swaps, 0)
  return swaps


def _lu_blocks(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """`lu` by loops over the columns of blocks."""
  packed_lu, permutation = _packed_lu(a)
  return packed_lu, _exchanges(permutation)[:, : size(a, -1)], permutation


def _packed_lu(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """a[batch,m,n] -> (L and U [batch,m,n], permutation [batch,m])."""
  m, n = size(a, -2), size(a, -1)
  if not (isinstance(m, int) and isinstance(n, int)):
    return _lu_columns(a, tf.minimum(m, n))
  permutation = None
  for start in range(0, min(m, n), BLOCK):
    end = min(start + BLOCK, m, n)
    panel, order = _lu_columns(a[:, start:, start:end], end - start)
    below: Any = (
      tf.gather(a[:, start:], order, axis=1, batch_dims=1) if (start or end < n) else None
    )
    parts = [panel]
    if start:
      parts = [below[:, :, :start], *parts]
    if end < n:
      unit = tf.linalg.set_diag(panel[:, : end - start], tf.ones_like(panel[:, 0]))
      upper = tf.linalg.triangular_solve(unit, below[:, : end - start, end:])
      parts.append(
        tf.concat(
          [upper, below[:, end - start :, end:] - tf.matmul(panel[:, end - start :], upper)], 1
        )
      )
    a = tf.concat([a[:, :start], tf.concat(parts, 2)], 1) if len(parts) > 1 else panel
    rest = order if permutation is None else _of(permutation[:, start:], order)
    permutation = rest if permutation is None else tf.concat([permutation[:, :start], rest], 1)
  return a, permutation


def _lu_columns(a: tf.Tensor, steps: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """The first `steps` steps of Gaussian elimination with the pivot of largest modulus; a zero pivot
  is skipped."""
  batch, m = tf.shape(a)[0], size(a, -2)
  rows, columns = tf.range(m), tf.range(size(a, -1))

  def eliminate(k: tf.Tensor, a: tf.Tensor, permutation: tf.Tensor) -> tuple[tf.Tensor, ...]:
    pivot = tf.cast(largest(tf.where(rows >= k, modulus(a[:, :, k]), -1))[:, tf.newaxis], tf.int32)
    order = tf.where(tf.equal(rows, k), pivot, tf.where(tf.equal(rows, pivot), k, rows))
    a, permutation = (tf.gather(x, order, axis=1, batch_dims=1) for x in (a, permutation))
    row, column = a[:, k], a[:, :, k]
    top = row[:, k, tf.newaxis]
    column = tf.where((rows > k) & tf.not_equal(top, 0), column / top, column)
    rest = tf.where((rows > k)[:, tf.newaxis] & (columns > k), a - outer(column, row), a)
    return tf.where(tf.equal(columns, k), column[:, :, tf.newaxis], rest), permutation

  return loop(steps, eliminate, a, tf.broadcast_to(rows, [batch, m]))


_MOST_EXCHANGES = 8  # without a loop; an iteration costs more than the ops of an exchange


@lowers(lax.linalg.lu_pivots_to_permutation_p)
def _lu_pivots_to_permutation(
  ctx: RuleContext, pivots: tf.Tensor, *, permutation_size: Any
) -> tf.Tensor:
  """pivots i32[k] -> i32[permutation_size], what these exchanges of rows make of 0, 1 ...

  As JAX's indices do, a negative pivot counts from the end; from outside, the nearest row is read,
  and no row is written.
  """
  count, size = ctx.dim(ctx.avals_in[0].shape[-1]), ctx.dim(permutation_size)
  rows = tf.range(size)
  start = tf.broadcast_to(rows, ctx.shape(ctx.aval_out.shape))
  if 0 in ctx.avals_in[0].shape:
    return start
  written = tf.where(pivots < 0, pivots + size, pivots)
  read = tf.maximum(tf.minimum(written, size - 1), 0)

  # No StridedSlice of a number that no loop carries, nor a gather with batch dimensions: tf2onnx
  # 1.17 and TensorFlow 2.21's converter to LiteRT translate neither inside a loop.
  def entry(permutation: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    if permutation.shape.rank == 1:
      return tf.gather(permutation, index)
    return tf.reduce_sum(tf.where(tf.equal(rows, index), permutation, 0), -1, keepdims=True)

  def exchange(k: int | tf.Tensor, permutation: tf.Tensor) -> tuple[tf.Tensor]:
    is_here, is_there = tf.equal(rows, k), tf.equal(rows, tf.gather(written, [k], axis=-1))
    here = tf.gather(permutation, [k], axis=-1)
    there = entry(permutation, tf.gather(read, [k], axis=-1))
    return (tf.where(is_here, there, tf.where(is_there, here, permutation)),)

  if not isinstance(count, int) or count > _MOST_EXCHANGES:
    return loop(count, exchange, start)[0]
  permutation = start
  for k in range(count):
    [permutation] = exchange(k, permutation)
  return permutation
