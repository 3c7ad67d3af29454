"""Keyword spotting: separable convolutions in time over a spectrogram of any length, and attention
pooling."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function, of_equinox

BANDS, WIDTH, WORDS = 20, 32, 12


class Spotter(eqx.Module):
  """spectrogram f32[t,BANDS] -> f32[WORDS], log probabilities."""

  first: eqx.nn.Conv1d
  depthwise: eqx.nn.Conv1d
  pointwise: eqx.nn.Conv1d
  norm: eqx.nn.GroupNorm
  attention: eqx.nn.Linear
  head: eqx.nn.Linear

  def __init__(self, key: Any):
    keys = jax.random.split(key, 5)
    self.first = eqx.nn.Conv1d(BANDS, WIDTH, 3, stride=2, padding=1, key=keys[0])
    self.depthwise = eqx.nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH, key=keys[1])
    self.pointwise = eqx.nn.Conv1d(WIDTH, WIDTH, 1, key=keys[2])
    self.norm = eqx.nn.GroupNorm(4, WIDTH)
    self.attention = eqx.nn.Linear(WIDTH, "scalar", key=keys[3])
    self.head = eqx.nn.Linear(WIDTH, WORDS, key=keys[4])

  def __call__(self, spectrogram: Any) -> Any:
    x = jax.nn.relu(self.first(jnp.log1p(jnp.square(spectrogram)).T))
    x = x + jax.nn.relu(self.norm(self.pointwise(self.depthwise(x))))
    shares = jax.nn.softmax(jax.vmap(self.attention, 1)(x))
    return jax.nn.log_softmax(self.head(x @ shares))


def build() -> tuple[Function, Any]:
  return of_equinox(Spotter(KEY))


ENTRY = Entry(
  "keyword_spotting",
  "Equinox",
  build,
  {"spectrogram": f"f32[b,t,{BANDS}]"},
  ["log_probs"],
  {"b": (1, 3), "t": (25, 40)},
)
