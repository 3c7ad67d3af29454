"""Random bits by TensorFlow's counter-based generator, Philox 4x32-10 of Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3" (2011), in integers of 32 bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..expansion import expands
from ._matrices import loop

_ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORDS = 4  # of a block


def _takes(op: Any, shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor, alg: tf.Tensor) -> bool:
  algorithms = (tf.random.Algorithm.PHILOX.value, tf.random.Algorithm.AUTO_SELECT.value)
  is_of_words = op.outputs[0].dtype in (tf.int32, tf.uint32)
  return is_of_words and tf.get_static_value(alg) in algorithms


@expands("StatelessRandomUniformFullIntV2", takes=_takes)
def _full_int(
  op: Any, shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor, alg: tf.Tensor
) -> list[tf.Tensor]:
  """shape i32[n], key u64[1], counter u64[2] -> u32[shape]."""
  dtype = op.outputs[0].dtype
  count = tf.reduce_prod(tf.cast(shape, tf.int32))
  blocks = tf.cast(tf.range((count + _WORDS - 1) // _WORDS), tf.uint32)
  words = _blocks(_words(counter, 2), _words(key, 1), blocks)
  bits = tf.reshape(tf.stack(words, -1), [-1])[:count]
  return [tf.reshape(bits if dtype == tf.uint32 else tf.bitcast(bits, dtype), shape)]


def _words(x: tf.Tensor, n: int) -> list[tf.Tensor]:
  """x u64[n], or i32[n, 2] in a target that holds its words -> u32[] * 2 n, the low word of each
  number first."""
  return tf.unstack(tf.reshape(tf.bitcast(x, tf.uint32), [2 * n]))


def _blocks(
  start: list[tf.Tensor], key: list[tf.Tensor], count: tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Four words for each of the counters from `start` on, of 128 bits."""
  low = start[0] + count
  carry = tf.cast(low < count, tf.uint32)
  x = [low]
  for word in start[1:]:
    x.append(word + carry)
    carry = tf.cast(x[-1] < carry, tf.uint32)
  return loop(_ROUNDS, _round, *x, *key)[:_WORDS]


def _round(_: tf.Tensor, *state: tf.Tensor) -> list[tf.Tensor]:
  *x, first, second = state
  high0, low0 = _product(x[0], _FACTORS[0])
  high1, low1 = _product(x[2], _FACTORS[1])
  keys = [k + tf.constant(step, tf.uint32) for k, step in zip((first, second), _STEPS, strict=True)]
  return [high1 ^ x[1] ^ first, low1, high0 ^ x[3] ^ second, low0, *keys]


def _product(x: tf.Tensor, factor: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The high and the low word of the product, by halves of words."""
  half, mask = tf.constant(16, tf.uint32), tf.constant(0xFFFF, tf.uint32)
  low, high = tf.constant(factor & 0xFFFF, tf.uint32), tf.constant(factor >> 16, tf.uint32)
  x_low, x_high = x & mask, tf.bitwise.right_shift(x, half)
  middle = x_high * low + tf.bitwise.right_shift(x_low * low, half)
  other = x_low * high + (middle & mask)
  upper = tf.bitwise.right_shift(middle, half) + tf.bitwise.right_shift(other, half)
  return x_high * high + upper, x * tf.constant(factor, tf.uint32)
