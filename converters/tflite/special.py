"""Elementary functions of float32 tensors that LiteRT has no kernel for, or one that loses digits, NaN or infinities.

They are f32[...] -> f32[...], and right for every float32 but subnormal ones. Each is made of ops that were found right in LiteRT 2.3
(XNNPACK's kernels included), on which the comments below rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Stephen L. Moshier, Cephes Mathematical Library, single/ndtrf.c: erf(x) / x in x**2 below 1, and erfc(x) exp(x**2) x in 1 / x**2 between
# 1 and 2, and above. Highest power first.
_ERF = (
  7.853861353153693e-5,
  -8.010193625184903e-4,
  5.188327685732524e-3,
  -2.685381193529856e-2,
  1.128358514861418e-1,
  -3.761262582423300e-1,
  1.128379165726710,
)
_ERFC_NEAR = (
  2.326819970068386e-2,
  -1.387039388740657e-1,
  3.687424674597105e-1,
  -5.824733027278666e-1,
  6.210004621745983e-1,
  -4.944515323274145e-1,
  3.404879937665872e-1,
  -2.741127028184656e-1,
  5.638259427386472e-1,
)
_ERFC_FAR = (
  -1.047766399936249e1,
  1.297719955372516e1,
  -7.495518717768503,
  2.921019019210786,
  -1.015265279202700,
  4.218463358204948e-1,
  -2.820767439740514e-1,
  5.641895067754075e-1,
)

# The same, single/logf.c: (log(1 + x) - x + x**2 / 2) / x**3 in x between sqrt(1/2) - 1 and sqrt(2) - 1; single/tanf.c: (tan(x) - x) / x**3
# in x**2 up to pi / 4; and pi / 2, as single/tanf.c has pi / 4, and log(2) (single/expf.c), in parts of few bits.
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

_LARGEST = float(np.finfo(np.float32).max)
_LN2 = math.log(2)


def subtracted(constant: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """constant - x. TF 2.21's converter moves a transposition of x behind the op, and there has x - constant."""
  return constant + (tf.negative(x) if x.dtype.is_floating else x * tf.constant(-1, x.dtype))  # of an integer -x it makes constant - x


