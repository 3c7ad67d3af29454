"""Models with many idioms, in plain JAX."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Params = Any


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  return rng.normal(scale=np.prod(shape[:-1]) ** -0.5, size=shape).astype(np.float32)


def _mlp(rng: np.random.Generator) -> tuple[Callable[..., Any], Params, dict[str, np.ndarray]]:
  """Four layers of 512 with LayerNorm and GELU, then softmax of 256."""
  params = [
    {"w": _normal(rng, 512, n), **{name: _normal(rng, n) for name in ("b", "scale", "offset")}}
    for n in (512, 512, 512, 256)
  ]

  def predict(params: Params, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
      x = jax.nn.gelu(x @ layer["w"] + layer["b"], approximate=False)
      centred = x - jnp.mean(x, -1, keepdims=True)
      x = (
        centred * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-6) * layer["scale"] + layer["offset"]
      )
    return jax.nn.softmax(x @ params[-1]["w"] + params[-1]["b"])

  return predict, params, {"x": rng.normal(size=(32, 512)).astype(np.float32)}


def _convnet(rng: np.random.Generator) -> tuple[Callable[..., Any], Params, dict[str, np.ndarray]]:
  """Four convolutions with BatchNorm in inference and ReLU or hard swish, a mean, and softmax of
  10."""
  channels = (3, 32, 32, 64, 64)
  layers = []
  for before, after in itertools.pairwise(channels):
    statistics = {
      "scale": rng.uniform(0.5, 1.5, after),
      "offset": rng.normal(size=after),
      "mean": rng.normal(size=after),
    }
    layers.append(
      {"w": _normal(rng, 3, 3, before, after), "var": rng.uniform(0.5, 1.5, after), **statistics}
    )
  params = jax.tree.map(np.float32, {"layers": layers, "dense": _normal(rng, 64, 10)})

  def predict(params: Params, x: jax.Array) -> jax.Array:
    for k, p in enumerate(params["layers"]):
      x = lax.conv_general_dilated(
        x, p["w"], (1 + k % 2,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
      )
      x = (x - p["mean"]) * (lax.rsqrt(p["var"] + 1e-5) * p["scale"]) + p["offset"]
      x = jax.nn.relu(x) if k % 2 else jax.nn.hard_swish(x)
    return jax.nn.softmax(jnp.mean(x, (1, 2)) @ params["dense"])

  return predict, params, {"x": rng.normal(size=(4, 32, 32, 3)).astype(np.float32)}


def _minilm(rng: np.random.Generator) -> tuple[Callable[..., Any], Params, dict[str, np.ndarray]]:
  """all-MiniLM-L6-v2, 4 sentences of 32 tokens."""
  from jax2tf.examples import minilm  # noqa: PLC0415  (its weights are a package that not everybody has)

  ids = rng.integers(1000, 20000, (4, 32)).astype(np.int32)
  mask = (np.arange(32) < np.array([[32], [20], [9], [27]])).astype(np.int32)
  return minilm.encode, minilm.parameters(), {"input_ids": ids * mask, "attention_mask": mask}


MODELS = {"MLP": _mlp, "convnet": _convnet, "MiniLM": _minilm}
