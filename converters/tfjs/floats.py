"""Special functions of float32, in ops that every backend of TF.js has."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ..export import special


def maximum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """NaN if either operand is NaN; the wasm kernel returns the other one."""
  return _extreme(x, y, tf.greater_equal)


def minimum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """NaN if either operand is NaN; the wasm kernel returns the other one."""
  return _extreme(x, y, tf.less_equal)


def _extreme(x: tf.Tensor, y: tf.Tensor, first: object) -> tf.Tensor:
  assert callable(first)
  for one, other in ((x, y), (y, x)):
    value = tf.get_static_value(other)
    # only the operand that is not a constant can be NaN
    if value is not None and not np.isnan(value).any():
      return tf.where(first(other, one), other, one)
  return tf.where(tf.logical_or(first(x, y), tf.math.is_nan(x)), x, y)


def sign(x: tf.Tensor) -> tf.Tensor:
  """NaN for NaN; TF.js returns 0."""
  return tf.where(tf.math.is_nan(x), x, tf.sign(x))


def log1p(x: tf.Tensor) -> tf.Tensor:
  """log(1 + x) without cancellation, unlike the wasm kernel: the rounding error of 1 + x cancels in
  the quotient."""
  one_more = x + 1.0
  far = tf.logical_or(tf.equal(one_more, 1.0), tf.logical_not(tf.math.is_finite(one_more)))
  log = tf.math.log(one_more)
  safe = tf.where(far, 1.0, one_more - 1.0)
  return tf.where(tf.equal(one_more, 1.0), x, tf.where(far, log, log * (x / safe)))


def power(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """1 to any power is 1; in JavaScript 1 to the power NaN is NaN."""
  result = tf.pow(x, y)
  value = tf.get_static_value(y)
  return (
    result
    if value is not None and np.isfinite(value).all()
    else tf.where(tf.equal(x, 1.0), 1.0, result)
  )


def truncate_mod(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """The remainder with the sign of x, as exact as C's fmod."""
  rest = tf.math.floormod(tf.abs(x), tf.abs(y))
  return tf.where(x < 0, -rest, rest)


def erfc(x: tf.Tensor) -> tf.Tensor:
  """1 - erf(x) without cancellation."""
  size = tf.abs(x)
  far = special.erfc_from_one(size)
  return tf.where(size < 1.0, 1.0 - special.erf_to_one(x), tf.where(x < 0, 2.0 - far, far))


def erfinv(x: tf.Tensor) -> tf.Tensor:
  """The inverse of erf on [-1, 1], NaN elsewhere."""
  return tf.where(tf.equal(tf.abs(x), 1.0), x * np.float32(np.inf), special.erf_inv(x, log1p))


def lgamma(x: tf.Tensor) -> tf.Tensor:
  """log |gamma(x)|."""
  # log(z + 7.5) in two parts, as in XLA, because the sum z + 7.5 is rounded.
  return special.lgamma(x, lambda z: log1p(z / 7.5) + np.float32(np.log(7.5)))
