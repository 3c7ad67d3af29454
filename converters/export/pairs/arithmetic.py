"""Arithmetic of complex numbers in real and imaginary parts, with the values of JAX on a CPU.

Targets are slow at Where (ONNX Runtime: 7 to 80 times an addition), so clipped operands keep 0 *
inf, inf / inf and overflowing factors out where they can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..pair import Pair, of_pairs
from ..special import like


def negative(x: Pair) -> Pair:
  """-x."""
  return x.map(tf.negative)


def rotated(x: Pair) -> Pair:
  """i x."""
  return Pair(-x.im, x.re)


def real(x: tf.Tensor) -> Pair:
  """x f32[...] -> c64[...]."""
  return Pair(x, tf.zeros_like(x))


def _limits(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """The least normal number and the largest one."""
  info = np.finfo(x.dtype.as_numpy_dtype)
  return like(float(info.tiny), x), like(float(info.max), x)


def _is_infinite(x: Pair) -> tf.Tensor:
  return tf.math.is_inf(x.re) | tf.math.is_inf(x.im)


def _is_finite(x: Pair) -> tf.Tensor:
  return tf.math.is_finite(x.re) & tf.math.is_finite(x.im)


def select(condition: tf.Tensor, x: Pair, y: Pair) -> Pair:
  """x where the condition holds, else y."""
  return x.map(lambda a, b: tf.where(condition, a, b), y)


def multiply(x: Pair, y: Pair) -> Pair:
  """x * y."""
  return Pair(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


def square(x: Pair) -> Pair:
  """x * x; the real part as XLA's, which does not cancel."""
  return Pair((x.re - x.im) * (x.re + x.im), like(2.0, x.re) * x.re * x.im)


def _unit(x: Pair) -> Pair:
  """C99's boxes: an infinite part becomes 1 of its sign, another one 0."""
  return x.map(lambda part: tf.where(tf.math.is_inf(part), tf.sign(part), tf.zeros_like(part)))


def divide(x: Pair, y: Pair) -> Pair:
  """x / y by Smith's method; of a zero or an infinity with the values of C99, annex G.5.1.

  Smith divides by the larger part of y, here both parts by its size: one of them becomes 1 or -1,
  exactly, so the sums are his.
  """
  size = tf.maximum(tf.abs(y.re), tf.abs(y.im))
  c, d = y.re / size, y.im / size
  below = y.re * c + y.im * d
  result = Pair((x.re * c + x.im * d) / below, (x.im * c - x.re * d) / below)
  lost = tf.math.is_nan(result.re) & tf.math.is_nan(result.im)
  at_zero = tf.equal(size, like(0.0, size))
  over = lost & ~at_zero & _is_infinite(x) & _is_finite(y)
  under = lost & _is_infinite(y) & _is_finite(x)
  u, v = _unit(x), _unit(y)
  infinity, zero = like(np.inf, size), like(0.0, size)
  overflown = Pair(infinity * (u.re * y.re + u.im * y.im), infinity * (u.im * y.re - u.re * y.im))
  vanished = Pair(zero * (x.re * v.re + x.im * v.im), zero * (x.im * v.re - x.re * v.im))
  result = select(at_zero, Pair(x.re / y.re, x.im / y.re), result)
  return select(under, vanished, select(over, overflown, result))


def absolute(x: Pair) -> tf.Tensor:
  """|x|, without overflow of the squares."""
  size, factor = _size(x)
  return size * factor


def _size(x: Pair) -> tuple[tf.Tensor, tf.Tensor]:
  """(the size of the larger part, |x| in multiples of it: 1 to sqrt 2; inf if both are)."""
  a, b = tf.abs(x.re), tf.abs(x.im)
  size = tf.maximum(a, b)
  least, most = _limits(size)
  ratio = tf.minimum(a, b) / tf.maximum(tf.minimum(size, most), least)
  return size, tf.sqrt(like(1.0, size) + ratio * ratio)


def angle(x: Pair) -> tf.Tensor:
  """The argument of x."""
  return tf.atan2(x.im, x.re)


def exp(x: Pair) -> Pair:
  """exp x, in two factors: exp of the real part may overflow where the product does not."""
  _, most = _limits(x.re)
  half = tf.minimum(tf.exp(like(0.5, x.re) * x.re), most)
  im = half * tf.sin(x.im) * half
  is_real = tf.equal(x.im, like(0.0, x.im))  # the imaginary part of NaN is 0, too
  return Pair(half * tf.cos(x.im) * half, tf.where(is_real, x.im, im))


def log(x: Pair) -> Pair:
  """log x."""
  return Pair(_log_of_size(x), angle(x))


