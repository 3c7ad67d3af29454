"""Special functions for ONNX Runtime, composed of basic functions that it has.

Most are computed in float64 and rounded once for narrower dtypes, so cancellation does no harm.
ONNX Runtime passes through memory for each op, so functions that models apply to large tensors have
a float32 form of few ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..export.registry import replaces
from ..export.special import LANCZOS_G, erf_inv, erfc_from_one, erfcx, lanczos, polynomial
from ..export.special import lgamma as lgamma_of

_Function = Callable[[tf.Tensor], tf.Tensor]


def _in_double(function: _Function) -> Callable[..., list[tf.Tensor]]:
  def replacement(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
    del op
    return [tf.cast(function(tf.cast(x, tf.float64)), x.dtype)]

  return replacement


def _in_single(single: _Function, double: _Function) -> Callable[..., list[tf.Tensor]]:
  """Uses `single` for float32 and narrower dtypes, and `double` for float64."""

  def replacement(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
    del op
    return [
      double(x) if x.dtype == tf.float64 else tf.cast(single(tf.cast(x, tf.float32)), x.dtype)
    ]

  return replacement


def _f32(value: float) -> tf.Tensor:
  return tf.constant(value, tf.float32)


def _f64(value: float) -> tf.Tensor:
  return tf.constant(value, tf.float64)


def _log1p_of_single(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]: log u in float64, where u = 1 + x, and what x lost in that sum.

  Without a Select over float64, of which ONNX Runtime 1.32 takes longer than of the logarithm.
  """
  wide = tf.cast(x, tf.float64)
  finite = tf.minimum(wide, _f64(1e39))
  u = finite + _f64(1)
  lost = (finite - (u - _f64(1))) / tf.maximum(u, _f64(1e-300))  # 0 of x = -1
  return _signed_zero(x, tf.math.log(wide + _f64(1)) + lost)


def _expm1_of_single(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]: x is the sum of a small number, of which a series is exact, and the
  rest, of which exp - 1 is; expm1(a + b) = expm1(a) + exp(a) expm1(b). See `_log1p_of_single`."""
  wide = tf.cast(x, tf.float64)
  small = tf.maximum(tf.minimum(wide, _f64(2.0**-13)), _f64(-(2.0**-13)))
  grown = tf.exp(wide - small)
  series = small * (_f64(1) + small * (_f64(1 / 2) + small * _f64(1 / 6)))
  return _signed_zero(x, (grown - _f64(1)) + grown * series)


def _signed_zero(x: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
  """The result as f32[...], and x where it is a zero, for its sign.

  ONNX Runtime 1.32: Where makes 0.0 of a -0.0 that it selects for True.
  """
  return tf.where(tf.abs(x) > _f32(0), tf.cast(result, tf.float32), x)


def _expm1(x: tf.Tensor) -> tf.Tensor:
  """(u - 1) x / log u where u = exp x: its rounding error cancels (Kahan; Higham, Accuracy and
  Stability, 1.14.1)."""
  u = tf.exp(x)
  ordinary = (u - _f64(1)) * (x / tf.math.log(u))
  return tf.where(
    tf.equal(u, _f64(1)), x, tf.where((u < _f64(1e-30)) | (u > _f64(1e30)), u - _f64(1), ordinary)
  )


def _log1p(x: tf.Tensor) -> tf.Tensor:
  """x log u / (u - 1) where u = 1 + x; see `_expm1`."""
  u = x + _f64(1)
  ordinary = tf.math.log(u) * (x / (u - _f64(1)))
  return tf.where(tf.equal(u, _f64(1)), x, tf.where(u > _f64(1e30), tf.math.log(u), ordinary))


def _sinh_of_single(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]: a series up to 1, and what the exponentials add beyond.

  ONNX Runtime's Sinh takes 10 times as long, and a Select of a random condition 5 times. The
  difference of equal numbers is 0.0, which keeps a -0.0 that it is taken from.
  """
  near = tf.maximum(tf.minimum(x, _f32(1)), _f32(-1))
  series = polynomial((1 / 362880, 1 / 5040, 1 / 120, 1 / 6, 1), near * near) * near
  return series - (_difference_of_exps(near) - _difference_of_exps(x))


