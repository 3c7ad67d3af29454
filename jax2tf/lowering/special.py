"""Special functions: error functions, gamma and its family, Bessel."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import jax.extend.core.primitives as P
import tensorflow as tf

from jax2tf._jax_compat import DIGAMMA_OF_ZERO, IGAMMA_OF_INFINITY, IGAMMAC_OF_INFINITY
from jax2tf.coefficients import ERF_INV_CENTRE, ERF_INV_TAIL
from jax2tf.context import RuleContext
from jax2tf.dtypes import HALF, NARROW
from jax2tf.lowering._common import scalar, where
from jax2tf.registry import lower_directly, lowers


def _bessel_i1e(x: tf.Tensor) -> tf.Tensor:
  # TF 2.21: the kernel has 0.0 at -0.0
  return where(tf.equal(x, scalar(0, x)), x, tf.math.bessel_i1e(x))


# TF 2.21: most of these ops have no bfloat16 kernel on CPU, and many no float16 kernel.
_LACKS = (*NARROW, *HALF)

lower_directly(
  {P.bessel_i0e_p: tf.math.bessel_i0e, P.bessel_i1e_p: _bessel_i1e, P.lgamma_p: tf.math.lgamma},
  lacks=_LACKS,
)


def _bernoulli_over_factorial(count: int) -> list[float]:
  """B(2k) / (2k)! for k = 1, ..., count."""
  numbers = [Fraction(1)]
  for m in range(1, 2 * count + 1):
    numbers.append(
      -sum((math.comb(m + 1, k) * number for k, number in enumerate(numbers)), Fraction(0))
      / (m + 1)
    )
  return [float(numbers[2 * k] / math.factorial(2 * k)) for k in range(1, count + 1)]


_ZETA_COEFFICIENTS = _bernoulli_over_factorial(12)


@lowers(P.erf_p, lacks=NARROW)
def _erf(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]."""
  # TF 2.21: the float64 kernel is NaN at infinity; at 6 it is 1 to the last digit
  if x.dtype == tf.float64:
    x = tf.maximum(tf.minimum(x, scalar(6, x)), scalar(-6, x))
  return tf.math.erf(x)


@lowers(P.erfc_p, lacks=NARROW)
def _erfc(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], 1 - erf(x) without cancellation."""
  return tf.math.erfc(x)


@lowers(P.erf_inv_p, lacks=_LACKS)
def _erf_inv(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]; infinite at 1 and -1, NaN beyond.

  TF 2.21: the kernel goes by way of (x + 1) / 2, where small x drown and x near 1 lose a bit.
  """
  return _erf_inv_64(x) if x.dtype == tf.float64 else _erf_inv_32(x)


def _erf_inv_32(x: tf.Tensor) -> tf.Tensor:
  w, infinity = -tf.math.log1p(-tf.square(x)), scalar(math.inf, x)
  # Both polynomials and one select: TF 2.21 broadcasts the scalars of a select one element at a
  # time.
  middle = scalar(2.5, x)
  near = w - middle
  centre, tail = (
    _polynomial(ERF_INV_CENTRE, near),
    _polynomial(ERF_INV_TAIL, tf.sqrt(w) - scalar(3, x)),
  )
  root = where(near < middle, centre, tail)
  return x * where(tf.equal(w, infinity), infinity, root)


def _polynomial(coefficients: Sequence[float], x: tf.Tensor) -> tf.Tensor:
  """The highest power first."""
  return functools.reduce(
    lambda sum, coefficient: sum * x + coefficient, [scalar(c, x) for c in coefficients]
  )


def _erf_inv_64(x: tf.Tensor) -> tf.Tensor:
  size = tf.abs(x)
  root = tf.math.erfinv(size)
  # One Newton step. Near 1, erfc gives the error, because 1 - x is exact there.
  error = where(
    size < scalar(0.5, x), size - tf.math.erf(root), tf.math.erfc(root) - (scalar(1, x) - size)
  )
  better = root + error * scalar(math.sqrt(math.pi) / 2, x) * tf.exp(tf.square(root))
  root = where(size < scalar(1, x), better, root)
  return where(tf.equal(x, scalar(0, x)), x, where(x < scalar(0, x), -root, root))