def _log_of_size(x: Pair) -> tf.Tensor:
  """log |x|; near |x| = 1 as log1p(|x|**2 - 1) / 2, without cancellation."""
  a, b = tf.abs(x.re), tf.abs(x.im)
  large, small = tf.maximum(a, b), tf.minimum(a, b)
  one, half = like(1.0, a), like(0.5, a)
  size, factor = _size(x)
  near = half * tf.math.log1p((large - one) * (large + one) + small * small)
  far = tf.math.log(size) + tf.math.log(factor)
  return tf.where((large > half) & (large < like(2.0, a)), near, far)


def sqrt(x: Pair) -> Pair:
  """The root with a real part of at least 0; as JAX's it does not see the sign of a zero."""
  size, factor = _size(x)
  least, _ = _limits(size)
  half, eighth = like(0.5, size), like(0.125, size)  # of which the sum does not overflow
  large = like(2.0, size) * tf.sqrt(eighth * size * factor + eighth * tf.abs(x.re))
  b = tf.abs(x.im)
  small = half * b / tf.maximum(large, least)
  small = tf.where(tf.math.is_inf(b), large, small)
  is_right = x.re >= like(0.0, size)
  re, im = tf.where(is_right, large, small), tf.where(is_right, small, large)
  return Pair(re, _with_sign(im, x.im))


def rsqrt(x: Pair) -> Pair:
  """1 / sqrt x."""
  return reciprocal(sqrt(x))


def power(x: Pair, y: Pair) -> Pair:
  """x ** y as exp(y log x). 0 and an infinity have real powers only, 1 all."""
  result = exp(multiply(y, log(x)))
  zero, one, nan = (like(value, x.re) for value in (0.0, 1.0, np.nan))
  is_zero = tf.equal(x.re, zero) & tf.equal(x.im, zero)
  is_infinity = tf.equal(x.re, like(np.inf, x.re)) & tf.equal(x.im, zero)
  is_real = tf.equal(y.im, zero)
  grows = is_real & (y.re > zero)
  falls = is_real & (y.re < zero) & is_infinity
  limit = tf.where(grows, x.re, tf.where(falls, zero, nan))
  result = select(is_zero | is_infinity, Pair(limit, tf.where(grows | falls, zero, nan)), result)
  is_one = tf.equal(x.re, one) & tf.equal(x.im, zero)
  is_constant = (tf.equal(y.re, zero) & is_real) | is_one
  return select(is_constant, Pair(one, zero), result)


# cosh and sinh are products of exp(x - _HALFWAY) from here on: their own values may overflow where
# those with a small factor do not. Above it exp(-2 x) is below half of a rounding.
_HALFWAY = {tf.float32: 44.0, tf.float64: 350.0}


