"""What the gamma function and its relatives share: their parts that change slowly, so that no
logarithms of large numbers are subtracted."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import tensorflow as tf

from ..special import polynomial
from ._chebyshev import interpolated, series

# From here on Stirling's series has the digits of its dtype.
LARGE = 8.0
# Numbers of terms, the least ones after which the error is rounding only.
_STIRLING = {tf.float32: 3, tf.float64: 9}
_RECIPROCAL = {tf.float32: 10, tf.float64: 20}
_EXCESS = {tf.float32: 8, tf.float64: 17}
_NEAR = 1 / 3  # of |r|, from ratios of 1/2 to 2


@functools.cache
def bernoulli(count: int) -> tuple[Fraction, ...]:
  """B(2k) for k = 1 ... count."""
  numbers = [Fraction(1)]
  for m in range(1, 2 * count + 1):
    lower = sum((math.comb(m + 1, k) * number for k, number in enumerate(numbers)), Fraction(0))
    numbers.append(-lower / (m + 1))
  return tuple(numbers[2::2])


def excess(u: tf.Tensor, log: tf.Tensor) -> tf.Tensor:
  """u - log(1 + u) >= 0 without cancellation.

  Args:
    u: not below -1.
    log: log(1 + u), which is read where 1 + u is below 1/2 or above 2.
  """
  r = u / (u + 2.0)  # log(1 + u) is 2 atanh(r)
  near = tf.abs(r) <= _NEAR
  small = tf.where(near, r, tf.zeros_like(r))
  square = small * small
  coefficients = [1 / (2 * k + 3) for k in range(_EXCESS[u.dtype])]
  tail = 2.0 * square * polynomial(coefficients[::-1], square)
  return tf.where(near, small * (u - tail), u - log)


def is_near(u: tf.Tensor) -> tf.Tensor:
  """Whether 1 + u is between 1/2 and 2, where `excess` needs no logarithm."""
  return tf.abs(u / (u + 2.0)) <= _NEAR


def stirling(z: tf.Tensor) -> tf.Tensor:
  """log(gamma(z + 1)) - log(sqrt(2 pi z) (z / e)**z) where z >= LARGE (DLMF 5.11.1)."""
  numbers = enumerate(bernoulli(_STIRLING[z.dtype]), 1)
  coefficients = [float(number / (2 * k * (2 * k - 1))) for k, number in numbers]
  inverse = 1.0 / z
  return inverse * polynomial(coefficients[::-1], inverse * inverse)


def reciprocal(a: tf.Tensor) -> tf.Tensor:
  """1 / gamma(a + 1) where 0 <= a <= LARGE."""
  fraction = a - tf.floor(a)
  product = tf.ones_like(a)
  for k in range(int(LARGE)):  # the factor is a - k where that is above 1
    product = product * tf.maximum(a - float(k), 1.0)
  return series(_reciprocal_coefficients(_RECIPROCAL[a.dtype]), 2.0 * fraction - 1.0) / product


@functools.cache
def _reciprocal_coefficients(terms: int) -> tuple[float, ...]:
  def values(u: np.ndarray) -> np.ndarray:
    return np.array([1 / math.gamma((x + 3) / 2) for x in u.astype(float)])

  return interpolated(values, terms)


def digamma(x: tf.Tensor) -> tf.Tensor:
  """x > 0 -> the derivative of log(gamma(x)), by its recurrence and DLMF 5.11.2."""
  z = x + LARGE
  numbers = enumerate(bernoulli(_STIRLING[x.dtype]), 1)
  coefficients = [float(number / (2 * k)) for k, number in numbers]
  inverse = 1.0 / z
  square = inverse * inverse
  skipped = sum((1.0 / (x + float(k)) for k in range(1, int(LARGE))), 1.0 / x)
  series_of_large = square * polynomial(coefficients[::-1], square)
  return tf.math.log(z) - 0.5 * inverse - series_of_large - skipped


def same_shape(*operands: tf.Tensor) -> list[tf.Tensor]:
  """The operands in the shape of their broadcast, which is that of the result."""
  shapes = [x.shape for x in operands]
  if all(shape == shapes[0] and shape.is_fully_defined() for shape in shapes):
    return list(operands)
  zeros = sum(map(tf.zeros_like, operands[1:]), tf.zeros_like(operands[0]))
  return [x + zeros for x in operands]