@lowers(P.digamma_p, lacks=_LACKS)
def _digamma(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]; NaN at the poles, in 0 as this JAX has it."""
  return _digamma_32(x)


def _digamma_32(x: tf.Tensor) -> tf.Tensor:
  return where(tf.equal(x, scalar(0, x)), scalar(DIGAMMA_OF_ZERO, x), tf.math.digamma(x))


@lowers(P.polygamma_p, lacks=_LACKS)
def _polygamma(ctx: RuleContext, n: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """n, x f32[...] -> f32[...], derivative n of digamma at x; NaN unless n is a natural number."""
  zero, one = scalar(0, x), scalar(1, x)
  is_odd = tf.equal(tf.math.floormod(n, scalar(2, x)), one)
  value = where(is_odd, one, -one) * tf.exp(tf.math.lgamma(n + one)) * _zeta_32(n + one, x)
  value = where(tf.equal(n, zero), _digamma_32(x), value)
  return where(tf.equal(n, tf.floor(n)) & (n >= zero), value, scalar(math.nan, x))


@lowers(P.zeta_p, lacks=_LACKS)
def _zeta(ctx: RuleContext, x: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
  """x, q f32[...] -> f32[...], the sum of (q + k)**-x over k >= 0; infinite at x = 1; NaN below, or
  for q <= 0 and broken x."""
  return _zeta_32(x, q)


def _zeta_32(x: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
  """Ten terms, and Euler-Maclaurin's formula for the rest (DLMF 25.11.5), as in XLA.

  TF 2.21: the kernel is far off for q < 0 (trigamma(-8.28) = -3e8), where JAX's is right to some
  digits.
  """
  zero, half, one, two, inf, nan = (
    scalar(value, x) for value in (0, 0.5, 1, 2, math.inf, math.nan)
  )
  a, initial = q, tf.pow(q, -x)
  for _ in range(9):
    a += one
    initial += tf.pow(a, -x)
  a += one
  power = tf.pow(a, -x)
  inverse_square = one / tf.square(a)
  corrections = scalar(0, x)
  for k in range(11, 0, -1):  # Horner's rule
    factor = (x + scalar(2 * k, x)) * (x + scalar(2 * k - 1, x))
    corrections = factor * (inverse_square * (corrections + scalar(_ZETA_COEFFICIENTS[k], x)))
  corrections = x / a * (scalar(_ZETA_COEFFICIENTS[0], x) + corrections)
  value = initial + power * a / (x - one) + power * (half + corrections)
  is_whole = tf.equal(x, tf.floor(x))
  is_even = is_whole & tf.equal(tf.math.floormod(x, two), zero)
  pole = where(is_even, inf, nan)
  value = where((x >= one) & (is_whole | (q > zero)), value, nan)
  value = where((q <= zero) & tf.equal(q, tf.floor(q)), pole, value)
  return where(tf.equal(x, one), inf, value)


@lowers(P.igamma_p, lacks=_LACKS)
def _igamma(ctx: RuleContext, a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """a, x f32[...] -> f32[...]; for a = 0 it is 1 from x = 1 on, else NaN; NaN for negative
  operands."""
  zero, one, nan = (scalar(value, x) for value in (0, 1, math.nan))
  value = where(a > zero, tf.math.igamma(a, x), where(tf.equal(a, zero) & (x >= one), one, nan))
  return _at_infinity(value, a, x, IGAMMA_OF_INFINITY)


def _at_infinity(
  value: tf.Tensor, a: tf.Tensor, x: tf.Tensor, known: tuple[float, float]
) -> tf.Tensor:
  """value, a, x f32[...] -> f32[...], with the known values where a is infinite, and x >= 1 finite
  or infinite."""
  of_finite, of_infinite = (scalar(one, x) for one in known)
  inf = scalar(math.inf, x)
  value = where(tf.equal(a, inf) & (x >= scalar(1, x)), of_finite, value)
  return where(tf.equal(a, inf) & tf.equal(x, inf), of_infinite, value)


@lowers(P.igammac_p, lacks=_LACKS)
def _igammac(ctx: RuleContext, a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """a, x f32[...] -> f32[...]; for a = 0 it is 0, and NaN at x = 0; NaN for negative operands."""
  zero, nan = scalar(0, x), scalar(math.nan, x)
  value = where(a > zero, tf.math.igammac(a, x), where(tf.equal(a, zero) & (x > zero), zero, nan))
  value = _at_infinity(value, a, x, IGAMMAC_OF_INFINITY)
  return where(x >= zero, value, nan)  # TF 2.21: 1 for x < 0 when compiled by XLA


@lowers(P.igamma_grad_a_p, lacks=_LACKS)
def _igamma_grad_a(ctx: RuleContext, a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """a, x f32[...] -> f32[...], the derivative of igamma by a; 0 at x = 0 < a, NaN at infinities."""
  zero = scalar(0, x)
  at_zero = tf.equal(x, zero)
  defined = tf.math.is_finite(a) & tf.math.is_finite(x) & tf.math.logical_not(at_zero)
  value = where(defined, tf.raw_ops.IgammaGradA(a=a, x=x), scalar(math.nan, x))
  return where(at_zero & (a > zero), zero, value)


@lowers(P.regularized_incomplete_beta_p, lacks=_LACKS)
def _regularized_incomplete_beta(
  ctx: RuleContext, a: tf.Tensor, b: tf.Tensor, x: tf.Tensor
) -> tf.Tensor:
  """a, b, x f32[...] -> f32[...]; a step at 0 for a = 0 or b infinite, a step at 1 for b = 0 or a
  infinite, NaN for both."""
  zero, one, inf, nan = (scalar(value, x) for value in (0, 1, math.inf, math.nan))
  step_at_0 = tf.equal(a, zero) | tf.equal(b, inf)
  step_at_1 = tf.equal(b, zero) | tf.equal(a, inf)
  value = where(step_at_1, where(x < one, zero, one), tf.math.betainc(a, b, x))
  value = where(step_at_0, where(x > zero, one, zero), value)
  defined = (
    (a >= zero)
    & (b >= zero)
    & (x >= zero)
    & (x <= one)
    & tf.math.logical_not(step_at_0 & step_at_1)
  )
  return where(defined, value, nan)