def divided(constant: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """constant / x, for which the converter has x / constant as in `subtracted`; a numerator that is NaN where x is is no constant."""
  return tf.where(tf.math.is_nan(x), x, constant) / x


def exp(x: tf.Tensor) -> tf.Tensor:
  """e**x; XNNPACK's kernel has exp(NaN) = 0."""
  return _keeping_nan(x, tf.exp(x))


def sigmoid(x: tf.Tensor) -> tf.Tensor:
  """1 / (1 + e**-x); XNNPACK's kernel has NaN for some numbers above 1e20."""
  return _keeping_nan(x, tf.sigmoid(tf.maximum(tf.minimum(x, _like(128.0, x)), _like(-128.0, x))))


def log(x: tf.Tensor) -> tf.Tensor:
  """log x; XNNPACK's kernel has few digits near 1, and overflows near the largest numbers."""
  far = tf.where(x > _like(_LARGEST / 8, x), tf.math.log(x * _like(0.25, x)) + _like(2 * _LN2, x), tf.math.log(x))
  near = (x > _like(math.sqrt(0.5), x)) & (x < _like(math.sqrt(2), x))
  return tf.where(near, _log1p_near_zero(x - _like(1.0, x)), far)


def log1p(x: tf.Tensor) -> tf.Tensor:
  """log(1 + x). The converter makes just that of Log1p, which has no digit left for small x."""
  near = (x > _like(math.sqrt(0.5) - 1, x)) & (x < _like(math.sqrt(2) - 1, x))
  return tf.where(near, _log1p_near_zero(x), log(x + _like(1.0, x)))


def expm1(x: tf.Tensor) -> tf.Tensor:
  """e**x - 1, which the converter makes of Expm1 as for `log1p`."""
  near = x * _polynomial(_EXPM1, x)
  return _keeping_nan(x, tf.where(tf.abs(x) < _like(0.5, x), near, _precise_exp(x) - _like(1.0, x)))


def rsqrt(x: tf.Tensor) -> tf.Tensor:
  """1 / sqrt(x); XNNPACK's kernel has rsqrt(0) = NaN."""
  return tf.where(tf.equal(x, _like(0.0, x)), divided(_like(1.0, x), x), tf.math.rsqrt(x))


def is_inf(x: tf.Tensor) -> tf.Tensor:
  """The converter makes |x| == inf of IsInf, and then False."""
  return tf.abs(x) > tf.constant(_LARGEST, x.dtype)


def atan(x: tf.Tensor) -> tf.Tensor:
  return tf.atan2(x, tf.ones_like(x))  # LiteRT's Atan2 does not broadcast


def asin(x: tf.Tensor) -> tf.Tensor:
  return tf.atan2(x, tf.sqrt(subtracted(_like(1.0, x), x) * (x + _like(1.0, x))))


def acos(x: tf.Tensor) -> tf.Tensor:
  return tf.atan2(tf.sqrt(subtracted(_like(1.0, x), x) * (x + _like(1.0, x))), x)


def sinh(x: tf.Tensor) -> tf.Tensor:
  """(e + e / (e + 1)) / 2 with e = expm1(|x|); above 80, where that would overflow too early, exp(|x| / 2)**2 / 2."""
  size = tf.abs(x)
  e = expm1(tf.minimum(size, _like(80.0, x)))
  near = _like(0.5, x) * (e + e / (e + _like(1.0, x)))
  return _keeping_nan(
    x, tf.where(x < _like(0.0, x), _like(-1.0, x), _like(1.0, x)) * tf.where(size < _like(80.0, x), near, _half_exp(size))
  )


def cosh(x: tf.Tensor) -> tf.Tensor:
  """(e**x + e**-x) / 2, above 80 as for `sinh`."""
  size = tf.abs(x)
  e = _precise_exp(tf.minimum(size, _like(80.0, x)))
  near = _like(0.5, x) * (e + divided(_like(1.0, x), e))
  return _keeping_nan(x, tf.where(size < _like(80.0, x), near, _half_exp(size)))


def asinh(x: tf.Tensor) -> tf.Tensor:
  """log(|x| + sqrt(x**2 + 1)) without cancellation; far out log(2 |x|)."""
  size = tf.abs(x)
  near = tf.minimum(size, _like(1e9, x))
  square = near * near
  found = log1p(near + square / (_like(1.0, x) + tf.sqrt(square + _like(1.0, x))))
  found = tf.where(size < _like(1e9, x), found, log(size) + _like(_LN2, x))
  return _keeping_nan(x, tf.where(x < _like(0.0, x), -found, found))


def acosh(x: tf.Tensor) -> tf.Tensor:
  """log(x + sqrt(x**2 - 1)) by t = x - 1; far out log(2 x); NaN below 1."""
  t = tf.minimum(x, _like(1e9, x)) - _like(1.0, x)
  near = log1p(t + tf.sqrt(t * (t + _like(2.0, x))))
  found = tf.where(x < _like(1e9, x), near, log(x) + _like(_LN2, x))
  return tf.where(x >= _like(1.0, x), found, _like(math.nan, x))


def atanh(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  found = _like(0.5, x) * log1p(_like(2.0, x) * size / subtracted(_like(1.0, x), size))
  return tf.where(x < _like(0.0, x), -found, found)


def erf(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  near = x * _polynomial(_ERF, x * x)
  far = subtracted(_like(1.0, x), _erfc_above_one(size))
  return _keeping_nan(x, tf.where(size < _like(1.0, x), near, tf.where(x < _like(0.0, x), -far, far)))


def erfc(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  far = _erfc_above_one(size)
  near = subtracted(_like(1.0, x), x * _polynomial(_ERF, x * x))
  return _keeping_nan(x, tf.where(size < _like(1.0, x), near, tf.where(x < _like(0.0, x), subtracted(_like(2.0, x), far), far)))


def remainder(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x - y trunc(x / y), exactly: FloorMod is C's fmod for operands that are not negative."""
  found = tf.math.floormod(tf.abs(x), tf.abs(y))
  return tf.where(x < _like(0.0, x), -found, found)


def _erfc_above_one(x: tf.Tensor) -> tf.Tensor:
  """Above 11 it is 0 in float32."""
  x = tf.minimum(tf.maximum(x, _like(1.0, x)), _like(11.0, x))
  # x**2 = head**2 + (x - head)(x + head), the square of the head being exact: exp would make the rounding of x**2 100 times larger.
  head = tf.floor(x * _like(256.0, x)) * _like(1 / 256, x)
  power = _precise_exp(-head * head) * _precise_exp(-(x - head) * (x + head))
  q = divided(_like(1.0, x), x)
  y = q * q
  near, far = _polynomial(_ERFC_NEAR, y), _polynomial(_ERFC_FAR, y)
  return power * q * tf.where(x < _like(2.0, x), near, far)


def _precise_exp(x: tf.Tensor) -> tf.Tensor:
  """e**x = e**r * 2**n; XNNPACK's kernel is off by as many units in the last place as x is large. Of NaN it is anything."""
  x = tf.minimum(tf.maximum(x, _like(-104.0, x)), _like(89.0, x))
  n = tf.round(x * _like(1 / _LN2, x))
  rest = x - n * _like(_LN2_PARTS[0], x) - n * _like(_LN2_PARTS[1], x)
  half = tf.floor(n * _like(0.5, x))  # 2**n itself may overflow, or be subnormal
  return tf.exp(rest) * _power_of_two(half) * _power_of_two(n - half)


def _power_of_two(n: tf.Tensor) -> tf.Tensor:
  return tf.bitcast((tf.cast(n, tf.int32) + tf.constant(127)) * tf.constant(1 << 23), tf.float32)


def _log1p_near_zero(x: tf.Tensor) -> tf.Tensor:
  square = x * x
  return x + (square * x * _polynomial(_LOG, x) - _like(0.5, x) * square)


def _half_exp(size: tf.Tensor) -> tf.Tensor:
  root = _precise_exp(size * _like(0.5, size))
  return _like(0.5, size) * root * root


def _polynomial(coefficients: Sequence[float], x: tf.Tensor) -> tf.Tensor:
  """Horner's scheme."""
  found = _like(coefficients[0], x)
  for c in coefficients[1:]:
    found = found * x + _like(c, x)
  return found


def _keeping_nan(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return tf.where(tf.math.is_nan(x), x, y)


def _like(value: float, x: tf.Tensor) -> tf.Tensor:
  return tf.constant(value, x.dtype)
