"""The incomplete gamma functions, and their derivatives by the shape.

By a power series where x is small, by a continued fraction where it is large, and by Temme's
uniform expansion where both are large and near each other, where those would need many terms. So no
function needs a loop: a step of a loop costs ONNX Runtime 1.32 as much as ten small ops.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import tensorflow as tf

from ..expansion import expands
from ..special import like, polynomial, widened
from ._factorials import LARGE, digamma, excess, is_near, reciprocal, same_shape, stirling

# Numbers of terms, the least ones after which the error is rounding only.
_SERIES = {tf.float32: 30, tf.float64: 60}
_FRACTION = {tf.float32: 22, tf.float64: 80}
# Temme's expansion is for shapes from here on, with so many powers of 1 / a and of eta, which is
# below _ETA where x / a is between 1/2 and 2. Terms that are below its error are left out.
_UNIFORM = 20.0
_ETA = 0.79
_POWERS = {tf.float32: (5, 14), tf.float64: (16, 40)}
_ERROR = {tf.float32: 1e-8, tf.float64: 1e-17}

_SQRT_2_PI = math.sqrt(2 * math.pi)


class _Operands:
  """a and x f32[...] of one shape: those of the op where it is defined, and 1 elsewhere.

  Attributes:
    defined: where both are positive and finite.
    a, x: the operands.
    u: x / a - 1.
    uniform: where Temme's expansion is used.
    is_lower: where the power series of the lower function is used.
    exponent: a (u - log(1 + u)) where a is large.
  """

  def __init__(self, a: tf.Tensor, x: tf.Tensor):
    a, x = widened(a), widened(x)
    infinity = like(math.inf, x)
    self.defined = (a > 0.0) & (a < infinity) & (x > 0.0) & (x < infinity)
    one = tf.ones_like(a)
    self.a, self.x = tf.where(self.defined, a, one), tf.where(self.defined, x, one)
    self.u = (self.x - self.a) / self.a
    self.uniform = (self.a >= _UNIFORM) & is_near(self.u)
    self.is_lower = self.x <= tf.maximum(self.a, 1.0)
    self.exponent = self.a * excess(self.u, tf.math.log(self.x / self.a))

  def weight(self) -> tf.Tensor:
    """x**a exp(-x) / gamma(a + 1)."""
    is_large = self.a >= LARGE
    exponent = tf.where(is_large, self.exponent, self.x - self.a * tf.math.log(self.x))
    large = tf.maximum(self.a, LARGE)
    of_large = tf.exp(-stirling(large)) / (_SQRT_2_PI * tf.sqrt(large))
    factor = tf.where(is_large, of_large, reciprocal(tf.minimum(self.a, LARGE)))
    return tf.exp(-exponent) * factor

  def near_series(self) -> tuple[tf.Tensor, tf.Tensor]:
    """a and x of the power series, or others where it would not converge."""
    is_used = self.is_lower & ~self.uniform
    return self.a, tf.where(is_used, self.x, tf.zeros_like(self.x))

  def near_fraction(self) -> tuple[tf.Tensor, tf.Tensor]:
    """a and x of the continued fraction, or others where it would not converge."""
    is_used = ~self.is_lower & ~self.uniform
    one = tf.ones_like(self.x)
    return tf.where(is_used, self.a, one), tf.where(is_used, self.x, 2.0 * one)


def _series(a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """The lower function by the weight: the sum of x**n / ((a + 1) ... (a + n)) (DLMF 8.7.1)."""
  total = tf.ones_like(x)
  for n in range(_SERIES[x.dtype], 0, -1):
    total = 1.0 + total * x / (a + float(n))
  return total


def _series_and_slope(a: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """`_series`, and its derivative by a."""
  total, slope = tf.ones_like(x), tf.zeros_like(x)
  for n in range(_SERIES[x.dtype], 0, -1):
    ratio = x / (a + float(n))
    slope = ratio * (slope - total / (a + float(n)))
    total = 1.0 + total * ratio
  return total, slope


def _fraction(a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """a times the weight by the upper function: x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x +
  5 - a ...)) (DLMF 8.9.2)."""
  beyond, below = x - a, _rest(x)
  for n in range(_FRACTION[x.dtype], 0, -1):
    below = beyond + float(2 * n - 1) - (float(n * n) - float(n) * a) / below
  return below


def _rest(x: tf.Tensor) -> tf.Tensor:
  """Nearly what follows in the fraction, which saves one term in five."""
  n = float(_FRACTION[x.dtype])
  return n + tf.sqrt(n * x)


def _fraction_and_slope(a: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """`_fraction`, and its derivative by a."""
  beyond, below, slope = x - a, _rest(x), tf.zeros_like(x)
  for n in range(_FRACTION[x.dtype], 0, -1):
    quotient = (float(n * n) - float(n) * a) / below
    slope = (float(n) + quotient * slope) / below - 1.0
    below = beyond + float(2 * n - 1) - quotient
  return below, slope


@functools.cache
def _ratio_by_eta(count: int) -> list[Fraction]:
  """Coefficients of u in eta, with eta**2 / 2 = u - log(1 + u): those of u u' = eta (1 + u)."""
  m = [Fraction(0), Fraction(1)]
  for n in range(2, count):
    products = sum((m[i] * (n + 1 - i) * m[n + 1 - i] for i in range(2, n)), Fraction(0))
    m.append((m[n - 1] - products) / (n + 1))
  return m


