"""The derivatives of log(gamma), and the Hurwitz zeta function, by which those of higher orders
are."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from ..expansion import expands
from ..special import like, widened
from ._factorials import bernoulli, digamma, same_shape

_TERMS = 10  # of zeta that are added one by one, as in XLA
_CORRECTIONS = 12


@expands("Digamma")
def _digamma(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...] -> f32[...]; NaN at the poles."""
  return [tf.cast(_digamma_everywhere(widened(x)), x.dtype)]


def _digamma_everywhere(x: tf.Tensor) -> tf.Tensor:
  """By reflection below 1/2 (DLMF 5.5.4)."""
  is_left = x < 0.5
  right = digamma(tf.where(is_left, 1.0 - x, x))
  angle = math.pi * (x - tf.round(x))
  left = right - math.pi * tf.cos(angle) / tf.sin(angle)
  is_pole = (x <= 0.0) & tf.equal(x, tf.floor(x))
  return tf.where(is_pole, like(math.nan, x), tf.where(is_left, left, right))


@expands("Zeta")
def _zeta(op: Any, x: tf.Tensor, q: tf.Tensor) -> list[tf.Tensor]:
  """x, q f32[...] -> f32[...], the sum of (q + k)**-x over k >= 0."""
  result = _zeta_everywhere(*same_shape(widened(x), widened(q)))
  return [tf.cast(result, x.dtype)]


def _zeta_everywhere(x: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
  """Ten terms, and Euler and Maclaurin's formula for the rest (DLMF 25.11.5); infinite at x = 1,
  NaN below, and at q <= 0 infinite or NaN as x is even or not."""
  numbers = enumerate(bernoulli(_CORRECTIONS), 1)
  first, *higher = [float(number / math.factorial(2 * k)) for k, number in numbers]
  total = sum((tf.pow(q + float(k), -x) for k in range(1, _TERMS)), tf.pow(q, -x))
  a = q + float(_TERMS)
  power, square = tf.pow(a, -x), tf.square(1.0 / a)
  corrections = tf.zeros_like(x)
  for k, coefficient in reversed([*enumerate(higher, 1)]):
    factor = (x + float(2 * k)) * (x + float(2 * k - 1))
    corrections = factor * (square * (corrections + coefficient))
  rest = a / (x - 1.0) + 0.5 + x / a * (first + corrections)
  infinity, nan = like(math.inf, x), like(math.nan, x)
  is_whole = tf.equal(x, tf.floor(x))
  is_even = is_whole & tf.equal(tf.math.floormod(x, like(2.0, x)), 0.0)
  value = tf.where((x >= 1.0) & (is_whole | (q > 0.0)), total + power * rest, nan)
  is_pole = (q <= 0.0) & tf.equal(q, tf.floor(q))
  value = tf.where(is_pole, tf.where(is_even, infinity, nan), value)
  return tf.where(tf.equal(x, 1.0), infinity, value)


@expands("Polygamma")
def _polygamma(op: Any, n: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
  """n, x f32[...] -> f32[...], derivative n of Digamma; NaN unless n is a natural number."""
  order, wide = same_shape(widened(n), widened(x))
  is_odd = tf.equal(tf.math.floormod(order, like(2.0, order)), 1.0)
  size = tf.exp(tf.math.lgamma(order + 1.0)) * _zeta_everywhere(order + 1.0, wide)
  value = tf.where(is_odd, size, -size)
  value = tf.where(tf.equal(order, 0.0), _digamma_everywhere(wide), value)
  is_order = tf.equal(order, tf.floor(order)) & (order >= 0.0)
  return [tf.cast(tf.where(is_order, value, like(math.nan, value)), x.dtype)]
