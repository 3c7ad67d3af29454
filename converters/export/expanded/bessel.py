"""Modified Bessel functions of the first kind, orders 0 and 1, exponentially scaled."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from ..expansion import expands
from ..special import like, widened
from ._chebyshev import interpolated, midpoints, series

# Two Chebyshev series, in x up to _SPLIT and in 1/x above it, as in Cephes and XLA. Numbers of
# terms: the first ones after which the error is rounding only, against SciPy 1.17.
_SPLIT = 8.0
_TERMS = {tf.float32: (18, 8), tf.float64: (32, 26)}
_POINTS = 4096  # of the trapezoidal rule, which converges exponentially for a periodic function


def _scaled(order: int, x: np.ndarray) -> np.ndarray:
  """x f64[n] -> f64[n], I(x) exp(-x) / x**order by its integral (DLMF 10.32.2)."""
  angles = midpoints(_POINTS)
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
  return interpolated(near, near_terms), interpolated(far, far_terms)


@expands("BesselI0e", "BesselI1e")
def _bessel(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """x f32[...] -> f32[...]."""
  order = 1 if op.type == "BesselI1e" else 0
  wide = widened(x)
  near_terms, far_terms = _coefficients(order, wide.dtype)
  split, size = like(_SPLIT, wide), tf.abs(wide)
  small, large = tf.minimum(size, split), tf.maximum(size, split)
  near = series(near_terms, small / like(_SPLIT / 2, wide) - like(1.0, wide))
  far = series(far_terms, like(2 * _SPLIT, wide) / large - like(1.0, wide)) / tf.sqrt(large)
  if order:
    near, far = near * wide, far * tf.sign(wide)
  result = tf.where(size <= split, near, far)
  return [tf.cast(result, x.dtype)]
