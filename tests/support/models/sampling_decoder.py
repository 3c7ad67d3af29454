"""A decoder that writes on from a prompt: a loop of single steps over a cache of keys and values,
each token drawn by jax.random."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.models.entry import Entry, below, random_key
from tests.support.models.libraries import KEY, Function, weights

VOCABULARY, WIDTH, HEADS, LAYERS = 32, 32, 4, 2
PROMPT, LENGTH, END = 4, 12, 0


def _norm(x: Any) -> Any:
  return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def _step(params: Any, cache: Any, token: Any, position: Any) -> tuple[Any, Any]:
  """cache f32[LAYERS,2,b,LENGTH,HEADS,d], token i32[b], position i32[] -> the cache with this
  token's, logits f32[b,VOCABULARY]."""
  x = params["tokens"][token] + params["positions"][position]
  visible = jnp.arange(LENGTH) <= position
  for i, layer in enumerate(params["layers"]):
    q, k, v = (_norm(x) @ layer["qkv"]).reshape(3, -1, HEADS, WIDTH // HEADS)
    cache = lax.dynamic_update_slice(
      cache, jnp.stack([k, v])[None, :, :, None], (i, 0, 0, position, 0, 0)
    )
    keys, values = cache[i]
    scores = jnp.where(visible, jnp.einsum("bhd,bthd->bht", q, keys) / np.sqrt(q.shape[-1]), -1e9)
    attended = jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), values)
    x = x + attended.reshape(x.shape) @ layer["out"]
    x = x + jax.nn.gelu(_norm(x) @ layer["up"]) @ layer["down"]
  return cache, _norm(x) @ params["tokens"].T


def generate(params: Any, prompt: Any, key: Any) -> tuple[Any, Any]:
  """prompt i32[b,PROMPT], key u32[2] -> tokens i32[b,LENGTH], the prompt first, and the log
  probability of what was drawn, f32[b].

  The loop ends early once every row has drawn END.
  """
  b = prompt.shape[0]
  key = jax.random.wrap_key_data(key)

  def unfinished(state: Any) -> Any:
    position, _, _, done, _ = state
    return (position < LENGTH - 1) & ~jnp.all(done)

  def turn(state: Any) -> Any:
    position, tokens, cache, done, total = state
    current = lax.dynamic_index_in_dim(tokens, position, 1, keepdims=False)
    cache, logits = _step(params, cache, current, position)
    drawn = jax.random.categorical(jax.random.fold_in(key, position), logits / 0.8).astype(
      jnp.int32
    )
    likelihood = jnp.take_along_axis(jax.nn.log_softmax(logits), drawn[:, None], 1)[:, 0]
    free = (position + 1 >= PROMPT) & ~done
    following = jnp.where(
      free, drawn, lax.dynamic_index_in_dim(tokens, position + 1, 1, keepdims=False)
    )
    tokens = lax.dynamic_update_slice(tokens, following[:, None], (0, position + 1))
    return (
      position + 1,
      tokens,
      cache,
      done | (free & (drawn == END)),
      total + jnp.where(free, likelihood, 0),
    )

  tokens = jnp.concatenate([prompt, jnp.full((b, LENGTH - PROMPT), END, jnp.int32)], 1)
  cache = jnp.zeros((LAYERS, 2, b, LENGTH, HEADS, WIDTH // HEADS))
  state = (jnp.int32(0), tokens, cache, jnp.zeros(b, bool), jnp.zeros(b))
  _, tokens, _, _, total = lax.while_loop(unfinished, turn, state)
  return tokens, total


def build() -> tuple[Function, Any]:
  keys = iter(jax.random.split(KEY, 2 + 4 * LAYERS))
  layers = [
    {
      "qkv": np.stack([weights(k, WIDTH, WIDTH) for k in jax.random.split(next(keys), 3)]),
      "out": weights(next(keys), WIDTH, WIDTH),
      "up": weights(next(keys), WIDTH, 2 * WIDTH),
      "down": weights(next(keys), 2 * WIDTH, WIDTH),
    }
    for _ in range(LAYERS)
  ]
  tables = {
    "tokens": weights(next(keys), VOCABULARY, WIDTH),
    "positions": weights(next(keys), LENGTH, WIDTH),
  }
  return generate, {**tables, "layers": layers}


ENTRY = Entry(
  "sampling_decoder",
  "plain JAX",
  build,
  {"prompt": f"i32[b,{PROMPT}]", "key": "u32[2]"},
  ["tokens", "log_probability"],
  {"b": (1, 3)},
  draws={"prompt": below(VOCABULARY), "key": random_key},
)
