"""An encoder as BERT's in plain JAX: exact GELU, a mask of -inf on padding, group norm, and cumulative sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.entry import Entry, below
from tests.models.libraries import KEY, Function, weights

VOCABULARY, WIDTH, HEADS, GROUPS = 50, 32, 4, 4


def encode(params: Any, ids: Any) -> tuple[Any, Any]:
  """ids i32[b,s], 0 for padding -> f32[b,s,32], the share of real tokens so far f32[b,s]."""
  real = ids != 0
  position = jnp.cumsum(real, -1) - 1
  x = params["embedding"][ids] + params["positions"][jnp.clip(position, 0, 31)]
  for layer in params["layers"]:
    x = _normalized(x + _attention(layer, x, real))
    x = _normalized(x + jax.nn.gelu(x @ layer["wide"], approximate=False) @ layer["narrow"])
  return x, jnp.cumsum(real.astype(jnp.float32), -1) / (1 + jnp.arange(ids.shape[1]))


def _attention(layer: Any, x: Any, real: Any) -> Any:
  b, s, _ = x.shape
  q, k, v = (jnp.reshape(x @ layer[name], (b, s, HEADS, WIDTH // HEADS)) for name in ("q", "k", "v"))
  scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
  # The first token is real, so no row is masked as a whole.
  masked = jnp.where(real[:, None, None, :] | (jnp.arange(s) == 0), scores, -jnp.inf)
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(masked), v).reshape(b, s, WIDTH) @ layer["o"]


def _normalized(x: Any) -> Any:
  groups = x.reshape(*x.shape[:-1], GROUPS, WIDTH // GROUPS)
  mean = groups.mean(-1, keepdims=True)
  return ((groups - mean) * jax.lax.rsqrt(groups.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)


def build() -> tuple[Function, Any]:
  keys = iter(jax.random.split(KEY, 20))
  sizes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"wide": (WIDTH, 2 * WIDTH), "narrow": (2 * WIDTH, WIDTH)}
  layers = [{name: weights(next(keys), *size) for name, size in sizes.items()} for _ in range(2)]
  return encode, {"embedding": weights(next(keys), VOCABULARY, WIDTH), "positions": weights(next(keys), 32, WIDTH), "layers": layers}


ENTRY = Entry(
  "masked_encoder",
  "plain JAX",
  build,
  {"ids": "i32[b,s]"},
  ["encoded", "share"],
  {"b": (1, 3), "s": (5, 9)},
  draws={"ids": below(VOCABULARY)},
)
