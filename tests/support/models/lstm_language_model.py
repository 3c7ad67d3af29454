"""A language model of one LSTM: token -> the log probabilities of the next one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from tests.support.models.entry import Entry, below
from tests.support.models.libraries import Function, of_nnx

VOCABULARY, WIDTH = 64, 32


class LanguageModel(nnx.Module):
  """ids i32[b,s] -> f32[b,s,VOCABULARY]."""

  def __init__(self, rngs: nnx.Rngs):
    self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
    self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(WIDTH, WIDTH, rngs=rngs), rngs=rngs)
    self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

  def __call__(self, ids: Any) -> Any:
    zeros = jnp.zeros((ids.shape[0], WIDTH))
    return nnx.log_softmax(self.head(self.lstm(self.embedding(ids), initial_carry=(zeros, zeros))))


def build() -> tuple[Function, Any]:
  return of_nnx(LanguageModel(nnx.Rngs(0)))


ENTRY = Entry(
  "lstm_language_model",
  "Flax nnx",
  build,
  {"ids": "i32[b,s]"},
  ["log_probs"],
  {"b": (1, 3), "s": (5, 9)},
  draws={"ids": below(VOCABULARY)},
)
