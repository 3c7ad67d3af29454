"""Special functions that several targets lack. A target passes its own version of a simpler
function whose kernel is inaccurate."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf.coefficients import ERF_INV_CENTRE, ERF_INV_TAIL

Function: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


def like(value: float, x: tf.Tensor) -> tf.Tensor:
  """The number as a constant in the dtype of x."""
  return tf.constant(value, x.dtype)


def widened(x: tf.Tensor) -> tf.Tensor:
  """x as f64 or f32, in which these functions compute."""
  return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def polynomial(coefficients: Sequence[float], x: tf.Tensor) -> tf.Tensor:
  """A polynomial by Horner's rule; the coefficient of the highest power comes first."""
  value = like(coefficients[0], x)
  for c in coefficients[1:]:
    value = value * x + like(c, x)
  return value


# Stephen L. Moshier, Cephes Mathematical Library, single/ndtrf.c: erf(x) / x in x**2 below 1.
_ERF = (
  7.853861353153693e-5,
  -8.010193625184903e-4,
  5.188327685732524e-3,
  -2.685381193529856e-2,
  1.128358514861418e-1,
  -3.761262582423300e-1,
  1.128379165726710,
)


def erf_to_one(x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], erf(x) where |x| <= 1."""
  return x * polynomial(_ERF, x * x)


def erfcx(x: float) -> float:
  """exp(x**2) erfc(x) for x >= 0; for large x by its continued fraction (DLMF 7.9.2)."""
  if x < 2:
    return math.exp(x * x) * math.erfc(x)
  tail = 0.0
  for k in range(200, 0, -1):
    tail = 0.5 * k / (x + tail)
  return 1 / (math.sqrt(math.pi) * (x + tail))


_LIMIT = 11.0  # from here on erfc is below the least float32
# of sqrt pi, as a multiple of 2**-16: so are squares of multiples of 2**-8
_LOG = round(math.log(math.pi) / 2 * 2**16) / 2**16


@functools.cache
def _tail() -> tuple[float, ...]:
  """Coefficients of h, interpolated once: exp(-x**2) / (sqrt pi erfc(x)) is x + t h(t) with t = 1 /
  (x + 2) for 1 <= x <= _LIMIT."""

  def h(t: Any) -> Any:
    return np.array([(math.exp(-_LOG) / erfcx(x) - x) * (x + 2) for x in 1 / t - 2])

  interpolant = np.polynomial.Chebyshev.interpolate(h, 5, [1 / (_LIMIT + 2), 1 / 3])
  return tuple(
    reversed(
      interpolant.convert(
        kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1]
      ).coef.tolist()
    )
  )


def _coarse(x: tf.Tensor) -> tf.Tensor:
  """x rounded down to a multiple of 2**-8."""
  return tf.floor(x * like(256.0, x)) * like(1 / 256, x)


def erfc_from_one(
  x: tf.Tensor,
  *,
  rounded: Function = _coarse,
  exp: Function = tf.exp,
  inverse: Function = tf.math.reciprocal,
) -> tf.Tensor:
  """x f32[...] -> f32[...], erfc(x) where x >= 1: exp(-x**2) is exp(-r**2) exp(r**2 - x**2) with r
  = rounded(x), whose square is exact."""
  size = tf.minimum(x, like(_LIMIT, x))
  r = rounded(size)
  power = exp(like(-_LOG, x) - r * r) * exp((r - size) * (r + size))
  t = inverse(size + like(2, x))
  return power / (size + t * polynomial(_tail(), t))


def erf_inv(x: tf.Tensor, log1p: Function) -> tf.Tensor:
  """x f32[...] -> f32[...], the inverse of erf within ]-1, 1[, to the precision of float32."""
  w = -log1p(-x * x)
  centre, tail = (
    polynomial(ERF_INV_CENTRE, w - like(2.5, x)),
    polynomial(ERF_INV_TAIL, tf.sqrt(w) - like(3, x)),
  )
  return x * tf.where(w < like(5, x), centre, tail)


# C. Lanczos' approximation with g = 7 and nine terms (P. Godfrey); its relative error is 1e-15 for
# z >= 1/2.
LANCZOS_G = 7
_LANCZOS = (
  0.99999999999980993,
  676.5203681218851,
  -1259.1392167224028,
  771.32342877765313,
  -176.61502916214059,
  12.507343278686905,
  -0.13857109526572012,
  9.9843695780195716e-6,
  1.5056327351493116e-7,
)


def lanczos(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """(Lanczos' sum at z, its derivative)."""
  total, slope = like(_LANCZOS[0], z), like(0, z)
  for k, c in enumerate(_LANCZOS[1:], 1):
    term = like(c, z) / (z + like(k, z))
    total, slope = total + term, slope - term / (z + like(k, z))
  return total, slope


def lgamma(x: tf.Tensor, log_shifted: Function) -> tf.Tensor:
  """log |gamma(x)|, by reflection for x < 1/2; log_shifted(z) is log(z + 7.5)."""
  left = x < like(0.5, x)
  z = tf.where(left, -x, x - like(1, x))
  total, _ = lanczos(z)
  t, log_t = z + like(LANCZOS_G + 0.5, x), log_shifted(z)
  right = (
    (z + like(0.5, x) - t / log_t) * log_t
    + like(0.5 * math.log(2 * math.pi), x)
    + tf.math.log(total)
  )
  fraction = tf.abs(x) - tf.floor(tf.abs(x))
  fraction = tf.where(fraction > like(0.5, x), like(1, x) - fraction, fraction)
  result = tf.where(
    left,
    like(math.log(math.pi), x) - tf.math.log(tf.sin(like(math.pi, x) * fraction)) - right,
    right,
  )
  pole = (x <= like(0, x)) & tf.equal(x, tf.floor(x))
  return tf.where(pole | tf.equal(tf.abs(x), like(math.inf, x)), like(math.inf, x), result)
