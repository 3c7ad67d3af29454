"""A small transformer decoder in plain JAX with a key-value cache: prefill, decode, sampling.

The layers are those of GPT-2 with rotary positions (https://arxiv.org/abs/2104.09864). Each slot of
the cache holds one text.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

VOCABULARY, WIDTH, HEADS, LAYERS = 1024, 128, 4, 4
HEAD = WIDTH // HEADS
LENGTH = 1024  # the capacity of a slot in tokens
TOP_K = 20
Tree = dict[str, Any]


def init(seed: int) -> Tree:
  """Initial parameters."""
  rng = np.random.default_rng(seed)

  def matrix(fan_in: int, *shape: int) -> np.ndarray:
    return (rng.standard_normal((fan_in, *shape)) / np.sqrt(fan_in)).astype(np.float32)

  def layer() -> Tree:
    return {
      "qkv": matrix(WIDTH, 3, HEADS, HEAD),
      "out": matrix(WIDTH, WIDTH),
      "up": matrix(WIDTH, 4 * WIDTH),
      "down": matrix(4 * WIDTH, WIDTH),
      "scales": np.ones((2, WIDTH), np.float32),
    }

  return {
    "tokens": matrix(WIDTH, VOCABULARY).T.copy(),
    "layers": [layer() for _ in range(LAYERS)],
    "scale": np.ones(WIDTH, np.float32),
  }


def empty_cache(slots: int, length: int = LENGTH) -> Tree:
  """An empty cache: keys and values f32[slots,length,h,d] of each layer, and the number of tokens
  in each slot, i32[slots]."""
  layers = [
    {name: np.zeros((slots, length, HEADS, HEAD), np.float32) for name in ("keys", "values")}
    for _ in range(LAYERS)
  ]
  return {"layers": layers, "lengths": np.zeros(slots, np.int32)}


def logits(params: Tree, tokens: jax.Array) -> jax.Array:
  """tokens i32[b,s] -> f32[b,s,v], without a cache: for training, and as the reference for the
  cache."""
  positions = jnp.arange(tokens.shape[1])[None]
  seen = positions[:, None, :] <= positions[:, :, None]
  x = params["tokens"][tokens]
  for layer in params["layers"]:
    query, key, value = _qkv(layer, x, positions)
    x = _mlp(layer, x + _attend(query, key, value, seen) @ layer["out"])
  return _head(params, x)


def prefill(
  params: Tree, cache: Tree, slots: jax.Array, tokens: jax.Array, lengths: jax.Array
) -> tuple[Tree, jax.Array]:
  """Reads texts into empty slots: slots i32[b], tokens i32[b,s], lengths i32[b] <= s -> (cache,
  logits of the next tokens f32[b,v])."""
  positions = jnp.arange(tokens.shape[1])[None]
  seen = positions[:, None, :] <= positions[:, :, None]
  x, layers = params["tokens"][tokens], []
  for layer, kept in zip(params["layers"], cache["layers"], strict=True):
    query, key, value = _qkv(layer, x, positions)
    layers.append(
      {
        "keys": kept["keys"].at[slots[:, None], positions].set(key),
        "values": kept["values"].at[slots[:, None], positions].set(value),
      }
    )
    x = _mlp(layer, x + _attend(query, key, value, seen) @ layer["out"])
  last = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)
  return {"layers": layers, "lengths": cache["lengths"].at[slots].set(lengths)}, _head(
    params, last
  )[:, 0]


def decode(
  params: Tree, cache: Tree, slots: jax.Array, tokens: jax.Array
) -> tuple[Tree, jax.Array]:
  """Appends a token to each slot: slots i32[b], tokens i32[b] -> (cache, logits of the next tokens
  f32[b,v])."""
  position = cache["lengths"][slots]
  seen = jnp.arange(cache["layers"][0]["keys"].shape[1])[None, None] <= position[:, None, None]
  x, layers = params["tokens"][tokens][:, None], []
  for layer, kept in zip(params["layers"], cache["layers"], strict=True):
    query, key, value = _qkv(layer, x, position[:, None])
    keys = kept["keys"].at[slots, position].set(key[:, 0])
    values = kept["values"].at[slots, position].set(value[:, 0])
    layers.append({"keys": keys, "values": values})
    x = _mlp(layer, x + _attend(query, keys[slots], values[slots], seen) @ layer["out"])
  return {"layers": layers, "lengths": cache["lengths"].at[slots].add(1)}, _head(params, x)[:, 0]


def sample(
  logits: jax.Array, seeds: jax.Array, positions: jax.Array, temperature: jax.Array
) -> jax.Array:
  """Samples from the TOP_K most likely tokens: logits f32[b,v], seeds i32[b], positions i32[b],
  temperature f32[] -> i32[b].

  The random key depends only on (seed, position), so a text is independent of its batch.
  Temperature 0 takes the most likely token.
  """

  def of_row(logits: jax.Array, seed: jax.Array, position: jax.Array) -> jax.Array:
    values, tokens = jax.lax.top_k(logits, TOP_K)
    drawn = jax.random.categorical(
      jax.random.fold_in(jax.random.key(seed), position), values / jnp.maximum(temperature, 1e-3)
    )
    return tokens[jnp.where(temperature > 0, drawn, 0)]

  return jax.vmap(of_row)(logits, seeds, positions)


def generate(
  params: Tree,
  tokens: jax.Array,
  lengths: jax.Array,
  seeds: jax.Array,
  temperature: jax.Array,
  count: jax.Array,
  room: int = 512,
) -> jax.Array:
  """Whole texts in one call: tokens i32[b,s], lengths i32[b], seeds i32[b], count i32[] <= room ->
  i32[b,room], `count` of them set."""
  b, s = tokens.shape
  slots = jnp.arange(b)
  layer = {name: jnp.zeros((b, s + room, HEADS, HEAD)) for name in ("keys", "values")}
  cache: Tree = {"layers": [layer] * LAYERS, "lengths": jnp.zeros(b, jnp.int32)}
  cache, scores = prefill(params, cache, slots, tokens, lengths)
  token = sample(scores, seeds, lengths, temperature)

  def step(i: jax.Array, carry: Any) -> Any:
    cache, token, made = carry
    made = made.at[:, i].set(token)
    cache, scores = decode(params, cache, slots, token)
    return cache, sample(scores, seeds, cache["lengths"], temperature), made

  *_, made = jax.lax.fori_loop(
    0, jnp.minimum(count, room), step, (cache, token, jnp.zeros((b, room), jnp.int32))
  )
  return made


def _qkv(p: Tree, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """x f32[b,s,w] -> queries and keys rotated by their positions, and values; each f32[b,s,h,d]."""
  query, key, value = jnp.moveaxis(
    jnp.einsum("bsw,wnhd->bsnhd", _norm(x, p["scales"][0]), p["qkv"]), 2, 0
  )
  angles = positions[..., None] * jnp.exp2(-jnp.arange(HEAD // 2) * (16 / HEAD))
  cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]

  def turn(x: jax.Array) -> jax.Array:
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

  return turn(query), turn(key), value


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, seen: jax.Array) -> jax.Array:
  """query f32[b,q,h,d], key and value f32[b,k,h,d], seen bool[1 or b,q,k] -> f32[b,q,h*d]."""
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * HEAD**-0.5
  weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf))
  mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
  return mixed.reshape(*mixed.shape[:2], WIDTH)


def _mlp(p: Tree, x: jax.Array) -> jax.Array:
  return x + jax.nn.gelu(_norm(x, p["scales"][1]) @ p["up"]) @ p["down"]


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def _head(params: Tree, x: jax.Array) -> jax.Array:
  return _norm(x, params["scale"]) @ params["tokens"].T