def _hyperbolic(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """(c, s, g) with cosh x = c g g and sinh x = s g g."""
  halfway = like(_HALFWAY[x.dtype], x)
  near = tf.maximum(tf.minimum(x, halfway), -halfway)
  _, most = _limits(x)
  rest = tf.minimum(tf.exp(like(0.5, x) * (tf.abs(x) - tf.abs(near))), most)
  return tf.cosh(near), tf.sinh(near), rest


def sinh(x: Pair) -> Pair:
  """sinh x."""
  c, s, rest = _hyperbolic(x.re)
  return Pair(s * tf.cos(x.im) * rest * rest, c * tf.sin(x.im) * rest * rest)


def cosh(x: Pair) -> Pair:
  """cosh x."""
  c, s, rest = _hyperbolic(x.re)
  return Pair(c * tf.cos(x.im) * rest * rest, s * tf.sin(x.im) * rest * rest)


def sin(x: Pair) -> Pair:
  """sin x = -i sinh(i x)."""
  y = sinh(rotated(x))
  return Pair(y.im, -y.re)


def cos(x: Pair) -> Pair:
  """cos x = cosh(i x)."""
  return cosh(rotated(x))


def tanh(x: Pair) -> Pair:
  """tanh x; W. Kahan, "Branch cuts for complex elementary functions", 1987."""
  far = like(20.0, x.re)  # from here on it is 1 and 4 sin b cos b exp(-2 a)
  near = tf.maximum(tf.minimum(x.re, far), -far)
  turn = tf.where(tf.math.is_inf(x.re), tf.zeros_like(x.im), x.im)
  t, s = tf.tan(turn), tf.sinh(near)
  one = like(1.0, s)
  beta, rho = one + t * t, tf.sqrt(one + s * s)
  below = one + beta * s * s
  decay = tf.exp(like(2.0, s) * (tf.abs(near) - tf.abs(x.re)))
  return Pair(beta * rho * s / below, t / below * decay)


def tan(x: Pair) -> Pair:
  """tan x = -i tanh(i x)."""
  y = tanh(rotated(x))
  return Pair(y.im, -y.re)


def _roots(x: Pair) -> tuple[Pair, Pair]:
  """The roots of 1 - w and 1 + w, where w = a + i |b| for x = a + i b."""
  one, b = like(1.0, x.re), tf.abs(x.im)
  below, above = sqrt(Pair(one - x.re, b)), sqrt(Pair(one + x.re, b))
  return below, above


def _with_sign(size: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
  """The size with a sign; that of -0.0 does not count."""
  return tf.where(of < like(0.0, of), -size, size)


def asin(x: Pair) -> Pair:
  """asin x; W. Kahan, "Branch cuts for complex elementary functions", 1987."""
  below, above = _roots(x)
  re = tf.atan2(x.re, below.re * above.re + below.im * above.im)
  im = tf.asinh(below.re * above.im + below.im * above.re)
  return Pair(re, _with_sign(im, x.im))


def _acos(x: Pair) -> tuple[tf.Tensor, tf.Tensor]:
  """The sizes of the parts of acos x."""
  below, above = _roots(x)
  re = like(2.0, x.re) * tf.atan2(below.re, above.re)
  return re, tf.asinh(below.re * above.im + below.im * above.re)


def acos(x: Pair) -> Pair:
  """acos x; as `asin`."""
  re, im = _acos(x)
  return Pair(re, _with_sign(-im, x.im))


def acosh(x: Pair) -> Pair:
  """acosh x, i or -i times acos x."""
  im, re = _acos(x)
  return Pair(re, _with_sign(im, x.im))


def asinh(x: Pair) -> Pair:
  """asinh x = -i asin(i x), by symmetry with the parts exchanged."""
  y = asin(Pair(x.im, x.re))
  return Pair(y.im, y.re)


# The squares of larger parts may overflow. Their atanh is i pi / 2 to all digits.
_LARGE = {tf.float32: 1e18, tf.float64: 1e150}


def atanh(x: Pair) -> Pair:
  """atanh x; as `asin`."""
  one, most = like(1.0, x.re), like(_LARGE[x.re.dtype], x.re)
  a = tf.minimum(tf.abs(x.re), most)
  b = tf.maximum(tf.minimum(x.im, most), -most)
  distance = (one - a) * (one - a) + b * b
  re = like(0.25, a) * tf.math.log1p(like(4.0, a) * a / distance)
  im = like(0.5, a) * tf.atan2(like(2.0, a) * b, (one - a) * (one + a) - b * b)
  return Pair(_with_sign(re, x.re), im)


def atan(x: Pair) -> Pair:
  """atan x = -i atanh(i x)."""
  y = atanh(rotated(x))
  return Pair(y.im, -y.re)


def logistic(x: Pair) -> Pair:
  """1 / (1 + exp -x)."""
  e = exp(negative(x))
  return reciprocal(Pair(tf.ones_like(x.re) + e.re, e.im))


def expm1(x: Pair) -> Pair:
  """exp x - 1, without cancellation."""
  half = tf.sin(like(0.5, x.im) * x.im)
  re = tf.math.expm1(x.re) * tf.cos(x.im) - like(2.0, half) * half * half
  return Pair(re, exp(x).im)


def log1p(x: Pair) -> Pair:
  """log(1 + x); near |1 + x| = 1 by 2 a + a**2 + b**2."""
  one = like(1.0, x.re)
  shifted = Pair(one + x.re, x.im)
  near = like(0.5, one) * tf.math.log1p(x.re * (like(2.0, one) + x.re) + x.im * x.im)
  is_near = (tf.abs(x.re) < like(0.5, one)) & (tf.abs(x.im) < one)
  return Pair(tf.where(is_near, near, _log_of_size(shifted)), angle(shifted))


def sign(x: Pair) -> Pair:
  """x / |x|; 0 of 0."""
  size = absolute(x)
  return x.map(lambda part: tf.math.divide_no_nan(part, size))


def reciprocal(x: Pair) -> Pair:
  """1 / x."""
  return divide(real(tf.ones_like(x.re)), x)


_ELEMENTWISE: dict[str, Callable[..., Pair | tf.Tensor]] = {
  "Mul": multiply,
  "RealDiv": divide,
  "Div": divide,
  "Square": square,
  "Reciprocal": reciprocal,
  "Inv": reciprocal,
  "ComplexAbs": absolute,
  "Angle": angle,
  "Sign": sign,
  "Exp": exp,
  "Expm1": expm1,
  "Log": log,
  "Log1p": log1p,
  "Sqrt": sqrt,
  "Rsqrt": rsqrt,
  "Pow": power,
  "Sin": sin,
  "Cos": cos,
  "Tan": tan,
  "Sinh": sinh,
  "Cosh": cosh,
  "Tanh": tanh,
  "Sigmoid": logistic,
  "Asin": asin,
  "Acos": acos,
  "Atan": atan,
  "Asinh": asinh,
  "Acosh": acosh,
  "Atanh": atanh,
}


@of_pairs(*_ELEMENTWISE)
def _elementwise(op: Any, *operands: Pair) -> list[Pair | tf.Tensor]:
  """x, y c64[...] -> c64[...], or f32[...]."""
  return [_ELEMENTWISE[op.type](*operands)]
