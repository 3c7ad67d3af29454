"""Chebyshev series, interpolated once during the export."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ..special import like


def interpolated(function: Callable[[np.ndarray], np.ndarray], terms: int) -> tuple[float, ...]:
  """The coefficients of a function in -1..1, by a discrete cosine transform."""
  angles = midpoints(terms)
  coefficients = np.cos(np.outer(np.arange(terms), angles)) @ function(np.cos(angles)) * 2 / terms
  return tuple(map(float, (coefficients[0] / 2, *coefficients[1:])))


def midpoints(n: int) -> np.ndarray:
  """Those of n parts of 0..pi, in the widest dtype: in f64 the errors of 30 coefficients add up to
  100 roundings."""
  return (np.arange(n) + np.longdouble(0.5)) * np.arccos(np.longdouble(-1)) / n


def series(coefficients: tuple[float, ...], u: tf.Tensor) -> tf.Tensor:
  """The sum of a Chebyshev series at u in -1..1 by Clenshaw's recurrence."""
  first, *rest = coefficients
  later = latest = tf.zeros_like(u)
  for c in reversed(rest):
    latest, later = like(c, u) + like(2.0, u) * u * latest - later, latest
  return like(first, u) + u * latest - later
