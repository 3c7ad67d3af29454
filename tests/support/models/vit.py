"""A vision transformer: patches by a strided convolution, a class token, learned positions,
pre-norm blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function, of_nnx

WIDTH, PATCH, PATCHES = 48, 8, 16


class Block(nnx.Module):
  """x f32[b,s,WIDTH] -> the same."""

  def __init__(self, rngs: nnx.Rngs):
    self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
    self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
    self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
    self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

  def __call__(self, x: Any) -> Any:
    x = x + self.attention(self.norms[0](x))
    return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class ViT(nnx.Module):
  """image f32[b,32,32,3] -> f32[b,10]."""

  def __init__(self, rngs: nnx.Rngs):
    self.patches = nnx.Conv(3, WIDTH, (PATCH, PATCH), PATCH, padding="VALID", rngs=rngs)
    self.class_token = nnx.Param(jax.random.normal(KEY, (1, 1, WIDTH)))
    self.positions = nnx.Param(0.02 * jax.random.normal(KEY, (1, PATCHES + 1, WIDTH)))
    self.blocks = nnx.List([Block(rngs) for _ in range(2)])
    self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
    self.head = nnx.Linear(WIDTH, 10, rngs=rngs)

  def __call__(self, image: Any) -> Any:
    x = self.patches(image).reshape(image.shape[0], PATCHES, WIDTH)
    first = jnp.broadcast_to(self.class_token[...], (image.shape[0], 1, WIDTH))
    x = jnp.concatenate([first, x], 1) + self.positions[...]
    for block in self.blocks:
      x = block(x)
    return self.head(self.norm(x[:, 0]))


def build() -> tuple[Function, Any]:
  return of_nnx(ViT(nnx.Rngs(0)))


ENTRY = Entry("vit", "Flax nnx", build, {"image": "f32[b,32,32,3]"}, ["logits"], {"b": (1, 3)})
