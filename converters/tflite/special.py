"""Elementary functions that LiteRT lacks, or whose kernels lose digits, NaN or infinities.

They are f32[...] -> f32[...], and accurate for all float32 values except subnormal ones. They
consist of ops that are accurate in LiteRT 2.3, including XNNPACK's kernels. The comments below
refer to that version. XNNPACK chooses its kernels by the processor: those for AVX-512 differ from
those for AVX2.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from ..export.special import erf_to_one, erfc_from_one, like, polynomial

# Stephen L. Moshier, Cephes Mathematical Library, single/logf.c: (log(1 + x) - x + x**2 / 2) / x**3
# in x between sqrt(1/2) - 1 and sqrt(2) - 1; and log(2) in parts of few bits (single/expf.c).
_LOG = (
  7.0376836292e-2,
  -1.1514610310e-1,
  1.1676998740e-1,
  -1.2420140846e-1,
  1.4249322787e-1,
  -1.6668057665e-1,
  2.0000714765e-1,
  -2.4999993993e-1,
  3.3333331174e-1,
)
_LN2_PARTS = (0.693359375, -2.12194440e-4)
# Taylor's for (e**x - 1) / x; the next term is below 1e-9 of the sum where |x| < 1/2.
_EXPM1 = tuple(1 / math.factorial(n) for n in range(10, 0, -1))

_LARGE = 2.0**125
_LN2 = math.log(2)


def subtracted(constant: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """constant - x. TF 2.21's converter moves a transposition of x after the op, and makes it x -
  constant."""
  # the converter makes constant - x of -x
  return constant + (tf.negative(x) if x.dtype.is_floating else x * tf.constant(-1, x.dtype))


def divided(constant: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """constant / x, of which the converter makes x / constant, as in `subtracted`. A numerator that
  depends on x prevents that."""
  return tf.where(tf.math.is_nan(x), x, constant) / x


def exp(x: tf.Tensor) -> tf.Tensor:
  """e**x = (e**(x / 2))**2; XNNPACK's kernel returns 0 for NaN, and with AVX2 infinity from 88.42
  on, where e**x is 2.5e38."""
  return _keeping_nan(x, tf.square(tf.exp(x * like(0.5, x))))


def sigmoid(x: tf.Tensor) -> tf.Tensor:
  """1 / (1 + e**-x); XNNPACK's kernel returns NaN for some numbers above 1e20."""
  return _keeping_nan(x, tf.sigmoid(tf.maximum(tf.minimum(x, like(128.0, x)), like(-128.0, x))))


def log(x: tf.Tensor) -> tf.Tensor:
  """log x; XNNPACK's kernel is inaccurate near 1, and for large numbers. With AVX2 it returns 88
  for infinity and for NaN."""
  far = tf.where(
    _at_least(_LARGE, x), tf.math.log(x * like(0.25, x)) + like(2 * _LN2, x), tf.math.log(x)
  )
  near = (x > like(math.sqrt(0.5), x)) & (x < like(math.sqrt(2), x))
  result = tf.where(near, _log1p_near_zero(x - like(1.0, x)), far)
  # the root of infinities and NaN is their logarithm
  return tf.where(_at_least(math.inf, tf.abs(x)), tf.sqrt(x), result)


def log1p(x: tf.Tensor) -> tf.Tensor:
  """log(1 + x) by series for small x. The converter makes log(1 + x) of Log1p, which loses all
  digits there."""
  near = (x > like(math.sqrt(0.5) - 1, x)) & (x < like(math.sqrt(2) - 1, x))
  return tf.where(near, _log1p_near_zero(x), log(x + like(1.0, x)))


def expm1(x: tf.Tensor) -> tf.Tensor:
  """e**x - 1. The converter makes exp(x) - 1 of Expm1, which loses digits as in `log1p`."""
  near = x * polynomial(_EXPM1, x)
  return _keeping_nan(x, tf.where(tf.abs(x) < like(0.5, x), near, _precise_exp(x) - like(1.0, x)))


