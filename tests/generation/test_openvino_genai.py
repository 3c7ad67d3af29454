"""Folders for OpenVINO GenAI, run in the engine with both of its backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax2tf
from jax2tf.converters import generation
from jax2tf.converters.generation import onnxruntime_genai, openvino_genai
from jax2tf.converters.generation.conversations import Conversation, Turn
from tests.support import engines
from tests.support import tiny_decoder as tiny

HEADS, KV_HEADS, SIZE = 4, 2, 8
_CONTEXT = 64
# Two turns, the second of several tokens, up to the end of the cache.
TALKS: Sequence[Conversation] = [(Turn((7,), 30), Turn((8, 9, 10), 30))]
Change = Callable[[jax.Array], jax.Array]


def _decoder(scores_of: Change = lambda x: x, mask_of: Change = lambda x: x) -> generation.Decoder:
  """One layer, whose heads share keys and values in groups."""

  def step(
    params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
  ) -> tuple[jax.Array, Any]:
    x = params["embed"][tokens] + jnp.sin(positions[..., None] * params["frequency"])
    new = {name: (x @ params[name]).reshape(*tokens.shape, KV_HEADS, SIZE) for name in ("k", "v")}
    cache = {
      name: jax.lax.dynamic_update_slice(cache[name], rows, (0, positions[0, 0], 0, 0))
      for name, rows in new.items()
    }
    q = (x @ params["q"]).reshape(*tokens.shape, KV_HEADS, -1, SIZE)
    scores = scores_of(jnp.einsum("bskgh,btkh->bkgst", q, cache["k"]) / 3)
    shares = jax.nn.softmax(jnp.where(mask_of(mask)[:, None, None], scores, -1e30))
    mixed = jnp.einsum("bkgst,btkh->bskgh", shares, cache["v"]).reshape(*tokens.shape, -1)
    return (x + mixed) @ params["head"], cache

  rng = np.random.default_rng(0)
  width = HEADS * SIZE
  shapes = {"embed": (59, width), "q": (width, width), "frequency": (width,), "head": (width, 59)}
  shapes |= dict.fromkeys("kv", (width, KV_HEADS * SIZE))
  params = {name: rng.standard_normal(n).astype(np.float32) / 3 for name, n in shapes.items()}
  return generation.Decoder(
    step=step,
    params=params,
    init_cache=lambda batch, length: {
      name: jnp.zeros((batch, length, KV_HEADS, SIZE)) for name in ("k", "v")
    },
    context_length=_CONTEXT,
    stop_tokens=[1],
  )


# Of the second one the product with the values has the values first.
@pytest.mark.parametrize("decoder", [_decoder, lambda: tiny.decoder(stop_tokens=[1])])
def test_the_engine_has_jaxs_tokens_with_both_backends(
  decoder: Callable[[], generation.Decoder], tmp_path: Path
) -> None:
  folder, target = tmp_path / "model", openvino_genai.OpenvinoGenAI()
  assert engines.problems(target, decoder(), folder, TALKS) == []
  assert {file.name for file in folder.iterdir()} == {
    "config.json",
    "generation_config.json",
    "openvino_model.bin",
    "openvino_model.xml",
  }


def _of_fixed_length() -> generation.Decoder:
  """It hides rows by a mask of as many rows as its cache has."""

  def step(
    params: jax.Array, tokens: jax.Array, positions: jax.Array, cache: Any
  ) -> tuple[jax.Array, Any]:
    rows = params[tokens] * jnp.cos(positions[..., None])
    cache = {
      name: jax.lax.dynamic_update_slice(cache[name], rows[:, :, None], (0, positions[0, 0], 0, 0))
      for name in ("k", "v")
    }
    seen = jnp.arange(_CONTEXT) <= positions[..., None]
    scores = jnp.where(seen, jnp.einsum("bsh,btoh->bst", rows, cache["k"]), -1e30)
    mixed = jnp.einsum("bst,btoh->bsh", jax.nn.softmax(scores), cache["v"])
    return (rows + mixed) @ params[::-1].T, cache

  return generation.Decoder(
    step=step,
    params=np.random.default_rng(0).standard_normal((59, SIZE)).astype(np.float32),
    init_cache=lambda batch, length: {
      name: jnp.zeros((batch, length, 1, SIZE)) for name in ("k", "v")
    },
    context_length=_CONTEXT,
    stop_tokens=[1],
  )


def test_a_step_for_one_length_has_jaxs_tokens_and_ends_at_that_length(tmp_path: Path) -> None:
  target, decoder = openvino_genai.OpenvinoGenAI(paged_attention=False), _of_fixed_length()
  folder = tmp_path / "model"
  assert engines.problems(target, decoder, folder, TALKS) == []
  too_long = [(Turn((7,), _CONTEXT + 1),)]
  with pytest.raises(RuntimeError):
    target.runners(decoder, folder)["OpenVINO GenAI (SDPA)"](too_long)


def test_a_step_for_one_length_is_refused_where_a_cache_grows(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  decoder = _of_fixed_length()
  masked = dataclasses.replace(
    decoder,
    step=lambda params, tokens, positions, cache, mask: decoder.step(
      params, tokens, positions, cache
    ),
  )
  for module in (openvino_genai, onnxruntime_genai):
    monkeypatch.setattr(module, "extra", lambda module: None)
  with pytest.raises(jax2tf.ArgumentError, match=r"needs a cache of 64.*paged_attention=False"):
    openvino_genai.OpenvinoGenAI().check(masked)
  with pytest.raises(jax2tf.ArgumentError, match=r"needs a cache of 64 rows.*give 'shared'"):
    onnxruntime_genai.OnnxRuntimeGenAI(cache="growing").check(decoder)


def _windowed(mask: jax.Array) -> jax.Array:
  rows, length = mask.shape[-2:]
  behind = jnp.arange(length) - (length - rows) - jnp.arange(rows)[:, None]
  return mask & (behind > -16)


@pytest.mark.parametrize(
  ("decoder", "said"),
  [
    (lambda: _decoder(scores_of=jnp.tanh), "0 of 1 layers have it"),
    (lambda: _decoder(mask_of=_windowed), "a mask of the model hides others"),
  ],
)
def test_paged_attention_that_would_differ_is_refused(
  decoder: Callable[[], generation.Decoder], said: str, tmp_path: Path
) -> None:
  target = openvino_genai.OpenvinoGenAI()
  target.check(decoder())
  with pytest.raises(generation.ExportError, match="paged_attention=False") as refused:
    target.write(decoder(), tmp_path / "model")
  assert said in str(refused.value)


def test_a_step_without_mask_is_refused_for_paged_attention() -> None:
  decoder = tiny.decoder(
    step=lambda params, tokens, positions, cache: (
      jnp.zeros((*tokens.shape, tiny.VOCABULARY)),
      cache,
    ),
    stop_tokens=[1],
  )
  with pytest.MonkeyPatch.context() as patch, pytest.raises(jax2tf.ArgumentError) as refused:
    patch.setattr(openvino_genai, "extra", lambda module: None)
    openvino_genai.OpenvinoGenAI().check(decoder)
  assert "give `step` a parameter `mask`" in str(refused.value)


def test_other_tokens_of_paged_attention_alone_have_advice() -> None:
  target = openvino_genai.OpenvinoGenAI()
  assert "paged_attention=False" in target.advice("OpenVINO GenAI (PA)")
  assert target.advice("OpenVINO GenAI (SDPA)") == ""


def test_a_decoder_without_stop_tokens_is_refused() -> None:
  with pytest.raises(ValueError, match="needs a token that ends an answer"):
    openvino_genai.OpenvinoGenAI().check(tiny.decoder())
