"""A U-Net as PyTorch's are written: channels first, down by maxima of windows, up by transposed convolutions with explicit padding."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tests.models.entry import Entry
from tests.models.libraries import KEY, Function, of_equinox


class TransposedUNet(eqx.Module):
  """image f32[3,32,32] -> f32[2,32,32]."""

  down: list[eqx.nn.Conv2d]
  up: list[eqx.nn.ConvTranspose2d]
  pool: eqx.nn.MaxPool2d
  last: eqx.nn.Conv2d

  def __init__(self, key: Any):
    keys = jax.random.split(key, 6)
    self.down = [eqx.nn.Conv2d(a, b, 3, padding=1, key=k) for (a, b), k in zip(((3, 8), (8, 16), (16, 32)), keys[:3], strict=True)]
    self.up = [
      eqx.nn.ConvTranspose2d(a, b, 3, stride=2, padding=1, output_padding=1, key=k)
      for (a, b), k in zip(((32, 16), (32, 8)), keys[3:5], strict=True)
    ]
    self.pool = eqx.nn.MaxPool2d(3, stride=2, padding=1)
    self.last = eqx.nn.Conv2d(16, 2, 1, key=keys[5])

  def __call__(self, x: Any) -> Any:
    skips = []
    for conv in self.down[:-1]:
      x = jax.nn.leaky_relu(conv(x))
      skips.append(x)
      x = self.pool(x)
    x = jax.nn.leaky_relu(self.down[-1](x))
    for conv, skip in zip(self.up, reversed(skips), strict=True):
      x = jnp.concatenate([jax.nn.leaky_relu(conv(x)), skip])
    return self.last(x)


def build() -> tuple[Function, Any]:
  return of_equinox(TransposedUNet(KEY))


ENTRY = Entry("transposed_unet", "Equinox", build, {"image": "f32[b,3,32,32]"}, ["scores"], {"b": (1, 3)})
