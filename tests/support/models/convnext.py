"""ConvNeXt: depthwise convolutions of 7 x 7, layer norm over channels, a GELU between two dense
layers, a learned scale."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function, of_equinox


class Block(eqx.Module):
  """x f32[c,h,w] -> the same."""

  depthwise: eqx.nn.Conv2d
  norm: eqx.nn.LayerNorm
  up: eqx.nn.Linear
  down: eqx.nn.Linear
  scale: jax.Array

  def __init__(self, channels: int, key: Any):
    keys = jax.random.split(key, 3)
    self.depthwise = eqx.nn.Conv2d(channels, channels, 7, padding=3, groups=channels, key=keys[0])
    self.norm = eqx.nn.LayerNorm(channels)
    self.up = eqx.nn.Linear(channels, 4 * channels, key=keys[1])
    self.down = eqx.nn.Linear(4 * channels, channels, key=keys[2])
    self.scale = jnp.full(channels, 0.1)

  def __call__(self, x: Any) -> Any:
    def of_pixel(y: Any) -> Any:
      return self.scale * self.down(jax.nn.gelu(self.up(self.norm(y)), approximate=False))

    return x + jax.vmap(jax.vmap(of_pixel, 1, 1), 2, 2)(self.depthwise(x))


class ConvNeXt(eqx.Module):
  """image f32[3,32,32] -> f32[10]."""

  stem: eqx.nn.Conv2d
  blocks: list[Block]
  downsample: eqx.nn.Conv2d
  head: eqx.nn.Linear

  def __init__(self, key: Any):
    keys = jax.random.split(key, 5)
    self.stem = eqx.nn.Conv2d(3, 16, 4, stride=4, key=keys[0])
    self.blocks = [Block(16, keys[1]), Block(32, keys[2])]
    self.downsample = eqx.nn.Conv2d(16, 32, 2, stride=2, key=keys[3])
    self.head = eqx.nn.Linear(32, 10, key=keys[4])

  def __call__(self, image: Any) -> Any:
    x = self.downsample(self.blocks[0](self.stem(image)))
    return self.head(self.blocks[1](x).mean((1, 2)))


def build() -> tuple[Function, Any]:
  return of_equinox(ConvNeXt(KEY))


ENTRY = Entry("convnext", "Equinox", build, {"image": "f32[b,3,32,32]"}, ["logits"], {"b": (1, 3)})
