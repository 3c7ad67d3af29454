"""A bidirectional LSTM over long sequences, one of which is read backwards, with a mask of padding."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from tests.models.entry import Entry
from tests.models.libraries import Function, of_linen

LENGTH, FEATURES = 60, 8


class Tagger(nn.Module):
  """x f32[b,60,8] -> log probabilities f32[b,60,5]; rows of zeros are padding."""

  @nn.compact
  def __call__(self, x: Any) -> Any:
    forward, backward = (nn.RNN(nn.OptimizedLSTMCell(12), reverse=reverse, keep_order=True) for reverse in (False, True))
    both = jnp.concatenate([forward(x), backward(x)], -1)
    scores = nn.Dense(5)(jnp.where(jnp.any(x != 0, -1, keepdims=True), both, 0))
    return nn.log_softmax(scores)


def build() -> tuple[Function, Any]:
  return of_linen(Tagger(), np.zeros((1, LENGTH, FEATURES), np.float32))


ENTRY = Entry("bidirectional_lstm", "Flax linen", build, {"x": f"f32[b,{LENGTH},{FEATURES}]"}, ["log_probs"], {"b": (1, 3)})
