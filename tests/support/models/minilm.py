"""The sentence encoder all-MiniLM-L6-v2 with its published weights; the model is
examples/minilm.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2tf.examples import minilm, minilm_text
from tests.support.models.entry import Entry, below
from tests.support.models.libraries import Function


def build() -> tuple[Function, Any]:
  return minilm.encode, minilm.parameters()


def _mask(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Sentences of different lengths."""
  lengths = rng.integers(1, shape[1], (shape[0], 1), endpoint=True)
  return (np.arange(shape[1]) < lengths).astype(dtype)


ENTRY = Entry(
  "minilm",
  "plain JAX",
  build,
  {"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"},
  ["embedding"],
  {"b": (1, 3), "s": (7, 16)},
  draws={"input_ids": below(30_522), "attention_mask": _mask},
  constraints=[f"s <= {minilm_text.MAX_TOKENS}"],
)
