"""MLP-Mixer: dense layers over the patches and over the channels by turns."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import numpy as np

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_linen


class Mixing(nn.Module):
  """x f32[...,n] -> the same."""

  hidden: int

  @nn.compact
  def __call__(self, x: Any) -> Any:
    return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(self.hidden)(x)))


class Mixer(nn.Module):
  """image f32[b,32,32,3] -> f32[b,10]."""

  @nn.compact
  def __call__(self, image: Any) -> Any:
    x = nn.Conv(32, (8, 8), strides=8, padding="VALID")(image)
    x = x.reshape(x.shape[0], -1, x.shape[-1])
    for _ in range(2):
      x = x + Mixing(32)(nn.LayerNorm()(x).swapaxes(1, 2)).swapaxes(1, 2)
      x = x + Mixing(64)(nn.LayerNorm()(x))
    return nn.Dense(10)(nn.LayerNorm()(x).mean(1))


def build() -> tuple[Function, Any]:
  return of_linen(Mixer(), np.zeros((1, 32, 32, 3), np.float32))


ENTRY = Entry(
  "mlp_mixer", "Flax linen", build, {"image": "f32[b,32,32,3]"}, ["logits"], {"b": (1, 3)}
)
