"""Scatters of one window, such as a write into a cache: LiteRT's DYNAMIC_UPDATE_SLICE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf._tf_compat import WINDOW

from ..export import replay
from ..export.replay import sizes_of
from ..export.scatters import drops
from ..export.scopes import own_name
from . import lists

# LiteRT 2.3: {dtype: the one of its kernel that holds the bits}.
_CARRIERS = {
  dtype: dtype for dtype in (tf.float32, tf.float16, tf.int8, tf.int16, tf.int32, tf.int64, tf.bool)
} | {tf.bfloat16: tf.int16, tf.uint8: tf.int8, tf.uint16: tf.int16, tf.uint32: tf.int32}


def written(
  op: tf.Operation, operand: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor
) -> list[tf.Tensor] | None:
  """The results of a TensorScatterUpdate whose updates are one window; None for others.

  Its operand may be flattened to rows: f32[b,c,d], a window f32[1,s,d] -> rows f32[b*c,d], of which
  it writes s. The first index says where the window starts.
  """
  if WINDOW not in op.node_def.attr or operand.dtype not in _CARRIERS:
    return None
  window = list(op.node_def.attr[WINDOW].list.i)
  whole = operand
  if operand.shape.rank != len(window):
    whole = operand.op.inputs[0] if operand.op.type == "Reshape" else operand
  if whole.shape.rank != len(window) or window.count(-1) > 1:
    return None
  leading = len(window) - operand.shape.rank + 1
  are_vectors = indices.shape[-1] != 1 or leading == 1
  if are_vectors and operand is not whole:
    return None
  updates = lists.apart(updates)
  if drops(op, indices):
    sizes = whole.shape[: indices.shape[-1] if are_vectors else leading]
    if not (sizes.is_fully_defined() and indices.shape.is_fully_defined()):
      return None  # there may be no row to gather
    first = np.zeros(indices.shape, int) if are_vectors else _first_window(sizes, window)
    first = first.reshape(indices.shape)
    updates, indices = _old_if_outside(operand, indices, updates, first)
  starts = (
    tf.unstack(tf.reshape(indices, [-1, indices.shape[-1]])[0])
    if are_vectors
    else _unraveled(tf.reshape(indices, [-1])[0], sizes_of(whole)[:leading], window)
  )
  starts = [tf.cast(start, tf.int32) for start in starts]
  starts += [tf.constant(0)] * (len(window) - len(starts))
  carrier = _CARRIERS[operand.dtype]
  inputs = [_bits(whole, carrier), _bits(tf.reshape(updates, window), carrier), tf.stack(starts)]
  [result] = (
    replay.graph().create_op("XlaDynamicUpdateSlice", inputs, [carrier], name=own_name(op)).outputs
  )
  result.set_shape(whole.shape)
  result = _bits(result, operand.dtype)
  return [result if whole is operand else tf.reshape(result, sizes_of(operand))]


def _old_if_outside(
  operand: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor, first: np.ndarray
) -> tuple[tf.Tensor, tf.Tensor]:
  """The updates and their indices; if these are outside, and so dropped, what stands in the first
  window, and the indices of that. Gathers have static shapes in LiteRT, where slices have none."""
  sizes = tf.constant(operand.shape[: indices.shape[-1]].as_list(), indices.dtype)
  is_inside = tf.reduce_all((indices >= 0) & (indices < sizes))
  indices = tf.where(is_inside, indices, tf.constant(first, indices.dtype))
  # LiteRT 2.3 has no kernels of these two for floats of 16 bits and unsigned integers.
  carrier = tf.int16 if operand.dtype.size == 2 else _CARRIERS[operand.dtype]
  new, old = _bits(updates, carrier), tf.gather_nd(_bits(operand, carrier), indices)
  return _bits(tf.where(is_inside, new, old), operand.dtype), indices


def _first_window(sizes: tf.TensorShape, window: Sequence[int]) -> np.ndarray:
  """The rows of a window at the start of dimensions that are flattened."""
  rows = np.arange(math.prod(sizes)).reshape(sizes)
  return rows[tuple(slice(n) for n in window[: len(sizes)])]


def _unraveled(row: tf.Tensor, sizes: Sequence[Any], window: Sequence[int]) -> list[tf.Tensor]:
  """The start in each of the dimensions that are flattened to rows."""
  row = tf.cast(row, tf.int32)
  moved = [i for i, n in enumerate(sizes) if not (isinstance(n, int) and n == window[i])]
  starts = [tf.constant(0)] * len(sizes)
  for i in moved:
    stride = math.prod(sizes[i + 1 :])
    start = row if isinstance(stride, int) and stride == 1 else tf.math.floordiv(row, stride)
    starts[i] = start if i == moved[0] else tf.math.floormod(start, sizes[i])
  return starts


def _bits(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  return x if x.dtype == dtype else tf.bitcast(x, dtype)
