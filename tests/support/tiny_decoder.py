"""A decoder of two layers, 59 tokens and a cache of 64 rows, with a cache in several forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.converters import generation

VOCABULARY, WIDTH, HEADS, HEAD, LAYERS, CONTEXT = 59, 16, 2, 8, 2, 64


def params(seed: int = 0) -> dict[str, Any]:
  """Random weights, scaled so that the largest logit is clear."""
  rng = np.random.default_rng(seed)

  def weight(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

  layers = [
    {name: weight(WIDTH, WIDTH) for name in ("q", "k", "v", "o")}
    | {"up": weight(WIDTH, 2 * WIDTH), "down": weight(2 * WIDTH, WIDTH)}
    for _ in range(LAYERS)
  ]
  return {
    "embed": 4 * weight(VOCABULARY, WIDTH),
    "layers": layers,
    "head": weight(WIDTH, VOCABULARY),
  }


def _norm(x: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
  """Rotary positions. x: f32[b,s,heads,head]; positions: i32[b,s]."""
  half = HEAD // 2
  angle = positions[..., None, None] * 100.0 ** (-jnp.arange(half) / half)
  a, b = x[..., :half], x[..., half:]
  return jnp.concatenate(
    [a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1
  )


Write = Callable[[jax.Array, jax.Array], jax.Array]


def body(
  params: Any, tokens: jax.Array, positions: jax.Array, mask: jax.Array, cache: Any, write: Write
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """(logits, rows), with the rows that `write` writes."""
  batch, size = tokens.shape
  x = params["embed"][tokens]
  after = {}
  for i, layer in enumerate(params["layers"]):
    y = _norm(x)
    q, k, v = ((y @ layer[name]).reshape(batch, size, HEADS, HEAD) for name in "qkv")
    keys = after[f"k_{i}"] = write(cache[f"k_{i}"], _rotated(k, positions))
    values = after[f"v_{i}"] = write(cache[f"v_{i}"], v)
    scores = jnp.einsum("bshd,bthd->bhst", _rotated(q, positions), keys) / np.sqrt(HEAD)
    shares = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30), axis=-1)
    x = x + jnp.einsum("bhst,bthd->bshd", shares, values).reshape(x.shape) @ layer["o"]
    x = x + jax.nn.gelu(_norm(x) @ layer["up"]) @ layer["down"]
  return _norm(x) @ params["head"], after


def at(row: jax.Array) -> Write:
  """Writes new rows from this row on."""
  return lambda rows, new: jax.lax.dynamic_update_slice(
    rows, new.astype(rows.dtype), (0, row, 0, 0)
  )


def step(
  params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The step with rows alone, which are written at the positions."""
  return body(params, tokens, positions, mask, cache, at(positions[0, 0]))


def counting_step(
  params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
) -> tuple[jax.Array, Any]:
  """The same with the number of rows so far in the cache, as libraries have it."""
  logits, rows = body(params, tokens, positions, mask, cache["rows"], at(cache["end_index"][0]))
  return logits, {"rows": rows, "end_index": cache["end_index"] + tokens.shape[1]}


def rows(batch: int, length: int) -> dict[str, jax.Array]:
  """An empty cache."""
  return {
    f"{name}_{i}": jnp.zeros((batch, length, HEADS, HEAD)) for i in range(LAYERS) for name in "kv"
  }


def counted(batch: int, length: int) -> dict[str, Any]:
  """An empty cache with the number of rows."""
  return {"rows": rows(batch, length), "end_index": jnp.zeros(batch, jnp.int32)}


def sums_step(
  params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
) -> tuple[jax.Array, Any]:
  """A step that compiles in no time: the logits are products with sums of the rows so far."""
  start = (0, cache["end_index"][0], 0)
  new = {"k": params[tokens], "v": params[::-1][tokens]}
  after = {
    name: jax.lax.dynamic_update_slice(cache[name], rows, start) for name, rows in new.items()
  }
  weighted = (after["k"] + after["v"]) * weights_of_rows(CONTEXT)
  mixed = jnp.einsum("bsc,bcd->bsd", mask.astype(weighted.dtype), weighted)
  return mixed @ params.T, {**after, "end_index": cache["end_index"] + tokens.shape[1]}


def weights_of_rows(count: int) -> jax.Array:
  """f32[count,1]: so that the order of tokens counts."""
  return jnp.sin(2.0 * jnp.arange(count))[:, None]


def sums_decoder(**options: Any) -> generation.Decoder:
  """The decoder of `sums_step`, with the number of rows in its cache."""
  weights = np.random.default_rng(0).standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
  fields: Mapping[str, Any] = {
    "step": sums_step,
    "params": weights,
    "init_cache": lambda batch, length: {
      "k": jnp.zeros((batch, length, WIDTH)),
      "v": jnp.zeros((batch, length, WIDTH)),
      "end_index": jnp.zeros(batch, jnp.int32),
    },
    "context_length": CONTEXT,
    "rules": {"end_index": "start"},
  }
  return generation.Decoder(**{**fields, **options})


def decoder(**options: Any) -> generation.Decoder:
  """The decoder with rows alone; `options` replace fields."""
  fields: Mapping[str, Any] = {
    "step": step,
    "params": params(),
    "init_cache": rows,
    "context_length": CONTEXT,
  }
  return generation.Decoder(**{**fields, **options})


def counting_decoder(**options: Any) -> generation.Decoder:
  """The decoder whose cache holds the number of rows."""
  fields = {"step": counting_step, "init_cache": counted, "rules": {"end_index": "start"}}
  return decoder(**{**fields, **options})
