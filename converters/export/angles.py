"""sin, cos and tan of large angles. LiteRT and TF.js' wasm backend lose digits from 1e4 on, and all
digits for larger angles.

The angle is reduced to half a turn by the method of Payne and Hanek (Radian reduction for
trigonometric functions, SIGNUM Newsletter 18, 1983): only those digits of 1/(2 pi) are multiplied
that matter for the size of the angle. Digits have 11 bits, so each product and each sum of products
is exact in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

_BITS = 11
_BASE = 2.0**_BITS
_DIGITS = 7  # digits of the reduced angle
_PARTS = 4  # digits of the angle, which after scaling is an integer below 2**35
# Below this the kernels reduce correctly. Larger angles are scaled to integers by powers of 2**11.
_SMALL = 0.5
_LOWEST = -3
_HALVES = (tf.float16, tf.bfloat16)
_HIGHEST = 9


def _arctangent(inverse: int, bits: int) -> int:
  """arctan(1 / inverse) * 2**bits."""
  term = total = (1 << bits) // inverse
  k = 1
  while term:
    term //= -inverse * inverse
    k += 2
    total += term // k
  return total


def _table() -> np.ndarray:
  """f32[13, 10]: for each scale, the digits of its power of two times 1 / (2 pi), modulo 1."""
  n_digits = _HIGHEST + _DIGITS + _PARTS
  bits = _BITS * (n_digits + 4)  # guard bits for rounding
  pi = 4 * (4 * _arctangent(5, bits) - _arctangent(239, bits))  # Machin, 1706
  inverse = (1 << (2 * bits)) // (2 * pi) >> (bits - _BITS * n_digits)
  digits = {k: inverse >> (_BITS * (n_digits - k)) & (2**_BITS - 1) for k in range(1, n_digits + 1)}
  scales = range(_LOWEST, _HIGHEST + 1)
  return np.array(
    [[digits.get(b + j, 0) for j in range(1, _DIGITS + _PARTS)] for b in scales], np.float32
  )


def _half_turn(x: tf.Tensor, quarters: int) -> tuple[tf.Tensor, tf.Tensor]:
  """x f32[...] with |x| > 1/2 -> (sign, angle in [-pi / 2, pi / 2]), where sin(|x| + quarters pi /
  2) = sign sin(angle)."""
  size = tf.abs(x)
  # t is the scaled angle / 2**22.
  down, up = np.float32(1 / _BASE), np.float32(_BASE)
  t, scale = size * (down * down), tf.fill(tf.shape(size), np.int32(-_LOWEST))
  for _ in range(_HIGHEST):
    large = t >= 4 * up
    t, scale = tf.where(large, t * down, t), scale + tf.cast(large, tf.int32)
  for _ in range(-_LOWEST):
    small = t < 4
    t, scale = tf.where(small, t * up, t), scale - tf.cast(small, tf.int32)
  parts: list[tf.Tensor] = [tf.floor(t * down)]
  t -= parts[0] * up
  parts.insert(0, tf.floor(t))
  t -= parts[0]
  parts.insert(0, tf.floor(t * up))
  parts.insert(0, (t - parts[0] * down) * (up * up))
  columns = tf.unstack(tf.gather(table := _table(), scale), table.shape[1], axis=-1)
  carry = tf.zeros_like(size)
  digits: list[tf.Tensor] = []
  for j in reversed(range(_DIGITS)):
    total = carry
    for i, part in enumerate(parts):
      total += part * columns[j + i]
    carry = tf.floor(total * np.float32(1 / _BASE))
    digits.insert(0, total - carry * np.float32(_BASE))
  # The first bit of the first digit is half a turn, which flips the sign. The rest is reflected if
  # it is above a half.
  first = digits[0] + quarters * np.float32(_BASE / 4)
  first -= tf.floor(first * np.float32(1 / _BASE)) * np.float32(_BASE)
  odd = tf.floor(first * np.float32(2 / _BASE))
  first -= odd * np.float32(_BASE / 2)
  beyond = first >= _BASE / 4
  digits = [
    tf.where(beyond, _BASE / 2 - 1 - first, first),
    *(tf.where(beyond, _BASE - 1 - d, d) for d in digits[1:]),
  ]
  turns = tf.zeros_like(size)
  for digit in reversed(digits):
    turns = (turns + digit) * np.float32(1 / _BASE)
  return 1 - 2 * odd, turns * np.float32(2 * math.pi)


def _of_float32(
  kernel: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[Callable[[tf.Tensor], tf.Tensor]], Callable[[tf.Tensor], tf.Tensor]]:
  """Extends a function of float32 to float16 and bfloat16. Other dtypes use the kernel."""

  def of(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    def of_any(x: tf.Tensor) -> tf.Tensor:
      if x.dtype in _HALVES:
        return tf.cast(function(tf.cast(x, tf.float32)), x.dtype)
      return function(x) if x.dtype == tf.float32 else kernel(x)

    return of_any

  return of


@_of_float32(tf.sin)
def sin(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]."""
  sign, angle = _half_turn(x, 0)
  return tf.sin(tf.where(tf.abs(x) < _SMALL, x, sign * tf.where(x < 0, -angle, angle)))


@_of_float32(tf.cos)
def cos(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]."""
  sign, angle = _half_turn(x, 1)
  return tf.where(tf.abs(x) < _SMALL, tf.cos(x), tf.sin(sign * angle))


@_of_float32(tf.tan)
def tan(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]."""
  return sin(x) / cos(x)
