"""Chooses the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sampling:
  """How tokens are chosen.

  Attributes:
    temperature: divides the logits. 0 takes the most probable token, the first of equals.
    top_k: only so many of the most probable tokens may be chosen; 0 for all.
    top_p: only the fewest most probable tokens whose probabilities add up to it may be chosen.
    seed: of the random numbers; None for another one in each request.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int | None = None


class Sampler:
  """Chooses tokens one after another. The same seed and the same logits give the same tokens."""

  def __init__(self, sampling: Sampling):
    self._sampling = sampling
    self._random = np.random.default_rng(sampling.seed)

  def __call__(self, logits: np.ndarray) -> int:
    """The next token.

    Args:
      logits: f[V].

    Raises:
      ValueError: no logit is a finite number, or one is NaN or +inf.
    """
    if np.isnan(logits).any() or not np.isfinite(highest := logits.max()):
      raise ValueError("the model's logits are not numbers")
    if self._sampling.temperature == 0:
      return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # to -inf, by a temperature of almost 0
      scaled = (logits.astype(np.float64) - highest) / self._sampling.temperature
    weights = self._kept(np.exp(scaled))
    # one number for each token, also where one token is left: the same seed draws the same numbers
    threshold = self._random.random() * weights.sum()
    # rounding may put the threshold at the sum itself; weights of 0 are never chosen
    index = int(np.searchsorted(np.cumsum(weights), threshold, side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))

  def _kept(self, weights: np.ndarray) -> np.ndarray:
    """f64[V]: the weights, with 0 for tokens that may not be chosen."""
    top_k, top_p = self._sampling.top_k, self._sampling.top_p
    if not 0 < top_k < len(weights) and top_p >= 1:
      return weights
    order = np.argsort(-weights, kind="stable")  # the first of equals stays
    if top_k:
      order = order[:top_k]
    if top_p < 1:
      before = np.cumsum(weights[order]) - weights[order]
      allowed = np.count_nonzero(before < top_p * weights[order].sum())
      order = order[: max(allowed, 1)]
    kept = np.zeros_like(weights)
    kept[order] = weights[order]
    return kept
