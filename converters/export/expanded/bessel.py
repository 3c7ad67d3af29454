"""Modified Bessel functions of the first kind, orders 0 and 1, exponentially scaled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..expansion import expands
from ..special import like

# Two Chebyshev series, in x up to _SPLIT and in 1/x above it, as in Cephes and XLA. Numbers of
# terms: the first ones after which the error is rounding only, against SciPy 1.17.
_SPLIT = 8.0
_TERMS = {tf.float32: (18, 8), tf.float64: (32, 26)}
_POINTS = 4096  # of the trapezoidal rule, which converges exponentially for a periodic function


def _scaled(order: int, x: np.ndarray) -> np.ndarray:
  """x f64[n] -> f64[n], I(x) exp(-x) / x**order by its integral (DLMF 10.32.2)."""
  angles = _midpoints(_POINTS)
  decay = np.exp(-2 * x[:, None] * np.sin(angles / 2) ** 2)
  return np.mean(decay * np.sin(angles) ** (2 * order), axis=-1)


@functools.cache
def _coefficients(order: int, dtype: tf.DType) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """The Chebyshev coefficients of I(x) exp(-x) / x**order for x in 0.._SPLIT, and those of I(x)
  exp(-x) sqrt(x) for 1/x in 0..1/_SPLIT."""

  def near(u: np.ndarray) -> np.ndarray:
    x = (u + 1) * _SPLIT / 2
    return _scaled(order, x)

  def far(u: np.ndarray) -> np.ndarray:
    x = 2 * _SPLIT / (u + 1)
    return _scaled(order, x) * x ** (order + 0.5)

  near_terms, far_terms = _TERMS[dtype]
  return _interpolated(near, near_terms), _interpolated(far, far_terms)


def _interpolated(function: Callable[[np.ndarray], np.ndarray], terms: int) -> tuple[float, ...]:
  """Chebyshev coefficients in -1..1 by a discrete cosine transform."""
  angles = _midpoints(terms)
  coefficients = np.cos(np.outer(np.arange(terms), angles)) @ function(np.cos(angles)) * 2 / terms
  return tuple(map(float, (coefficients[0] / 2, *coefficients[1:])))


def _midpoints(n: int) -> np.ndarray:
  """Those of n parts of 0..pi, in the widest dtype: in f64 the errors of 30 coefficients add up to
  100 roundings."""
  return (np.arange(n) + np.longdouble(0.5)) * np.arccos(np.longdouble(-1)) / n


def _series(coefficients: tuple[float, ...], u: tf.Tensor) -> tf.Tensor:
  """The sum of a Chebyshev series at u in -1..1 by Clenshaw's recurrence."""
  first, *rest = coefficients
  later = latest = tf.zeros_like(u)
  for c in reversed(rest):
    latest, later = like(c, u) + like(2.0, u) * u * latest - later, latest
  return like(first, u) + u * latest - later


@expands("BesselI0e", "BesselI1e")
def _bessel(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...] -> f32[...]."""
  order = 1 if op.type == "BesselI1e" else 0
  dtype = x.dtype if x.dtype in _TERMS else tf.float32
  near_terms, far_terms = _coefficients(order, dtype)
  wide = tf.cast(x, dtype)
  split, size = like(_SPLIT, wide), tf.abs(wide)
  small, large = tf.minimum(size, split), tf.maximum(size, split)
  near = _series(near_terms, small / like(_SPLIT / 2, wide) - like(1.0, wide))
  far = _series(far_terms, like(2 * _SPLIT, wide) / large - like(1.0, wide)) / tf.sqrt(large)
  if order:
    near, far = near * wide, tf.where(wide < 0, -far, far)
  result = tf.where(size <= split, near, far)
  return [tf.cast(result, x.dtype)]