def _difference_of_exps(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], (exp(x) - exp(-x)) / 2, of which only large x has all digits."""
  half = _f32(-math.log(2))  # before the exp, which may overflow
  return tf.exp(x + half) - tf.exp(half - x)


def _cosh_of_single(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]; see `_difference_of_exps`."""
  half = _f32(-math.log(2))
  return tf.exp(x + half) + tf.exp(half - x)


def _sinh(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  e = _expm1(size)
  large = tf.exp(size - _f64(math.log(2)))  # half of an exp that may overflow
  return tf.sign(x) * tf.where(size > _f64(40), large, _f64(0.5) * (e + e / (e + _f64(1))))


def _cosh(x: tf.Tensor) -> tf.Tensor:
  half = tf.exp(tf.abs(x) - _f64(math.log(2)))
  return half + _f64(0.25) / half


@functools.cache
def _chebyshev(name: str) -> tuple[float, ...]:
  """Chebyshev coefficients, interpolated once from Python's erf and erfc."""

  def of_erfc(u: Any) -> Any:  # t = 2 / (2 + x) of x >= 0 is (u + 1) / 2
    t = (u + 1) / 2
    return np.array([math.log(erfcx(2 / v - 2) / v) for v in t])

  def of_erf(u: Any) -> Any:  # x**2 of |x| < 1/2 is (u + 1) / 8
    return np.array([math.erf(v) / v for v in np.sqrt((u + 1) / 8)])

  function, degree = {"erfc": (of_erfc, 27), "erf": (of_erf, 9)}[name]
  return tuple(np.polynomial.chebyshev.chebinterpolate(function, degree).tolist())


def _clenshaw(coefficients: tuple[float, ...], u: tf.Tensor) -> tf.Tensor:
  """The sum of coefficients[k] T_k(u)."""
  first, second = tf.zeros_like(u), tf.zeros_like(u)
  twice = u + u
  for c in reversed(coefficients[1:]):
    first, second = twice * first - second + _f64(c), first
  return u * first - second + _f64(coefficients[0])


def _erfc_of(size: tf.Tensor) -> tf.Tensor:
  """size f64[...] >= 0 -> f64[...]: t exp(p(t) - x**2), p a Chebyshev series (Numerical Recipes,
  6.2.2)."""
  t = _f64(2) / (size + _f64(2))
  return t * tf.exp(_clenshaw(_chebyshev("erfc"), t + t - _f64(1)) - size * size)


def _erfc(x: tf.Tensor) -> tf.Tensor:
  tail = _erfc_of(tf.abs(x))
  return tf.where(x < _f64(0), _f64(2) - tail, tail)


_ROUND = 1.5 * 2.0**15  # adding this constant rounds to multiples of 2**-8


def _erfc_single(x: tf.Tensor) -> tf.Tensor:
  """1 - erf(x) for x <= 1."""
  far = erfc_from_one(x, rounded=lambda size: (size + _f32(_ROUND)) - _f32(_ROUND))
  return tf.where(x > _f32(1), far, _f32(1) - tf.math.erf(x))


def _erf(x: tf.Tensor) -> tf.Tensor:
  near = x * _clenshaw(_chebyshev("erf"), _f64(8) * tf.minimum(x * x, _f64(0.25)) - _f64(1))
  far = _f64(1) - _erfc_of(tf.abs(x))
  return tf.where(tf.abs(x) < _f64(0.5), near, tf.sign(x) * far)


def _erfinv(x: tf.Tensor) -> tf.Tensor:
  """Giles' approximation, and two steps of Newton's method in float64."""
  size = tf.abs(x)
  y = erf_inv(size, _log1p)
  for _ in range(2):  # by erfc where erf is near 1
    excess = tf.where(size < _f64(0.5), _erf(y) - size, (_f64(1) - size) - _erfc_of(y))
    y = y - excess * tf.exp(y * y) * _f64(math.sqrt(math.pi) / 2)
  inside = tf.where(tf.equal(size, _f64(1)), _f64(math.inf), y)
  return tf.where(size > _f64(1), _f64(math.nan), tf.sign(x) * inside)


def _lgamma(x: tf.Tensor) -> tf.Tensor:
  return lgamma_of(x, lambda z: tf.math.log(z + _f64(LANCZOS_G + 0.5)))


def _digamma(x: tf.Tensor) -> tf.Tensor:
  """The derivative of `_lgamma`."""
  left = x < _f64(0.5)
  z = tf.where(left, -x, x - _f64(1))
  total, slope = lanczos(z)
  t = z + _f64(LANCZOS_G + 0.5)
  right = tf.math.log(t) + slope / total - _f64(LANCZOS_G) / t
  reduced = _f64(math.pi) * (x - tf.round(x))
  result = tf.where(left, right - _f64(math.pi) * tf.cos(reduced) / tf.sin(reduced), right)
  pole = (x <= _f64(0)) & tf.equal(x, tf.floor(x))
  infinite = tf.where(tf.equal(x, _f64(math.inf)), x, result)
  return tf.where(pole, _f64(math.nan), infinite)


erfinv = _in_double(_erfinv)
expm1, log1p = _in_single(_expm1_of_single, _expm1), _in_single(_log1p_of_single, _log1p)
erfc = _in_single(_erfc_single, _erfc)
lgamma, digamma = _in_double(_lgamma), _in_double(_digamma)
sinh, cosh = _in_single(_sinh_of_single, _sinh), _in_single(_cosh_of_single, _cosh)
erf, tan = map(_in_double, (_erf, lambda x: tf.sin(x) / tf.cos(x)))


@replaces("Sigmoid", on="onnx", because="ONNX Runtime 1.31: takes a number below -18 for -18")
def sigmoid(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...] -> f32[...]; ONNX Runtime's kernel clamps x at -18, which changes
  log(sigmoid(x))."""
  del op
  one = tf.constant(1, x.dtype)
  return [one / (one + tf.exp(-x))]


@replaces("IsFinite", on="onnx", because="ONNX 18: IsInf is of float32 and float64 only")
def is_finite(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...] -> bool[...]."""
  del op
  return [tf.abs(x) < tf.constant(math.inf, x.dtype)]


@replaces(
  "Atan2",
  on="onnx",
  because="tf2onnx 1.17: a formula that loses the signs of zeros and the corners of infinity",
)
def atan2(op: Any, y: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
  """y, x f32[...] -> f32[...], right for signed zeros and infinities, which tf2onnx's formula
  loses."""
  del op
  zero, one = tf.constant(0, x.dtype), tf.constant(1, x.dtype)

  def negative(z: tf.Tensor) -> tf.Tensor:
    return (z < zero) | (tf.equal(z, zero) & (one / z < zero))

  def reflected(condition: tf.Tensor, whole: float, angle: tf.Tensor) -> tf.Tensor:
    """whole - angle where the condition holds, exactly, without a Select, which ONNX Runtime 1.32
    branches on for each element: of a random condition it takes 80 times as long as a sum."""
    flag = tf.cast(condition, x.dtype)
    return flag * tf.constant(whole, x.dtype) + (one - flag - flag) * angle

  infinity = tf.constant(math.inf, x.dtype)
  both = tf.equal(tf.abs(x), infinity) & tf.equal(tf.abs(y), infinity)
  a = tf.where(both, one, tf.abs(y))
  b = tf.where(both, one, tf.abs(x))
  # The smaller over the larger, so the quotient neither overflows nor underflows.
  low, high = tf.minimum(a, b), tf.maximum(a, b)
  quotient = tf.where(tf.equal(high, zero), zero, low / high)
  angle = reflected(a > b, math.pi / 2, tf.atan(quotient))
  angle = reflected(negative(x), math.pi, angle)
  sign = tf.cast(negative(y), x.dtype)
  return [(one - sign - sign) * angle]
