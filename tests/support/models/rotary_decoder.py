"""A decoder as in Llama: rotary embeddings, grouped-query attention under a causal mask, RMS norm,
SwiGLU, tied embeddings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tests.support.models.entry import Entry, below
from tests.support.models.libraries import Function, of_nnx

VOCABULARY, WIDTH, HEADS, GROUPS, SIZE = 64, 32, 4, 2, 8


def rotated(x: Any) -> Any:
  """x f32[b,s,h,SIZE] with each pair of components turned by an angle that grows with its
  position."""
  frequencies = 1e4 ** (-jnp.arange(0, SIZE, 2) / SIZE)
  angles = (jnp.arange(x.shape[1])[:, None] * frequencies)[:, None, :]
  left, right = jnp.split(x, 2, -1)
  return jnp.concatenate(
    [
      left * jnp.cos(angles) - right * jnp.sin(angles),
      right * jnp.cos(angles) + left * jnp.sin(angles),
    ],
    -1,
  )


class Layer(nnx.Module):
  """x f32[b,s,WIDTH] -> the same."""

  def __init__(self, rngs: nnx.Rngs):
    self.norms = nnx.List([nnx.RMSNorm(WIDTH, rngs=rngs) for _ in range(2)])
    self.query = nnx.LinearGeneral(WIDTH, (HEADS, SIZE), use_bias=False, rngs=rngs)
    self.key = nnx.LinearGeneral(WIDTH, (GROUPS, SIZE), use_bias=False, rngs=rngs)
    self.value = nnx.LinearGeneral(WIDTH, (GROUPS, SIZE), use_bias=False, rngs=rngs)
    self.out = nnx.LinearGeneral((HEADS, SIZE), WIDTH, axis=(-2, -1), use_bias=False, rngs=rngs)
    self.gate, self.up = (nnx.Linear(WIDTH, 64, use_bias=False, rngs=rngs) for _ in range(2))
    self.down = nnx.Linear(64, WIDTH, use_bias=False, rngs=rngs)

  def __call__(self, x: Any) -> Any:
    y = self.norms[0](x)
    attended = jax.nn.dot_product_attention(
      rotated(self.query(y)), rotated(self.key(y)), self.value(y), is_causal=True
    )
    x = x + self.out(attended)
    y = self.norms[1](x)
    return x + self.down(nnx.silu(self.gate(y)) * self.up(y))


class Decoder(nnx.Module):
  """ids i32[b,s] -> f32[b,s,VOCABULARY]."""

  def __init__(self, rngs: nnx.Rngs):
    self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
    self.layers = nnx.List([Layer(rngs) for _ in range(2)])
    self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

  def __call__(self, ids: Any) -> Any:
    x = self.embedding(ids)
    for layer in self.layers:
      x = layer(x)
    return self.embedding.attend(self.norm(x))


def build() -> tuple[Function, Any]:
  return of_nnx(Decoder(nnx.Rngs(0)))


ENTRY = Entry(
  "rotary_decoder",
  "Flax nnx",
  build,
  {"ids": "i32[b,s]"},
  ["logits"],
  {"b": (1, 3), "s": (5, 9)},
  draws={"ids": below(VOCABULARY)},
)