@functools.cache
def _temme(dtype: tf.DType) -> tuple[tuple[float, ...], ...]:
  """Coefficients of c_k in eta, the lowest first (DLMF 8.12.9 to 8.12.11)."""
  powers, terms = _POWERS[dtype]
  count = terms + 2 * powers
  m = _ratio_by_eta(count + 3)[1:]
  inverse = [Fraction(1)]  # eta / u
  for n in range(1, count + 2):
    inverse.append(-sum((m[i] * inverse[n - i] for i in range(1, n + 1)), Fraction(0)))
  c = inverse[1:]
  table = []
  for k in range(powers):
    sizes = [abs(float(x)) * _ETA**n / _UNIFORM**k for n, x in enumerate(c[:terms])]
    last = max(n for n, size in enumerate(sizes) if size > _ERROR[dtype] or n == 0)
    table.append(tuple(float(x) for x in c[: last + 1]))
    c = [(n + 2) * c[n + 2] - c[1] * inverse[n + 1] for n in range(len(c) - 2)]
  return tuple(table)


def _eta(operands: _Operands) -> tf.Tensor:
  """The root of 2 (u - log(1 + u)), with the sign of u."""
  twice = 2.0 * operands.exponent / operands.a
  root = tf.sqrt(tf.where(operands.uniform, twice, tf.zeros_like(twice)))
  return tf.where(operands.u < 0.0, -root, root)


