"""Sequence to sequence: an LSTM reads tokens, another one writes, each token the likeliest after
the last."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry, below
from tests.support.models.libraries import Function, of_haiku

# Haiku's loops take no symbolic length.
VOCABULARY, WIDTH, READ, WRITTEN = 20, 24, 7, 6


def translate(source: Any) -> tuple[Any, Any]:
  """source i32[b,READ] -> tokens i32[b,WRITTEN] and their logits f32[b,WRITTEN,VOCABULARY]."""
  embed, head = hk.Embed(VOCABULARY, WIDTH), hk.Linear(VOCABULARY)
  reader, writer = hk.LSTM(WIDTH), hk.LSTM(WIDTH)
  b = source.shape[0]
  state, _ = hk.scan(
    lambda state, x: reader(x, state)[::-1], reader.initial_state(b), embed(source).swapaxes(0, 1)
  )

  def write(carry: Any, _: Any) -> Any:
    token, state = carry
    output, state = writer(embed(token), state)
    logits = head(output)
    token = jnp.argmax(logits, -1).astype(jnp.int32)
    return (token, state), (token, logits)

  _, (tokens, logits) = hk.scan(write, (jnp.zeros(b, jnp.int32), state), None, WRITTEN)
  return tokens.swapaxes(0, 1), logits.swapaxes(0, 1)


def build() -> tuple[Function, Any]:
  return of_haiku(translate, np.zeros((1, READ), np.int32))


ENTRY = Entry(
  "seq2seq_lstm",
  "Haiku",
  build,
  {"source": f"i32[b,{READ}]"},
  ["tokens", "logits"],
  {"b": (1, 3)},
  draws={"source": below(VOCABULARY)},
)
