"""Bundles for LiteRT-LM, run in LiteRT with one buffer for a cache, and in the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jax2tf
from jax2tf.converters import generation, tflite
from jax2tf.converters.generation import (
  litert_lm,
  litert_lm_bundle,
  litert_lm_signatures,
  loops,
  report,
)
from jax2tf.converters.generation.conversations import Conversation, Turn
from jax2tf.converters.generation.decoder import Decoder
from tests.support import tiny_decoder as tiny

SIZES = [8]
# In pieces of 8, of 3 tokens filled up to 8, in two turns, and up to the end of the cache.
TALKS: Sequence[Conversation] = [
  (Turn(tuple(range(2, 14)), 4),),
  (Turn(tuple(range(9)), 4), Turn(tuple(range(20, 28)), 4)),
  (Turn(tuple(range(57)), 7),),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
  file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
  litert_lm_bundle.one_for_one(file, tiny.VOCABULARY)
  return file


def test_a_bundle_has_jaxs_tokens_in_the_engine(tokenizer: Path, tmp_path: Path) -> None:
  decoder = tiny.counting_decoder(tokenizer=tokenizer, stop_tokens=[1], start_token=2)
  saved = generation.save(
    decoder,
    tmp_path / "model.litertlm",
    target="litert-lm",
    conversations=TALKS,
    prefill_lengths=SIZES,
  )
  assert saved.report.agreement == {
    "LiteRT with one buffer for the cache": (19, 19),
    "LiteRT-LM": (19, 19),
  }
  assert saved.path.read_bytes()[:8] == b"LITERTLM"


def _on_embeddings(
  params: Any, embeddings: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
) -> tuple[jax.Array, Any]:
  """As `tiny.sums_step`, of embeddings f32[b,s,16]."""
  new = {"k": embeddings, "v": embeddings[..., ::-1]}
  after = {
    name: jax.lax.dynamic_update_slice(cache[name], rows, (0, positions[0, 0], 0))
    for name, rows in new.items()
  }
  weighted = (after["k"] + after["v"]) * tiny.weights_of_rows(tiny.CONTEXT)
  mixed = jnp.einsum("bsc,bcd->bsd", mask.astype(weighted.dtype), weighted)
  return mixed @ params.T, after


def _with_embedder(**fields: Any) -> Decoder:
  return tiny.sums_decoder(
    step=_on_embeddings,
    embed=lambda params, tokens: 2.0 * params[tokens],
    init_cache=lambda b, n: {name: jnp.zeros((b, n, tiny.WIDTH)) for name in "kv"},
    rules={},
    stop_tokens=[1],
    **fields,
  )


def test_an_embedder_has_a_section_of_its_own(tokenizer: Path, tmp_path: Path) -> None:
  decoder = _with_embedder(tokenizer=tokenizer)
  options: dict[str, Any] = {"target": "litert-lm", "prefill_lengths": SIZES}
  saved = generation.save(decoder, tmp_path / "model.litertlm", conversations=TALKS[1:2], **options)
  assert [*saved.report.agreement.values()] == [(8, 8), (8, 8)]
  main, embedder = tmp_path / "model.tflite", tmp_path / "embedder.tflite"
  litert_lm_bundle.copy_models(saved.path, main, embedder)
  signatures = tflite.inspect(main).signatures
  assert signatures["decode"]["inputs"]["embeddings"] == "f32[1,1,16]"
  assert [*tflite.inspect(embedder).signatures] == ["embedder"]
  row = tflite.run(embedder, {"token_ids": jnp.array([[-1]])}, signature="embedder")["embeddings"]
  assert (row == 2.0 * decoder.params[0]).all()
  with pytest.raises(RuntimeError, match="has 2 LiteRT models, and 1 are expected"):
    litert_lm_bundle.copy_models(saved.path, tmp_path / "other.tflite", None)


def _late(
  params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
) -> tuple[jax.Array, Any]:
  """As `tiny.sums_step`; besides, it reads the rows behind the prompt before and after it has
  written rows, in the cache that it got. The difference is 0.

  A scatter, because LiteRT 2.3 keeps the operand of a DYNAMIC_UPDATE_SLICE while it is in use.
  """
  behind = (jnp.arange(tiny.CONTEXT) >= positions[0, 0])[:, None]
  early = jnp.sum(cache["k"] * behind)
  logits, after = tiny.sums_step(params, tokens, positions, cache, mask)
  written = cache["k"].at[:, positions[0]].set(params[tokens])
  behind &= jnp.isfinite(jnp.max(written))  # so that it comes after the rows
  late = jnp.sum(jnp.where(behind, cache["k"], 0))
  moved = logits + 1000 * (late - early) * jnp.arange(tiny.VOCABULARY)
  return moved, {**after, "k": written}


def _rows(decoder: Decoder, file: Path, *, one_buffer: bool) -> list[report.Row]:
  made = litert_lm.in_litert(file, decoder, SIZES, TALKS[:1], one_buffer=one_buffer)
  whole = loops.Whole(decoder, TALKS[:1])
  return [report.compared("LiteRT", TALKS[0], one, whole, 1e-4) for one in made]


def test_a_late_read_of_the_cache_is_seen_without_the_engine(tmp_path: Path) -> None:
  """The Interpreter agrees call by call, and in a loop."""
  decoder = tiny.sums_decoder(step=_late)
  file = tmp_path / "late.tflite"
  tflite.save_model(
    litert_lm_signatures.model_of(decoder, SIZES),
    file,
    samples=1,
    examples=litert_lm_signatures.examples(decoder),
  )
  assert [row.problem for row in _rows(decoder, file, one_buffer=False)] == [""]
  [row] = _rows(decoder, file, one_buffer=True)
  assert "are not JAX's" in row.problem


@pytest.mark.parametrize(
  ("fields", "options", "said"),
  [
    ({"tokenizer": None}, {}, "LiteRT-LM takes text"),
    ({"stop_tokens": []}, {}, "needs a token that ends an answer"),
    ({}, {"prefill_lengths": [1, 8]}, "the cache has 64 rows"),
    ({}, {"prefill_lengths": [65]}, "the cache has 64 rows"),
    ({"init_cache": lambda b, n: tiny.rows(b, n) | {"x": jnp.zeros((b, n))}}, {}, "has 5 arrays"),
  ],
)
def test_what_the_engine_refuses_is_refused_first(
  fields: dict[str, Any], options: dict[str, Any], said: str, tokenizer: Path
) -> None:
  def step(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    return jnp.zeros((*tokens.shape, tiny.VOCABULARY)), cache

  decoder = tiny.decoder(**{"step": step, "tokenizer": tokenizer, "stop_tokens": [1], **fields})
  with pytest.MonkeyPatch.context() as patch, pytest.raises(jax2tf.ArgumentError) as refused:
    patch.setattr(litert_lm_bundle, "extra", lambda module: None)
    litert_lm.LiteRTLM(**options).check(decoder)
  assert said in str(refused.value)


def test_prefill_lengths_follow_from_the_cache() -> None:
  target = litert_lm.LiteRTLM()
  assert target.pieces(tiny.decoder()) == [16]
  assert target.pieces(dataclasses.replace(tiny.decoder(), context_length=300)) == [16, 128]
