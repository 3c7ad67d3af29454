"""Shared helpers for matrices: leading axes as one, parts, blocks of rows, loops. Their numbers are
real or complex; what is real is multiplied by parts, so that no zero meets an infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..replay import sizes_of

# Up to this size factorisations have no loop, above it they are loops over blocks of this size.
# ONNX Runtime 1.32 takes 10 microseconds for a step of a loop, and 1 for a small op.
BLOCK = 16


def ranks_are_known(op: Any, *operands: tf.Tensor) -> bool:
  """Whether an expansion can take the operands: it asks for their axes."""
  return all(x.shape.rank is not None for x in operands)


def size(x: tf.Tensor, axis: int) -> Any:
  """An int where the size is known, else i32[]."""
  known = x.shape[axis]
  return tf.shape(x)[axis] if known is None else known


def joined(x: tf.Tensor) -> tf.Tensor:
  """x [..., m, n] -> [batch, m, n], or x itself if it has no more than one leading axis. Not all
  targets have ops of more axes."""
  leading = x.shape[:-2]
  if leading.rank <= 1:
    return x
  count = leading.num_elements()
  return tf.reshape(x, [-1 if count is None else count, size(x, -2), size(x, -1)])


def like_leading(x: tf.Tensor, model: tf.Tensor) -> tf.Tensor:
  """x with the leading axes of `model`, which `joined` made one."""
  if model.shape[:-2].rank <= 1:
    return x
  return tf.reshape(x, [*sizes_of(model)[:-2], *sizes_of(x)[-2:]])


def divided(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x / y for finite y that are not zero; of complex numbers by one reciprocal for each y, because
  C99's rules for infinities and zeros take 40 ops."""
  if not x.dtype.is_complex:
    return x / y
  size = extent(y)
  unit = by_parts(y, lambda part: part / size)
  length = squared(unit) * size
  return x * by_parts(conj(unit), lambda part: part / length)


def identities(leading: Sequence[Any], rows: int, columns: int, dtype: tf.DType) -> tf.Tensor:
  """[*leading, rows, columns], ones on the diagonals."""
  return tf.broadcast_to(tf.eye(rows, columns, dtype=dtype), [*leading, rows, columns])


def adjoint(x: tf.Tensor) -> tf.Tensor:
  """The conjugate transpose of matrices."""
  return tf.linalg.adjoint(x) if x.dtype.is_complex else tf.linalg.matrix_transpose(x)


def conj(x: tf.Tensor) -> tf.Tensor:
  """The conjugates."""
  return tf.math.conj(x) if x.dtype.is_complex else x


def real(x: tf.Tensor) -> tf.Tensor:
  """The real parts."""
  return tf.math.real(x) if x.dtype.is_complex else x


def by_parts(x: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
  """A function of real numbers, of both parts of complex ones."""
  if not x.dtype.is_complex:
    return function(x)
  return tf.complex(function(tf.math.real(x)), function(tf.math.imag(x)))


def squared(x: tf.Tensor) -> tf.Tensor:
  """|x|**2."""
  if not x.dtype.is_complex:
    return tf.square(x)
  return tf.square(tf.math.real(x)) + tf.square(tf.math.imag(x))


def extent(x: tf.Tensor) -> tf.Tensor:
  """The larger part of each number without its sign: within sqrt 2 of |x|, and without overflow."""
  if not x.dtype.is_complex:
    return tf.abs(x)
  return tf.maximum(tf.abs(tf.math.real(x)), tf.abs(tf.math.imag(x)))


def parts(x: tf.Tensor, sizes: Sequence[int], axis: int) -> list[Any]:
  """The parts of x with these sizes along an axis; None where the size is 0."""
  positive = [n for n in sizes if n]
  present = iter(tf.split(x, positive, axis) if len(positive) > 1 else [x])
  return [next(present) if n else None for n in sizes]


def blocks_of(n: Any) -> Any:
  """The number of blocks that hold n rows."""
  return (n + BLOCK - 1) // BLOCK


def padded(x: tf.Tensor, rows: Any, columns: Any) -> tf.Tensor:
  """x [..., m, n] -> [..., m + rows, n + columns], with zeros."""
  if isinstance(rows, int) and isinstance(columns, int) and rows == columns == 0:
    return x
  return tf.pad(x, [*([0, 0] for _ in x.shape[:-2]), [0, rows], [0, columns]])


def block(x: tf.Tensor, start: tf.Tensor, axis: int) -> tf.Tensor:
  """The BLOCK rows (axis -2) or columns (axis -1) of x from `start` on."""
  begin: list[Any] = [0] * x.shape.rank
  # TF 2.21 infers no size of -1 where a number of `begin` is not known, known sizes it keeps.
  sizes = [-1 if n is None else n for n in x.shape.as_list()]
  begin[axis], sizes[axis] = start, BLOCK
  return tf.slice(x, begin, sizes)


def loop(
  steps: Any, body: Callable[..., Sequence[tf.Tensor]], *state: tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """`body(k, *state) -> state` for k = 0, 1 ... steps - 1; shapes do not change."""

  def step(k: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return (k + 1, *body(k, *state))

  shapes = [x.shape for x in state]
  _, *results = tf.while_loop(
    lambda k, *_: k < steps, step, (0, *state), shape_invariants=(tf.TensorShape([]), *shapes)
  )
  return tuple(results)


def zeros(x: tf.Tensor) -> tf.Tensor:
  """Zeros like x, which Grappler does not make a constant as large as x in the file."""
  return tf.where(tf.constant(False), x, tf.zeros([], x.dtype))


def nan(x: tf.Tensor) -> tf.Tensor:
  """NaN in the dtype of x."""
  return tf.constant(complex(math.nan, math.nan) if x.dtype.is_complex else math.nan, x.dtype)
