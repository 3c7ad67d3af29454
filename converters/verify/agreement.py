"""How well a quantised model agrees with the reference: cosine, variation, and the first class of
scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

_CLOSE_TO_ONE = 1e-3  # of the sum of probabilities
_STILL = 1e-6  # of the length of the outputs, below which the reference does not vary


@dataclass(frozen=True)
class Agreement:
  """The agreement of one output with the reference's over several samples.

  Attributes:
    cosine: of all elements, as two vectors.
    variation: the same after the reference's mean of each feature, along the last axis, is taken
      from both. A model that always answers the mean has a high cosine, and a variation of about 0.
      None if the reference does not vary.
    top_1: the share of rows with the reference's largest element along the last axis; of an integer
      output, of equal elements. None if the output is not scores.
    rows: the number of rows of `top_1`.
  """

  cosine: float
  variation: float | None = None
  top_1: float | None = None
  rows: int = 0

  @classmethod
  def of(
    cls, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], scores: bool | None
  ) -> Agreement:
    """From arrays of equal shapes, one for each sample. `scores`: None to decide by the reference;
    see `are_probabilities`."""
    x, y = (
      np.concatenate([np.asarray(a).ravel() for a in arrays]) for arrays in (actual, expected)
    )
    if not jnp.issubdtype(expected[0].dtype, np.inexact):
      return cls(cosine(x, y), None, float(np.mean(x == y)) if x.size else None, x.size)
    x, y = (_features(arrays) for arrays in (actual, expected))
    mean = y.mean(0) if len(y) else 0.0
    still = np.linalg.norm(y - mean) <= _STILL * np.linalg.norm(y)
    variation = None if still or len(y) < 2 else cosine(x - mean, y - mean)
    chosen = are_probabilities(expected) if scores is None else scores
    if not (chosen and y.shape[-1] > 1 and len(y)):
      return cls(cosine(x, y), variation)
    return cls(cosine(x, y), variation, float(np.mean(x.argmax(-1) == y.argmax(-1))), len(y))

  def problem(self, least_cosine: float, least_top_1: float) -> str:
    """Why it is too little; empty if it is enough."""
    if not self.cosine >= least_cosine:
      return f"the cosine with the reference is {self.cosine:.6f}, less than {least_cosine}"
    least = least_variation(least_cosine)
    if self.variation is not None and least > 0 and not self.variation >= least:
      return (
        f"the outputs vary otherwise than the reference's: a cosine of {self.variation:.4f} "
        f"without their mean, less than {least:.4g}"
      )
    if self.top_1 is not None and round(self.top_1 * self.rows) < math.floor(
      least_top_1 * self.rows
    ):
      return (
        f"{self.top_1:.1%} of {self.rows} rows have the reference's first class, less than "
        f"least_top_1 = {least_top_1}"
      )
    return ""

  def text(self) -> str:
    """In a few words."""
    top_1 = f", top-1 {self.top_1:.1%} of {self.rows}" if self.top_1 is not None else ""
    return f"cosine {self.cosine:.4f}{top_1}"


def least_variation(least_cosine: float) -> float:
  """The least cosine without the mean. It is smaller than that with the mean, for which a large
  mean hides errors."""
  return max(0.0, 1 - 10 * (1 - least_cosine))


def are_probabilities(arrays: Sequence[np.ndarray]) -> bool:
  """Whether the elements along the last axis of each array are at least 0 and have the sum 1."""
  return all(
    array.ndim > 0
    and array.shape[-1] > 1
    and bool((array >= 0).all() and (np.abs(array.sum(-1) - 1) < _CLOSE_TO_ONE).all())
    for array in (np.asarray(a).astype(np.float64) for a in arrays)
  )


def _features(arrays: Sequence[Any]) -> np.ndarray:
  """float64[rows, features], the last axis of all samples; of scalars one feature. Values that are
  not finite are 0."""
  wide = [np.asarray(a).astype(np.float64) for a in arrays]
  same = len({a.shape[-1:] for a in wide}) == 1
  rows = np.concatenate([a.reshape(-1, a.shape[-1] if same and a.ndim else 1) for a in wide])
  return np.where(np.isfinite(rows), rows, 0.0)


def cosine(x: Any, y: Any) -> float:
  """The cosine of two arrays as vectors; 1 if both are zero, or empty."""
  x, y = (np.asarray(a).astype(np.float64).ravel() for a in (x, y))
  both = np.isfinite(x) & np.isfinite(y)
  x, y = x[both], y[both]
  lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
  return float(x @ y) / lengths if lengths else float(not (x.any() or y.any()))
