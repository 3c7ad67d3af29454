"""Masks of matrices."""

from __future__ import annotations

import tensorflow as tf


def band(x: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """x [..., m, n] -> bool[m, n], the band of MatrixBandPart; computed in `dtype`."""
  sizes = tf.shape(x, dtype)
  rows, columns = tf.expand_dims(tf.range(sizes[-2]), 1), tf.expand_dims(tf.range(sizes[-1]), 0)
  lower, upper, zero = tf.cast(lower, dtype), tf.cast(upper, dtype), tf.constant(0, dtype)
  return ((lower < zero) | (rows - columns <= lower)) & ((upper < zero) | (columns - rows <= upper))
