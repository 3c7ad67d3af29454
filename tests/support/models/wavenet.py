"""WaveNet: causal convolutions whose dilation doubles, gated activations, skip connections."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_haiku

CHANNELS, LEVELS = 16, 32


def wavenet(wave: Any) -> Any:
  """wave f32[b,t,1] -> f32[b,t,LEVELS], the log probabilities of the next sample."""

  def causal(x: Any, size: int, dilation: int) -> Any:
    return hk.Conv1D(2 * CHANNELS, size, rate=dilation, padding=hk.pad.causal)(x)

  x, skips = hk.Linear(CHANNELS)(wave), []
  for dilation in (1, 2, 4, 8):
    value, gate = jnp.split(causal(x, 2, dilation), 2, -1)
    y = jnp.tanh(value) * jax.nn.sigmoid(gate)
    skips.append(hk.Linear(CHANNELS)(y))
    x = x + hk.Linear(CHANNELS)(y)
  return jax.nn.log_softmax(hk.Linear(LEVELS)(jax.nn.relu(sum(skips))))


def build() -> tuple[Function, Any]:
  return of_haiku(wavenet, np.zeros((1, 20, 1), np.float32))


ENTRY = Entry(
  "wavenet", "Haiku", build, {"wave": "f32[b,t,1]"}, ["log_probs"], {"b": (1, 3), "t": (20, 33)}
)
