"""Numbers with a constant difference, which a loop computes from its own counter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Counter:
  """first, first + step, first + 2 * step ...

  Attributes:
    first: the first number.
    step: the difference.
    dtype: of the numbers, an integer type that holds all of them.
  """

  first: int
  step: int
  dtype: tf.DType

  def numbers(self, length: int) -> tf.Tensor:
    """-> i32[length], the first numbers."""
    end = self.first + self.step * length
    wide = tf.int32 if max(abs(self.first), abs(end)) < 2**31 else tf.int64
    if self.step:
      numbers = tf.range(self.first, end, self.step, wide)
    else:
      numbers = tf.fill([length], tf.constant(self.first, wide))
    return tf.cast(numbers, self.dtype)

  def constants(self, length: int) -> list[tf.Tensor]:
    """-> i32[] each, the first numbers."""
    numbers = self.first + self.step * np.arange(length)
    return [tf.constant(number, self.dtype) for number in numbers.tolist()]

  def block(self, i: tf.Tensor, sizes: list[int]) -> tf.Tensor:
    """The number i, or the block i of as many numbers as `sizes` says: i32[] -> i32[*sizes]."""
    wide = tf.int64 if self.dtype.size == 8 else tf.int32  # which wrap as narrower integers do
    count = int(np.prod(sizes, dtype=np.int64))
    numbers = self.first + self.step * np.arange(count) if sizes else self.first
    start = np.array(numbers).astype(wide.as_numpy_dtype)
    if self.step * count != 1:
      i = tf.cast(i, wide) * (self.step * count)
    return tf.cast(tf.cast(i, wide) + start if start.any() else i, self.dtype)
