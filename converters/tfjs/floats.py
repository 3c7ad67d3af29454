"""Special functions of float32 in ops that every backend of TF.js has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def maximum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """NaN if either is: the wasm kernel takes the number."""
  return _extreme(x, y, tf.greater_equal)


def minimum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """NaN if either is: the wasm kernel takes the number."""
  return _extreme(x, y, tf.less_equal)


def _extreme(x: tf.Tensor, y: tf.Tensor, first: object) -> tf.Tensor:
  assert callable(first)
  for one, other in ((x, y), (y, x)):
    value = tf.get_static_value(other)
    if value is not None and not np.isnan(value).any():  # what is not known is the only one that can be NaN
      return tf.where(first(other, one), other, one)
  return tf.where(tf.logical_or(first(x, y), tf.math.is_nan(x)), x, y)


def sign(x: tf.Tensor) -> tf.Tensor:
  """NaN stays NaN: TF.js makes 0 of it."""
  return tf.where(tf.math.is_nan(x), x, tf.sign(x))


def log1p(x: tf.Tensor) -> tf.Tensor:
  """log(1 + x) without cancellation: the wasm kernel has it. The rounding of 1 + x cancels in the quotient."""
  one_more = x + 1.0
  far = tf.logical_or(tf.equal(one_more, 1.0), tf.logical_not(tf.math.is_finite(one_more)))
  log = tf.math.log(one_more)
  safe = tf.where(far, 1.0, one_more - 1.0)
  return tf.where(tf.equal(one_more, 1.0), x, tf.where(far, log, log * (x / safe)))


def power(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """1 to any power is 1: in JavaScript, not to NaN."""
  result = tf.pow(x, y)
  value = tf.get_static_value(y)
  return result if value is not None and np.isfinite(value).all() else tf.where(tf.equal(x, 1.0), 1.0, result)


def truncate_mod(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """The remainder with the sign of x, exact as C's fmod."""
  rest = tf.math.floormod(tf.abs(x), tf.abs(y))
  return tf.where(x < 0, -rest, rest)


def _polynomial(x: tf.Tensor, coefficients: Sequence[float]) -> tf.Tensor:
  """By Horner's rule, the highest power first."""
  result = tf.zeros_like(x) + np.float32(coefficients[0])
  for coefficient in coefficients[1:]:
    result = result * x + np.float32(coefficient)
  return result


# W. J. Cody-style fit of Press et al., "Numerical Recipes", 6.2: relative error below 1.2e-7 everywhere.
_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223)


def erfc(x: tf.Tensor) -> tf.Tensor:
  """1 - erf(x), also where that is tiny."""
  size = tf.abs(x)
  t = 1.0 / (1.0 + 0.5 * size)
  tail = t * tf.exp(_polynomial(t, _ERFC) - size * size)
  return tf.where(x < 0, 2.0 - tail, tail)


# Giles, "Approximating the erfinv function" (2010), single precision: central, tail.
_ERFINV = (
  (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
  (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def erfinv(x: tf.Tensor) -> tf.Tensor:
  """The inverse of erf on [-1, 1], NaN elsewhere."""
  w = -log1p(-x * x)
  far = w >= 5.0
  center, tail = (_polynomial(v, c) for v, c in zip((w - 2.5, tf.sqrt(tf.where(far, w, 5.0)) - 3.0), _ERFINV, strict=True))
  result = tf.where(far, tail, center) * x
  return tf.where(tf.equal(tf.abs(x), 1.0), x * np.float32(np.inf), result)


_LANCZOS = (
  676.520368121885098567009190444019,
  -1259.13921672240287047156078755283,
  771.3234287776530788486528258894,
  -176.61502916214059906584551354,
  12.507343278686904814458936853,
  -0.13857109526572011689554707,
  9.984369578019570859563e-6,
  1.50563273514931155834e-7,
)


def lgamma(x: tf.Tensor) -> tf.Tensor:
  """log |gamma(x)| by Lanczos' sum (g = 7), and by reflection below one half."""
  reflected = x < 0.5
  z = tf.where(reflected, -x, x - 1.0)
  total = 0.99999999999980993227684700473478 + sum(np.float32(c) / (z + float(i + 1)) for i, c in enumerate(_LANCZOS))
  t = z + 7.5
  # log(t) in two parts, as XLA has it: 7.5 is known to more digits than t has.
  log_t = log1p(z / 7.5) + np.float32(np.log(7.5))
  ordinary = (z + 0.5 - t / log_t) * log_t + np.float32(0.5 * np.log(2 * np.pi)) + tf.math.log(total)
  size = tf.abs(x)
  fraction = size - tf.floor(size)
  fraction = tf.where(fraction > 0.5, 1.0 - fraction, fraction)
  sine = tf.math.log(tf.sin(np.float32(np.pi) * fraction))
  below = tf.where(tf.math.is_finite(sine), np.float32(np.log(np.pi)) - sine - ordinary, -sine)
  return tf.where(tf.math.is_inf(x), np.float32(np.inf), tf.where(reflected, below, ordinary))
