"""Decoders of models of libraries: the loop by rules has the tokens of the whole text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax2tf.converters import generation
from jax2tf.converters.generation import loops, report
from jax2tf.converters.generation.conversations import Conversation, Turn

VOCABULARY, WIDTH, CONTEXT = 31, 8, 16
TALK: Conversation = (Turn((3, 1, 4, 1, 5), 3), Turn((9, 2, 6, 5), 2))


def of_linen() -> generation.Decoder:
  from flax import linen  # noqa: PLC0415  (optional, and others need no Flax)

  class Model(linen.Module):
    @linen.compact
    def __call__(self, tokens: Any) -> Any:
      x = linen.Embed(VOCABULARY, WIDTH)(tokens)
      x += linen.MultiHeadDotProductAttention(num_heads=2, decode=True)(x, x)
      return linen.Dense(VOCABULARY)(x)

  variables = jax.jit(Model().init)(jax.random.key(0), jnp.zeros((1, CONTEXT), jnp.int32))

  def reference(params: Any, tokens: jax.Array) -> jax.Array:
    x = params["Embed_0"]["embedding"][tokens]
    attention = linen.MultiHeadDotProductAttention(num_heads=2)
    mask = linen.make_causal_mask(tokens)
    x += attention.apply({"params": params["MultiHeadDotProductAttention_0"]}, x, x, mask=mask)
    return x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]

  return generation.from_flax_linen(
    Model(), variables["params"], context_length=CONTEXT, reference=reference
  )


def of_nnx() -> generation.Decoder:
  from flax import nnx  # noqa: PLC0415

  class Model(nnx.Module):
    def __init__(self, rngs: Any):
      self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
      self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=True, rngs=rngs)
      self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
      x = self.embed(tokens)
      return self.head(x + self.attention(x))

  return generation.from_flax_nnx(Model(nnx.Rngs(0)), context_length=CONTEXT)


def _attended(x: jax.Array, cache: jax.Array, start: jax.Array, mask: jax.Array) -> Any:
  rows = jax.lax.dynamic_update_slice(cache, x, (0, start, 0))
  scores = jnp.where(mask, x @ jnp.swapaxes(rows, 1, 2), -1e30)
  return x + jax.nn.softmax(scores) @ rows, rows


def _empty(batch: int, length: int) -> jax.Array:
  return jnp.zeros((batch, length, WIDTH))


def of_nnx_with_a_cache_as_argument() -> generation.Decoder:
  from flax import nnx  # noqa: PLC0415

  class Model(nnx.Module):
    def __init__(self, rngs: Any):
      self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)

    def __call__(self, tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
      x, cache = _attended(self.embed(tokens), cache, positions[0, 0], mask)
      return x @ self.embed.embedding[::-1].T, cache

  return generation.from_flax_nnx(Model(nnx.Rngs(0)), context_length=CONTEXT, init_cache=_empty)


def of_equinox() -> generation.Decoder:
  import equinox  # noqa: PLC0415

  class Model(equinox.Module):
    table: jax.Array

    def __call__(self, tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
      x, cache = _attended(self.table[tokens], cache, positions[0, 0], mask)
      return x @ self.table[::-1].T, cache

  table = jax.random.normal(jax.random.key(0), (VOCABULARY, WIDTH))
  return generation.from_equinox(Model(table), context_length=CONTEXT, init_cache=_empty)


@dataclasses.dataclass(frozen=True)
class TunixConfig:
  """What `from_tunix` reads of a configuration."""

  num_layers: int = 2
  num_kv_heads: int = 1
  head_dim: int = WIDTH
  sliding_window_size: int = 3


def of_tunix_with_a_window() -> generation.Decoder:
  """Its window is right for one token, and for several at the beginning of a text."""
  from flax import nnx  # noqa: PLC0415

  class Model(nnx.Module):
    def __init__(self, rngs: Any):
      self.config = TunixConfig()
      self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)

    def __call__(self, tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
      x, count, after = self.embed(tokens), tokens.shape[1], {}
      for layer in (f"layer_{i}" for i in range(self.config.num_layers)):
        rows = x[:, :, None]
        if cache is not None:
          end = cache[layer]["end_index"]
          rows = jax.lax.dynamic_update_slice(cache[layer]["k"], rows, (0, end[0], 0, 0))
          after[layer] = {"k": rows, "v": rows, "end_index": end + count}
        last = mask.sum(-1) - 1 if count == 1 else jnp.arange(count)[None]
        behind = last[..., None] - jnp.arange(rows.shape[1])
        seen = mask & (behind < self.config.sliding_window_size)
        scores = jnp.einsum("bqh,bkoh->bqk", x, rows)
        x += jnp.einsum("bqk,bkoh->bqh", jax.nn.softmax(jnp.where(seen, scores, -1e30)), rows)
      return x @ self.embed.embedding[::-1].T, after

  return generation.from_tunix(Model(nnx.Rngs(0)), context_length=CONTEXT)


@pytest.mark.parametrize(
  "make", [of_linen, of_nnx, of_nnx_with_a_cache_as_argument, of_equinox, of_tunix_with_a_window]
)
def test_the_loop_by_rules_has_the_tokens_of_the_whole_text(
  make: Callable[[], generation.Decoder],
) -> None:
  decoder = make()
  assert decoder.vocabulary == VOCABULARY
  [made] = loops.in_jax(decoder, loops.in_pieces([4]), by_rules=True)([TALK])
  row = report.compared("JAX", TALK, made, loops.Whole(decoder, [TALK]), 1e-4)
  assert (row.equal, row.problem) == (5, "")
