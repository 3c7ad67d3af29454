"""The regularised incomplete beta function, by a continued fraction and a factor without logarithms
of large numbers: those of gamma functions, whose difference XLA takes, cost digits."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from ..expansion import expands
from ..special import like, widened
from ._factorials import LARGE, excess, reciprocal, same_shape, stirling

# Numbers of terms of the fraction: this many, and so many for each unit of the root of the larger
# parameter, but no more than _MOST.
_TERMS = {tf.float32: (20, 0.7), tf.float64: (60, 1.3)}
_MOST = 2000
_LEAST = 2.0**-126  # the least normal number of float32


@expands("Betainc")
def _betainc(op: Any, a: tf.Tensor, b: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
  """a, b, x f32[...] -> f32[...]; NaN unless a > 0, b > 0 and 0 <= x <= 1."""
  a, b, x = same_shape(a, b, x)
  zero, one, infinity = (like(value, x) for value in (0.0, 1.0, math.inf))
  has_limits = ~((a <= zero) | (b <= zero))
  is_finite = (a < infinity) & (b < infinity)
  defined = has_limits & is_finite & (x > zero) & (x < one)
  wide = [(widened(value), other) for value, other in ((a, 1.0), (b, 1.0), (x, 0.5))]
  safe = [tf.where(defined, value, like(other, value)) for value, other in wide]
  result = tf.where(defined, tf.cast(_inside(*safe), x.dtype), like(math.nan, x))
  result = tf.where(has_limits & tf.equal(x, zero), zero, result)
  return [tf.where(has_limits & tf.equal(x, one), one, result)]


def _inside(a: tf.Tensor, b: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """Where all are positive and finite, and x < 1."""
  y = 1.0 - x
  # (a + b) x - a, of whichever of x and y has no rounding error from the other
  beyond = tf.where(x <= 0.5, (a + b) * x - a, b - (a + b) * y)
  factor = tf.exp(-_exponent(a, b, x, beyond) - _exponent(b, a, y, -beyond)) * _peak(a, b)
  is_lower = x * (a + b + 2.0) <= a + 1.0
  swapped = tf.where(is_lower, a, b), tf.where(is_lower, b, a), tf.where(is_lower, x, y)
  part = factor / _fraction(*swapped, tf.where(is_lower, beyond, -beyond))
  return tf.where(is_lower, part, 1.0 - part)


def _exponent(a: tf.Tensor, b: tf.Tensor, x: tf.Tensor, beyond: tf.Tensor) -> tf.Tensor:
  """a (u - log(1 + u)) with u = beyond / a, where 1 + u is x (a + b) / a."""
  mean = tf.maximum(a / (a + b), _LEAST)
  return a * excess(beyond / a, tf.math.log(x / mean))


def _peak(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  """p**a (1 - p)**b / beta(a, b) with p = a / (a + b)."""
  total = a + b
  root = tf.sqrt(a / total) * tf.sqrt(b) / math.sqrt(2 * math.pi)
  return root * (_scaled(a) / _scaled(total)) * _scaled(b)


def _scaled(a: tf.Tensor) -> tf.Tensor:
  """sqrt(2 pi a) (a / e)**a / gamma(a + 1), which is nearly 1 for a large a."""
  small, large = tf.minimum(a, LARGE), tf.maximum(a, LARGE)
  power = tf.exp(small * (tf.math.log(small) - 1.0))
  of_small = math.sqrt(2 * math.pi) * tf.sqrt(small) * power * reciprocal(small)
  return tf.where(a >= LARGE, tf.exp(-stirling(large)), of_small)


def _fraction(a: tf.Tensor, b: tf.Tensor, x: tf.Tensor, beyond: tf.Tensor) -> tf.Tensor:
  """x**a (1 - x)**b / beta(a, b) by the function: b(0) + a(1) / (b(1) + a(2) / (b(2) ...))
  (Didonato and Morris, "Significant digit computation of the incomplete beta function ratios",
  1992)."""
  some, more = _TERMS[x.dtype]
  largest = tf.reduce_max(tf.maximum(a, b))
  terms = tf.minimum(float(some) + more * tf.sqrt(largest), float(_MOST))

  def denominator(m: tf.Tensor) -> tf.Tensor:
    middle = 1.0 - beyond + m * (2.0 - x)
    return m + m * (b - m) * x / (a + 2.0 * m - 1.0) + (a + m) * middle / (a + 2.0 * m + 1.0)

  def quotient(m: tf.Tensor, below: tf.Tensor) -> tf.Tensor:
    between = a + 2.0 * m - 1.0
    larger = ((a + (m - 1.0)) / between) * ((a + b + (m - 1.0)) * x / between)
    return m * larger * ((b - m) * x) / below

  def step(m: tf.Tensor, below: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return m - 1.0, denominator(m - 1.0) + quotient(m, below)

  last = tf.math.ceil(terms)
  _, below = tf.while_loop(
    lambda m, below: m > 1.5,
    step,
    (last, denominator(last)),
    shape_invariants=(last.shape, x.shape),
  )
  return a * (1.0 - beyond) / (a + 1.0) + quotient(1.0, below)