def sqrt(x: tf.Tensor) -> tf.Tensor:
  """sqrt(x); with AVX2, the result of XNNPACK's kernel is 1.5 times too large from 2**126 on."""
  return tf.where(_at_least(_LARGE, x), like(2.0, x) * tf.sqrt(x * like(0.25, x)), tf.sqrt(x))


def rsqrt(x: tf.Tensor) -> tf.Tensor:
  """1 / sqrt(x); XNNPACK's kernel returns NaN for 0, and with AVX2 too large numbers as in
  `sqrt`."""
  result = tf.where(
    _at_least(_LARGE, x), like(0.5, x) * tf.math.rsqrt(x * like(0.25, x)), tf.math.rsqrt(x)
  )
  return tf.where(tf.equal(x, like(0.0, x)), divided(like(1.0, x), x), result)


def softplus(x: tf.Tensor) -> tf.Tensor:
  """log(1 + e**x); LiteRT's kernels return 88 above 89."""
  return tf.nn.relu(x) + log1p(exp(tf.negative(tf.abs(x))))


def xlogy(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x log y, and 0 where x is 0; the converter makes a product with the inaccurate kernel of
  Log."""
  return tf.where(tf.equal(x, like(0.0, x)), like(0.0, x), x * log(y))


def is_inf(x: tf.Tensor) -> tf.Tensor:
  """Whether |x| is infinite. The converter makes |x| == inf of IsInf, and folds it to False."""
  return tf.equal(tf.bitcast(tf.abs(x), tf.int32), tf.constant(_bits(math.inf)))


def atan(x: tf.Tensor) -> tf.Tensor:
  return tf.atan2(x, tf.ones_like(x))  # LiteRT's Atan2 does not broadcast


def asin(x: tf.Tensor) -> tf.Tensor:
  return tf.atan2(x, tf.sqrt(subtracted(like(1.0, x), x) * (x + like(1.0, x))))


def acos(x: tf.Tensor) -> tf.Tensor:
  return tf.atan2(tf.sqrt(subtracted(like(1.0, x), x) * (x + like(1.0, x))), x)


def sinh(x: tf.Tensor) -> tf.Tensor:
  """(e + e / (e + 1)) / 2 with e = expm1(|x|); above 80, where that would overflow too early,
  exp(|x| / 2)**2 / 2."""
  size = tf.abs(x)
  e = expm1(tf.minimum(size, like(80.0, x)))
  near = like(0.5, x) * (e + e / (e + like(1.0, x)))
  return _keeping_nan(
    x,
    tf.where(x < like(0.0, x), like(-1.0, x), like(1.0, x))
    * tf.where(size < like(80.0, x), near, _half_exp(size)),
  )


def cosh(x: tf.Tensor) -> tf.Tensor:
  """(e**x + e**-x) / 2, above 80 as for `sinh`."""
  size = tf.abs(x)
  e = _precise_exp(tf.minimum(size, like(80.0, x)))
  near = like(0.5, x) * (e + divided(like(1.0, x), e))
  return _keeping_nan(x, tf.where(size < like(80.0, x), near, _half_exp(size)))


def asinh(x: tf.Tensor) -> tf.Tensor:
  """log(|x| + sqrt(x**2 + 1)) without cancellation; log(2 |x|) for large |x|."""
  size = tf.abs(x)
  near = tf.minimum(size, like(1e9, x))
  square = near * near
  result = log1p(near + square / (like(1.0, x) + tf.sqrt(square + like(1.0, x))))
  result = tf.where(size < like(1e9, x), result, log(size) + like(_LN2, x))
  return _keeping_nan(x, tf.where(x < like(0.0, x), -result, result))


def acosh(x: tf.Tensor) -> tf.Tensor:
  """log(x + sqrt(x**2 - 1)) by t = x - 1; log(2 x) for large x; NaN below 1."""
  t = tf.minimum(x, like(1e9, x)) - like(1.0, x)
  near = log1p(t + tf.sqrt(t * (t + like(2.0, x))))
  result = tf.where(x < like(1e9, x), near, log(x) + like(_LN2, x))
  return tf.where(x >= like(1.0, x), result, like(math.nan, x))


def atanh(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  result = like(0.5, x) * log1p(like(2.0, x) * size / subtracted(like(1.0, x), size))
  return tf.where(x < like(0.0, x), -result, result)


def erf(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  near = erf_to_one(x)
  far = subtracted(like(1.0, x), _erfc_from_one(size))
  return _keeping_nan(x, tf.where(size < like(1.0, x), near, tf.where(x < like(0.0, x), -far, far)))


def erfc(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  far = _erfc_from_one(size)
  near = subtracted(like(1.0, x), erf_to_one(x))
  return _keeping_nan(
    x,
    tf.where(
      size < like(1.0, x), near, tf.where(x < like(0.0, x), subtracted(like(2.0, x), far), far)
    ),
  )


def next_after(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """The next float after x towards y, by its bits."""
  zero = tf.constant(0.0, x.dtype)
  up = y > x
  step = tf.where(tf.equal(up, x > zero), tf.constant(1, tf.int32), tf.constant(-1, tf.int32))
  bits = tf.where(
    tf.equal(x, zero),
    tf.where(up, tf.constant(1, tf.int32), tf.constant(-(2**31) + 1, tf.int32)),
    tf.bitcast(x, tf.int32) + step,
  )
  result = tf.where(tf.equal(x, y), y, tf.bitcast(bits, tf.float32))
  return tf.where(tf.math.is_nan(x), x, tf.where(tf.math.is_nan(y), y, result))


def remainder(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x - y trunc(x / y), exactly. FloorMod equals C's fmod for nonnegative operands."""
  result = tf.math.floormod(tf.abs(x), tf.abs(y))
  return tf.where(x < like(0.0, x), -result, result)


def _erfc_from_one(x: tf.Tensor) -> tf.Tensor:
  return erfc_from_one(
    tf.maximum(x, like(1.0, x)), exp=_precise_exp, inverse=lambda y: divided(like(1.0, y), y)
  )


def _precise_exp(x: tf.Tensor) -> tf.Tensor:
  """e**x = e**r * 2**n. The error of XNNPACK's kernel, in ulp, grows with x. The result for NaN is
  unspecified."""
  x = tf.minimum(tf.maximum(x, like(-104.0, x)), like(89.0, x))
  n = tf.round(x * like(1 / _LN2, x))
  rest = x - n * like(_LN2_PARTS[0], x) - n * like(_LN2_PARTS[1], x)
  half = tf.floor(n * like(0.5, x))  # 2**n may overflow, or be subnormal
  return tf.exp(rest) * _power_of_two(half) * _power_of_two(n - half)


def _power_of_two(n: tf.Tensor) -> tf.Tensor:
  return tf.bitcast((tf.cast(n, tf.int32) + tf.constant(127)) * tf.constant(1 << 23), tf.float32)


def _log1p_near_zero(x: tf.Tensor) -> tf.Tensor:
  square = x * x
  return x + (square * x * polynomial(_LOG, x) - like(0.5, x) * square)


def _half_exp(size: tf.Tensor) -> tf.Tensor:
  root = _precise_exp(size * like(0.5, size))
  return like(0.5, size) * root * root


def _at_least(bound: float, x: tf.Tensor) -> tf.Tensor:
  """Whether x >= bound > 0, or x is a NaN without a sign. By the bits: float16 models cannot have a
  large bound as a constant."""
  return tf.bitcast(x, tf.int32) >= tf.constant(_bits(bound))


def _bits(x: float) -> np.int32:
  return np.float32(x).view(np.int32)


def _keeping_nan(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return tf.where(tf.math.is_nan(x), x, y)
