"""The sentence encoder all-MiniLM-L6-v2 in plain JAX: a BERT of 6 layers, then the mean over
tokens, scaled to length 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import safetensors.numpy

from jax2tf.examples import minilm_text

HEADS = 12
LAYERS = 6
Params = dict[str, Any]


def load(directory: Path) -> Params:
  """The parameters as a pytree with the names of the checkpoint; kernels are [in, out]."""
  params: Params = {}
  for name, value in safetensors.numpy.load_file(directory / "model.safetensors").items():
    *folders, leaf = name.split(".")
    if "pooler" in folders or leaf == "position_ids":
      continue  # for BERT's pretraining only; sentence embeddings do not use them
    node = params
    for folder in folders:
      node = node.setdefault(folder, {})
    is_kernel = value.ndim == 2 and "embeddings" not in folders
    node["kernel" if is_kernel else leaf] = value.T.copy() if is_kernel else value
  return params


def parameters() -> Params:
  """The published weights."""
  return load(minilm_text.directory())


def encode(params: Params, input_ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
  """input_ids i32[b,s], attention_mask i32[b,s] of 0 and 1 -> f32[b,384], each row of length 1."""
  mask = attention_mask.astype(bool)
  x = _embed(params["embeddings"], input_ids)
  for i in range(LAYERS):
    layer = params["encoder"]["layer"][str(i)]
    x = _layer_norm(
      layer["attention"]["output"]["LayerNorm"], x + _attention(layer["attention"], x, mask)
    )
    x = _layer_norm(layer["output"]["LayerNorm"], x + _mlp(layer, x))
  weights = attention_mask[:, :, None].astype(x.dtype)
  mean = jnp.sum(x * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1e-9)
  return mean / jnp.maximum(jnp.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)


def _embed(p: Params, input_ids: jax.Array) -> jax.Array:
  word, position, kind = (
    p[f"{name}_embeddings"]["weight"] for name in ("word", "position", "token_type")
  )
  return _layer_norm(p["LayerNorm"], word[input_ids] + position[: input_ids.shape[1]] + kind[0])


def _attention(p: Params, x: jax.Array, mask: jax.Array) -> jax.Array:
  b, s, width = x.shape
  query, key, value = (
    _dense(p["self"][name], x).reshape(b, s, HEADS, width // HEADS)
    for name in ("query", "key", "value")
  )
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // HEADS) ** -0.5
  scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(x.dtype).min)
  mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
  return _dense(p["output"]["dense"], mixed.reshape(b, s, width))


def _mlp(p: Params, x: jax.Array) -> jax.Array:
  return _dense(
    p["output"]["dense"], jax.nn.gelu(_dense(p["intermediate"]["dense"], x), approximate=False)
  )


def _dense(p: Params, x: jax.Array) -> jax.Array:
  return x @ p["kernel"] + p["bias"]


def _layer_norm(p: Params, x: jax.Array) -> jax.Array:
  centred = x - jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
  return centred * jax.lax.rsqrt(variance + 1e-12) * p["weight"] + p["bias"]
