"""Small decoders of libraries, with random weights: two layers, 300 tokens, a cache of 64 rows.

The models are the libraries' own, of small sizes. Attention that keeps its cache itself is in
models of our own, of Flax and Equinox.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.converters import generation
from tests.support import tiny_decoder

VOCABULARY, CONTEXT, WIDTH, LAYERS = 300, 64, 64, 2


def decoder(name: str, **fields: Any) -> generation.Decoder:
  """The decoder, with noise on all parameters, so that norms and biases matter."""
  made = MODELS[name][1](fields)
  rng = np.random.default_rng(1)

  def noisy(array: Any) -> Any:
    if not jnp.issubdtype(array.dtype, jnp.floating):
      return array
    noise = 0.02 * rng.standard_normal(array.shape)
    return np.asarray(array + noise, array.dtype)

  return dataclasses.replace(made, params=jax.tree.map(noisy, made.params))


def _plain(fields: dict[str, Any]) -> generation.Decoder:
  return tiny_decoder.decoder(**fields)


def _counting(fields: dict[str, Any]) -> generation.Decoder:
  return tiny_decoder.counting_decoder(**fields)


def _linen(fields: dict[str, Any]) -> generation.Decoder:
  from flax import linen  # noqa: PLC0415

  class Net(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
      x = 4 * linen.Embed(VOCABULARY, WIDTH)(tokens)
      for _ in range(LAYERS):
        y = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(num_heads=4, decode=True)(y)
        x = x + linen.Dense(WIDTH)(linen.gelu(linen.Dense(2 * WIDTH)(linen.LayerNorm()(x))))
      return linen.Dense(VOCABULARY)(x)

  net = Net()
  params = net.init(jax.random.key(0), jnp.zeros((1, CONTEXT), jnp.int32))["params"]
  return generation.from_flax_linen(net, params, context_length=CONTEXT, **fields)


def _nnx(fields: dict[str, Any]) -> generation.Decoder:
  from flax import nnx  # noqa: PLC0415

  class Net(nnx.Module):
    def __init__(self, rngs: Any):
      self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
      self.attend = nnx.List(
        nnx.MultiHeadAttention(4, WIDTH, decode=True, rngs=rngs) for _ in range(LAYERS)
      )
      self.norms = nnx.List(nnx.RMSNorm(WIDTH, rngs=rngs) for _ in range(LAYERS))
      self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
      x = 4 * self.embed(tokens)
      for attend, norm in zip(self.attend, self.norms, strict=True):
        x = x + attend(norm(x))
      return self.head(x)

  return generation.from_flax_nnx(Net(nnx.Rngs(0)), context_length=CONTEXT, **fields)


def _equinox(fields: dict[str, Any]) -> generation.Decoder:
  import equinox as eqx  # noqa: PLC0415

  class Layer(eqx.Module):
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    mlp: eqx.nn.MLP
    norm: eqx.nn.RMSNorm

  class Net(eqx.Module):
    embed: eqx.nn.Embedding
    layers: list[Layer]

    def __call__(self, tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
      """tokens, positions i32[1,s], cache [{"k", "v"}] f32[1,C,width]."""
      x = 4 * jax.vmap(self.embed)(tokens[0])
      after = []
      for layer, rows in zip(self.layers, cache, strict=True):
        y = jax.vmap(layer.norm)(x)
        new = {"k": jax.vmap(layer.key)(y), "v": jax.vmap(layer.value)(y)}
        written = {
          name: jax.lax.dynamic_update_slice(rows[name], new[name][None], (0, positions[0, 0], 0))
          for name in rows
        }
        after.append(written)
        scores = jax.vmap(layer.query)(y) @ written["k"][0].T / jnp.sqrt(WIDTH)
        x = x + jax.nn.softmax(jnp.where(mask[0], scores, -jnp.inf)) @ written["v"][0]
        x = x + jax.vmap(layer.mlp)(x)
      return (x @ self.embed.weight.T)[None], after

  keys = iter(jax.random.split(jax.random.key(0), 20))

  def linear() -> eqx.nn.Linear:
    return eqx.nn.Linear(WIDTH, WIDTH, key=next(keys))

  def layer() -> Layer:
    mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, key=next(keys))
    return Layer(linear(), linear(), linear(), mlp, eqx.nn.RMSNorm(WIDTH))

  embedding = eqx.nn.Embedding(VOCABULARY, WIDTH, key=next(keys))
  net = Net(embedding, [layer() for _ in range(LAYERS)])

  def init_cache(batch: int, length: int) -> Any:
    return [{name: jnp.zeros((batch, length, WIDTH)) for name in "kv"} for _ in range(LAYERS)]

  return generation.from_equinox(net, init_cache=init_cache, context_length=CONTEXT, **fields)


def _gemma(fields: dict[str, Any]) -> generation.Decoder:
  from gemma import gm  # noqa: PLC0415
  from gemma.gm.nn import _modules  # noqa: PLC0415

  kinds = _modules.AttentionType
  config = dataclasses.replace(
    gm.nn.Gemma3_270M().config,
    num_embed=VOCABULARY,
    embed_dim=WIDTH,
    hidden_dim=2 * WIDTH,
    num_heads=4,
    head_dim=16,
    num_kv_heads=1,
    sliding_window_size=8,
    attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL),
    vision_encoder=None,
  )
  net = type(gm.nn.Gemma3_270M())(config=config, tokens="x", dtype=jnp.float32)
  params = net.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
  return generation.from_gemma(net, params, context_length=CONTEXT, **fields)


# Of Qwen 3 and Llama 3 in Tunix and in Bonsai.
_SIZES = {
  "num_layers": LAYERS,
  "vocab_size": VOCABULARY,
  "num_heads": 4,
  "head_dim": 16,
  "num_kv_heads": 2,
  "rope_theta": 10000,
  "norm_eps": 1e-6,
}


def _tunix_gemma3(fields: dict[str, Any]) -> generation.Decoder:
  from flax import nnx  # noqa: PLC0415
  from tunix.models.gemma3 import model  # noqa: PLC0415

  config = model.ModelConfig(
    num_layers=LAYERS,
    num_embed=VOCABULARY,
    embed_dim=WIDTH,
    hidden_dim=2 * WIDTH,
    num_heads=4,
    head_dim=16,
    num_kv_heads=1,
    sliding_window_size=8,
    param_dtype=jnp.float32,
  )
  return generation.from_tunix(
    model.Gemma3(config, rngs=nnx.Rngs(0)), context_length=CONTEXT, **fields
  )


def _tunix_qwen3(fields: dict[str, Any], **experts: int) -> generation.Decoder:
  from flax import nnx  # noqa: PLC0415
  from tunix.models.qwen3 import model  # noqa: PLC0415

  config = model.ModelConfig(embed_dim=WIDTH, hidden_dim=2 * WIDTH, **_SIZES, **experts)
  return generation.from_tunix(
    model.Qwen3(config, rngs=nnx.Rngs(0)), context_length=CONTEXT, **fields
  )


def _tunix_qwen3_moe(fields: dict[str, Any]) -> generation.Decoder:
  return _tunix_qwen3(fields, num_experts=4, num_experts_per_tok=2)


def _tunix_llama3(fields: dict[str, Any]) -> generation.Decoder:
  from flax import nnx  # noqa: PLC0415
  from tunix.models.llama3 import model  # noqa: PLC0415

  config = model.ModelConfig(embed_dim=WIDTH, hidden_dim=2 * WIDTH, **_SIZES)
  return generation.from_tunix(
    model.Llama3(config, rngs=nnx.Rngs(0)), context_length=CONTEXT, **fields
  )


def _bonsai_qwen3(fields: dict[str, Any]) -> generation.Decoder:
  from bonsai.models.qwen3 import modeling  # noqa: PLC0415
  from flax import nnx  # noqa: PLC0415

  config = modeling.ModelConfig(
    emb_dim=WIDTH,
    mlp_dim=2 * WIDTH,
    rope_scaling_factor=8.0,
    local_rope_theta=1e4,
    tie_word_embeddings=True,
    **_SIZES,
  )

  def new_cache(batch: int, length: int) -> Any:
    return [modeling.LayerCache(config, batch, length, jnp.float32) for _ in range(LAYERS)]

  return generation.from_bonsai(
    modeling.Qwen3(config, rngs=nnx.Rngs(0)), new_cache, context_length=CONTEXT, **fields
  )


# {name: (the package that it needs, what makes it of fields of `Decoder`)}
MODELS: dict[str, tuple[str, Callable[[dict[str, Any]], generation.Decoder]]] = {
  "plain JAX": ("jax", _plain),
  "plain JAX, index in the cache": ("jax", _counting),
  "Flax linen": ("flax", _linen),
  "Flax nnx": ("flax", _nnx),
  "Equinox": ("equinox", _equinox),
  "gemma: Gemma 3": ("gemma", _gemma),
  "Tunix: Gemma 3": ("tunix", _tunix_gemma3),
  "Tunix: Qwen 3": ("tunix", _tunix_qwen3),
  "Tunix: Qwen 3, experts": ("tunix", _tunix_qwen3_moe),
  "Tunix: Llama 3": ("tunix", _tunix_llama3),
  "Bonsai: Qwen 3": ("bonsai", _bonsai_qwen3),
}
