"""Modified Bessel functions of the first kind, orders 0 and 1, exponentially scaled."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.polynomial import Polynomial, chebyshev

from ..expansion import expands
from ..special import like, polynomial, widened
from ._chebyshev import interpolated, midpoints, series

_POINTS = 4096  # of the trapezoidal rule, which converges exponentially for a periodic function
# What is computed by one form up to a split, and by another one above it. Numbers of terms: the
# first ones after which the error is rounding only, against SciPy 1.17.
_SPLIT, _TERMS = 6.0, (10, 8)
_SPLIT_64, _TERMS_64 = 8.0, (32, 26)


def _scaled(order: int, x: np.ndarray) -> np.ndarray:
  """x f64[n] -> f64[n], I(x) exp(-x) / x**order by its integral (DLMF 10.32.2)."""
  angles = midpoints(_POINTS)
  decay = np.exp(-2 * x[:, None] * np.sin(angles / 2) ** 2)
  return np.mean(decay * np.sin(angles) ** (2 * order), axis=-1)


def _far(order: int, part: np.ndarray, split: float) -> np.ndarray:
  """I(x) exp(-x) sqrt(x) at x = split / part, for parts in 0..1."""
  x = split / part
  return _scaled(order, x) * x ** (order + 0.5)


@functools.cache
def _polynomials(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """The coefficients, that of the highest power first, of I(x) / x**order in (x / _SPLIT)**2, and
  of I(x) exp(-x) sqrt(x) in _SPLIT / x."""

  def near(part: np.ndarray) -> np.ndarray:
    x = _SPLIT * np.sqrt(part)
    return _scaled(order, x) * np.exp(x)

  def powers(function: Any, terms: int) -> tuple[float, ...]:
    of_parts = chebyshev.cheb2poly(interpolated(lambda u: function((u + 1) / 2), terms))
    return tuple(map(float, Polynomial(of_parts)(Polynomial([-1, 2])).coef[::-1]))

  near_terms, far_terms = _TERMS
  return powers(near, near_terms), powers(lambda part: _far(order, part, _SPLIT), far_terms)


@functools.cache
def _series(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """The Chebyshev coefficients of I(x) exp(-x) / x**order for x in 0.._SPLIT_64, and those of I(x)
  exp(-x) sqrt(x) for _SPLIT_64 / x in 0..1."""
  near_terms, far_terms = _TERMS_64
  near = interpolated(lambda u: _scaled(order, (u + 1) * _SPLIT_64 / 2), near_terms)
  return near, interpolated(lambda u: _far(order, (u + 1) / 2, _SPLIT_64), far_terms)


def _single(order: int, small: tf.Tensor, large: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Sizes up to the split and above it, f32[...] -> I(x) exp(-x) / x**order of the small ones, and
  I(x) exp(-x) sqrt(x) of the large ones.

  By polynomials, which take half the ops of Chebyshev series: all terms of the first are positive,
  and the second is nearly constant, so no digits cancel.
  """
  near_terms, far_terms = _polynomials(order)
  split = like(_SPLIT, small)
  part = small / split
  return polynomial(near_terms, part * part) * tf.exp(-small), polynomial(far_terms, split / large)


def _double(order: int, small: tf.Tensor, large: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """As `_single`, for f64[...], by Chebyshev series as in Cephes and XLA."""
  near_terms, far_terms = _series(order)
  one = like(1.0, small)
  near = series(near_terms, small / like(_SPLIT_64 / 2, small) - one)
  return near, series(far_terms, like(2 * _SPLIT_64, small) / large - one)


@expands("BesselI0e", "BesselI1e")
def _bessel(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...] -> f32[...]."""
  order = 1 if op.type == "BesselI1e" else 0
  wide = widened(x)
  limit, form = (_SPLIT_64, _double) if wide.dtype == tf.float64 else (_SPLIT, _single)
  split, size = like(limit, wide), tf.abs(wide)
  small, large = tf.minimum(size, split), tf.maximum(size, split)
  near, far = form(order, small, large)
  far /= tf.sqrt(large)
  if order:
    near, far = near * wide, far * tf.sign(wide)
  return [tf.cast(tf.where(size <= split, near, far), x.dtype)]
