"""Ops that move elements, in forms that TF.js' kernels support: gathers, scatters, diagonals. wasm
reads bools as four bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..export import masks, replay
from ..export.registry import replaces
from ..export.replay import Replacement
from ..export.scatters import Rows, is_zeros, summed
from . import dtypes as ints
from .rule import guarded, held, one, refused, same


def scatter(combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Replacement:
  """Scatters the updates into zeros, then combines the result with the tensor, unless it adds to
  zeros."""

  def function(op: tf.Operation, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    scattered = summed(op, indices, updates, tf.shape(x))
    result = scattered if combine is tf.add and is_zeros(op.inputs[0]) else combine(x, scattered)
    return ints.wrapped(result, op.outputs[0].dtype) if op.outputs[0].dtype.is_integer else result

  return one(function)


def scattered_rows(
  op: tf.Operation, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor
) -> tf.Tensor:
  """At an out-of-bounds row cpu fails, and wasm writes outside the tensor. cpu also overwrites the
  operand, even a parameter."""
  dtype = tf.int32 if x.dtype == tf.bool else x.dtype  # wasm slices bools wrongly
  rows = Rows.of(indices, tf.cast(updates, dtype), tf.shape(x))
  return tf.cast(
    rows.cut(
      tf.tensor_scatter_nd_update(rows.extended(tf.cast(x, dtype)), rows.vectors, rows.updates)
    ),
    x.dtype,
  )


def summed_rows(
  op: tf.Operation, indices: tf.Tensor, updates: tf.Tensor, shape: tf.Tensor
) -> tf.Tensor:
  result = summed(op, indices, updates, shape)
  return ints.wrapped(result, op.outputs[0].dtype) if op.outputs[0].dtype.is_integer else result


def diagonal(function: Callable[..., tf.Tensor]) -> Replacement:
  """Ops on the main diagonal, by a mask."""

  @guarded
  def replacement(op: tf.Operation, *operands: tf.Tensor) -> Sequence[Any]:
    k = tf.get_static_value(op.inputs[1 if op.type != "MatrixSetDiagV3" else 2])
    if k is None or (k.ndim and k.size > 1) or k.reshape(-1)[0] != 0:
      return refused(op, "a diagonal other than the main one")
    if op.type == "MatrixDiagV3" and any(tf.get_static_value(x) != -1 for x in op.inputs[2:4]):
      return refused(op, "rows or columns beyond the diagonal")
    return [function(*operands)]

  return replacement


def _mask(rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
  return tf.equal(tf.range(rows)[:, None], tf.range(columns)[None, :])


def with_diagonal(x: tf.Tensor, diagonal: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
  rows, columns = tf.shape(x)[-2], tf.shape(x)[-1]
  fill = tf.zeros(tf.concat([tf.shape(diagonal)[:-1], [rows - tf.shape(diagonal)[-1]]], 0), x.dtype)
  return tf.where(_mask(rows, columns), tf.concat([diagonal, fill], -1)[..., None], x)


def diagonal_matrix(diagonal: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
  size = tf.shape(diagonal)[-1]
  return tf.where(_mask(size, size), diagonal[..., None], tf.zeros([], diagonal.dtype))


@guarded
def moved_as_int32(op: tf.Operation, x: tf.Tensor, *others: tf.Tensor) -> Sequence[Any]:
  """Moves bools as int32, because the wasm kernels read a bool as four bytes."""
  if op.inputs[0].dtype != tf.bool:
    return same(op, x, *others)
  [result] = replay.again(op, [tf.cast(x, tf.int32), *others], {tf.bool: tf.int32})
  return [tf.not_equal(result, 0)]


@guarded
def select(op: tf.Operation, predicate: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> Sequence[Any]:
  """Selects bools as int32, because the wasm kernel reads a bool as four bytes."""
  if op.inputs[1].dtype != tf.bool:
    return same(op, predicate, x, y)
  return [tf.logical_or(tf.logical_and(predicate, x), tf.logical_and(tf.logical_not(predicate), y))]


@guarded
def gather(op: tf.Operation, x: tf.Tensor, indices: tf.Tensor, axis: tf.Tensor) -> Sequence[Any]:
  """Batch dimensions as indices of flattened rows: with batch dimensions the wasm kernel reads
  wrong rows or invalid memory."""
  batch = op.get_attr("batch_dims") % (indices.shape.rank + 1)
  if not batch:
    return same(op, x, indices, axis)
  at = tf.get_static_value(axis)
  if at is None or x.shape.rank is None:
    return refused(op, "an axis that is not known")
  at, rank, count = int(at) % x.shape.rank, x.shape.rank, indices.shape.rank
  rows = tf.transpose(x, [*range(batch), at, *(i for i in range(batch, rank) if i != at)])
  sizes = tf.shape(rows)
  joined = tf.reduce_prod(sizes[:batch])
  flat = tf.reshape(rows, tf.concat([[joined * sizes[batch]], sizes[batch + 1 :]], 0))
  first = tf.reshape(
    tf.range(joined) * sizes[batch],
    tf.concat([sizes[:batch], tf.ones([count - batch], tf.int32)], 0),
  )
  gathered = tf.gather(flat, indices + first)
  between = range(count, count + at - batch)
  after = range(count + at - batch, count + rank - batch - 1)
  result = tf.transpose(gathered, [*range(batch), *between, *range(batch, count), *after])
  result.set_shape(op.outputs[0].shape)
  return [result]


def reserved_list(op: tf.Operation, element_shape: tf.Tensor, count: tf.Tensor) -> Sequence[Any]:
  """A TensorList as one tensor of its rows."""
  dtype = held(op.get_attr("element_dtype"))
  if dtype not in (tf.float32, tf.int32, tf.bool) or element_shape.shape.rank != 1:
    return refused(
      op,
      f"a list of {op.get_attr('element_dtype').name}, or of elements of a rank that is not known",
    )
  # A size that is unknown before the first element is set, -1, becomes 1; setting the element
  # broadcasts it.
  sizes = tf.where(element_shape < 0, 1, tf.cast(element_shape, tf.int32))
  return [tf.fill(tf.concat([tf.reshape(count, [1]), sizes], 0), tf.zeros([], dtype))]


def with_list_item(
  op: tf.Operation, items: tf.Tensor, index: tf.Tensor, item: tf.Tensor
) -> Sequence[Any]:
  """The list with one element replaced."""
  index = tf.reshape(index, [1, 1])
  if op.inputs[2].shape.is_fully_defined() and items.shape[1:].is_compatible_with(
    op.inputs[2].shape
  ):
    return [tf.tensor_scatter_nd_update(items, index, item[None])]
  here = tf.equal(tf.range(tf.shape(items)[0]), index[0])
  return [tf.where(tf.reshape(here, [-1] + [1] * item.shape.rank), item[None], items)]


@replaces(
  "MatrixBandPart",
  on="tfjs",
  because="TF.js 4.22: a product with a mask, which makes NaN of infinities",
)
@one
def band(op: tf.Operation, x: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor) -> tf.Tensor:
  return tf.where(masks.band(x, lower, upper, tf.int32), x, tf.zeros([], x.dtype))


@replaces(
  "OneHot", on="tfjs", because="TF.js 4.22: wasm has NaN where the number for `off` is not 0"
)
@one
def one_hot(
  op: tf.Operation, indices: tf.Tensor, depth: tf.Tensor, on: tf.Tensor, off: tf.Tensor
) -> tf.Tensor:
  axis = op.get_attr("axis") % (indices.shape.rank + 1)
  positions = tf.reshape(tf.range(depth), [-1] + [1] * (indices.shape.rank - axis))
  return tf.where(tf.equal(tf.expand_dims(indices, axis), positions), on, off)


@replaces("ShapeN", on="tfjs", because="TF.js 4.22: wasm has float32")
@guarded
def shapes(op: tf.Operation, *tensors: tf.Tensor) -> Sequence[Any]:
  return [tf.shape(x) for x in tensors]
