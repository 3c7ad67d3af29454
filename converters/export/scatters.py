"""Scatters for kernels that fail at out-of-bounds rows, or write outside of the tensor: these go to
an extra row, which is cut off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Rows:
  """A scatter into f32[*sizes, *inner] as a scatter into f32[places + 1, *inner], with places =
  prod(sizes).

  Attributes:
    shape: i32[r], the shape of the written tensor.
    places: i32[], its number of rows.
    inner: i32[r - depth], the shape of a row.
    numbers: i32[n], the row of each update; `places` for out-of-bounds rows.
    updates: f32[n, *inner].
  """

  shape: tf.Tensor
  places: tf.Tensor
  inner: tf.Tensor
  numbers: tf.Tensor
  updates: tf.Tensor

  @classmethod
  def of(cls, indices: tf.Tensor, updates: tf.Tensor, shape: tf.Tensor) -> Rows:
    """From indices i32[*batch, depth] and updates f32[*batch, *inner]."""
    depth = indices.shape[-1]
    shape, indices = tf.cast(shape, tf.int32), tf.cast(indices, tf.int32)
    sizes, inner = shape[:depth], shape[depth:]
    n_places = tf.reduce_prod(sizes)
    inside = tf.reduce_all((indices >= tf.constant(0)) & (indices < sizes), -1)
    numbers = tf.reshape(
      tf.where(inside, tf.reduce_sum(indices * _steps(shape, depth), -1), n_places), [-1]
    )
    return cls(shape, n_places, inner, numbers, tf.reshape(updates, tf.concat([[-1], inner], 0)))

  @property
  def vectors(self) -> tf.Tensor:
    """i32[n, 1], the row numbers as indices of a scatter."""
    return self.numbers[:, None]

  @property
  def extended_shape(self) -> tf.Tensor:
    """i32[1 + r - depth], the shape with the extra row."""
    return tf.concat([[self.places + 1], self.inner], 0)

  def of_tensor(self, x: tf.Tensor) -> tf.Tensor:
    """x f32[*shape] as f32[places, *inner]."""
    return tf.reshape(x, tf.concat([[self.places], self.inner], 0))

  def extended(self, x: tf.Tensor) -> tf.Tensor:
    """The same with the extra row. That row depends on the updates, so it is not a constant."""
    spare = self.updates[:1] + tf.cast(tf.reduce_max(self.numbers), x.dtype)
    return tf.concat([self.of_tensor(x), spare], 0)

  def cut(self, extended: tf.Tensor) -> tf.Tensor:
    """f32[places + 1, *inner] -> f32[*shape]."""
    return tf.reshape(extended[: self.places], self.shape)


def summed(op: tf.Operation, indices: tf.Tensor, updates: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
  """The sums of updates: ScatterNd, or a scatter-add into zeros."""
  if not drops(op, indices):
    return tf.scatter_nd(indices, updates, shape)
  rows = Rows.of(indices, updates, shape)
  return rows.cut(tf.scatter_nd(rows.vectors, rows.updates, rows.extended_shape))


def is_zeros(tensor: tf.Tensor) -> bool:
  """Whether a tensor of the replayed graph is known to be zeros, without -0.0."""
  while tensor.op.type in ("Reshape", "Identity"):
    tensor = tensor.op.inputs[0]
  # For Fill read only the scalar: asking TensorFlow for the static value would allocate the whole
  # tensor.
  value = tf.get_static_value(tensor.op.inputs[1] if tensor.op.type == "Fill" else tensor)
  return value is not None and not any(value.tobytes())


def drops(op: tf.Operation, indices: tf.Tensor) -> bool:
  """Whether a scatter may have an out-of-bounds row, which it must drop."""
  if op.get_attr("bad_indices_policy") != b"IGNORE":
    return False
  known, sizes = tf.get_static_value(indices), op.outputs[0].shape[: indices.shape[-1]]
  return (
    known is None
    or not sizes.is_fully_defined()
    or not bool(np.all((known >= 0) & (known < np.array(sizes))))
  )


def _steps(shape: tf.Tensor, depth: int) -> tf.Tensor:
  """i32[depth]: the number of rows that one step of each index skips."""
  steps = [tf.constant(1)]
  for i in reversed(range(1, depth)):
    steps.insert(0, steps[0] * shape[i])
  return tf.stack(steps)