def _sum_of_powers(table: Any, eta: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
  """The sum of table[k][n] eta**n inverse**k."""
  total = tf.zeros_like(eta)
  for row in reversed(table):
    total = total * inverse + polynomial(row[::-1], eta)
  return total


def _uniform(operands: _Operands, sign: float) -> tf.Tensor:
  """The lower (sign = -1) or the upper function (sign = 1) by Temme's expansion (DLMF 8.12.3)."""
  eta, a = _eta(operands), operands.a
  main = 0.5 * tf.math.erfc(sign * eta * tf.sqrt(0.5 * a))
  total = _sum_of_powers(_temme(a.dtype), eta, 1.0 / a)
  peak = tf.exp(-operands.exponent) / (_SQRT_2_PI * tf.sqrt(a))
  return main + sign * peak * total


def _slope(operands: _Operands) -> tf.Tensor:
  """The derivative of the lower function by a, by the weight."""
  a, x = operands.a, operands.x
  log_minus_digamma = tf.math.log(x) - digamma(a + 1.0)
  total, change = _series_and_slope(*operands.near_series())
  of_series = total * log_minus_digamma + change
  below, change = _fraction_and_slope(*operands.near_fraction())
  of_fraction = -(a * (log_minus_digamma - change / below) + 1.0) / below
  result = tf.where(operands.is_lower, of_series, of_fraction)
  return tf.where(operands.uniform, _uniform_slope(operands), result)


def _uniform_slope(operands: _Operands) -> tf.Tensor:
  """`_slope` by Temme's expansion."""
  eta, a = _eta(operands), operands.a
  inverse, table = 1.0 / a, _temme(a.dtype)
  m = [float(x) for x in _ratio_by_eta(_POWERS[a.dtype][1])[1:]]
  u_by_eta = polynomial(m[::-1], eta)
  by_eta = [tuple(n * c for n, c in enumerate(row))[1:] or (0.0,) for row in table]
  by_inverse = [tuple(k * c for c in row) for k, row in enumerate(table)]
  total = _sum_of_powers(table, eta, inverse)
  change = (
    (operands.u - 0.5 * eta * eta - 0.5 * inverse) * total
    - inverse * u_by_eta * _sum_of_powers(by_eta, eta, inverse)
    - inverse * _sum_of_powers(by_inverse, eta, inverse)
  )
  return tf.exp(stirling(tf.maximum(a, LARGE))) * (0.5 * eta - u_by_eta - change)


@expands("Igamma", "Igammac")
def _igamma(op: Any, a: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
  """a, x f32[...] -> f32[...], of which Igammac is the rest to 1."""
  is_upper = op.type == "Igammac"
  a, x = same_shape(a, x)
  operands = _Operands(a, x)
  weight = operands.weight()
  lower = weight * _series(*operands.near_series())
  upper = weight * operands.a / _fraction(*operands.near_fraction())
  if is_upper:
    result = tf.where(operands.is_lower, 1.0 - lower, upper)
  else:
    result = tf.where(operands.is_lower, lower, 1.0 - upper)
  result = tf.where(operands.uniform, _uniform(operands, 1.0 if is_upper else -1.0), result)
  is_zero = tf.equal(x, like(0.0, x))
  if is_upper:
    is_zero &= a > like(0.0, a)
  ends = (1.0, 0.0) if is_upper else (0.0, 1.0)
  return [_with_limits(operands, result, a, x, is_zero, ends)]


def _with_limits(
  operands: _Operands,
  result: tf.Tensor,
  a: tf.Tensor,
  x: tf.Tensor,
  is_zero: tf.Tensor,
  ends: tuple[float, float],
) -> tf.Tensor:
  """The result in the dtype of the op; the first end where `is_zero` or a is infinite, the second
  one where x is infinite, and NaN where it is not defined."""
  zero, infinity = like(0.0, x), like(math.inf, x)
  is_infinite = tf.equal(a, infinity) & (x >= zero) & (x < infinity)
  is_last = tf.equal(x, infinity) & (a > zero) & (a < infinity)
  result = tf.where(operands.defined, tf.cast(result, x.dtype), like(math.nan, x))
  result = tf.where(is_zero | is_infinite, like(ends[0], x), result)
  return tf.where(is_last, like(ends[1], x), result)


@expands("IgammaGradA", "RandomGammaGrad")
def _derivatives(op: Any, a: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
  """a, x f32[...] -> f32[...], the derivative of Igamma by a, or by a that of the x where Igamma
  does not change."""
  a, x = same_shape(a, x)
  operands = _Operands(a, x)
  slope = _slope(operands)
  if op.type == "RandomGammaGrad":
    result = -slope * operands.x / operands.a
  else:
    result = slope * operands.weight()
  is_zero = tf.equal(x, like(0.0, x))
  return [_with_limits(operands, result, a, x, is_zero, (0.0, 0.0))]
