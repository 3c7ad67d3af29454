"""Folders for ONNX Runtime GenAI, run in the engine."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax2tf
from jax2tf.converters import generation
from jax2tf.converters.generation import loops, onnxruntime_genai, tokenizers
from jax2tf.converters.generation.conversations import Conversation, Turn
from tests.support import byte_tokenizer, engines
from tests.support import tiny_decoder as tiny

# Two turns, the second of several tokens, up to the end of the cache.
TALKS: Sequence[Conversation] = [(Turn((7,), 30), Turn((8, 9, 10), 30))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
  file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
  byte_tokenizer.made(["<end>"]).save(str(file))
  return file


def test_the_engine_has_jaxs_tokens_with_a_shared_cache(tmp_path: Path) -> None:
  saved = generation.save(
    tiny.counting_decoder(stop_tokens=[1], start_token=2),
    tmp_path / "model",
    target="onnxruntime-genai",
    conversations=TALKS,
  )
  assert saved.report.agreement == {"ONNX Runtime GenAI": (60, 60)}
  config = json.loads((saved.path / "genai_config.json").read_text())
  assert config["search"]["past_present_share_buffer"]
  assert (config["model"]["eos_token_id"], config["model"]["bos_token_id"]) == ([1], 2)


def test_the_engine_has_jaxs_tokens_with_a_growing_cache(tmp_path: Path) -> None:
  decoder = tiny.decoder()
  target = onnxruntime_genai.OnnxRuntimeGenAI(cache="growing")
  assert engines.problems(target, decoder, tmp_path / "model", TALKS) == []


def test_the_engine_ends_a_text_at_a_stop_token(tmp_path: Path) -> None:
  talk: Conversation = (Turn((3, 1, 4), 8),)
  [made] = loops.in_jax(tiny.decoder(), loops.at_once)([talk])
  [tokens] = made.turns
  saved = generation.save(
    tiny.decoder(stop_tokens=[tokens[4]]),
    tmp_path / "model",
    target="onnxruntime-genai",
    conversations=[talk],
  )
  until = tokens.index(tokens[4]) + 1
  assert saved.report.agreement == {"ONNX Runtime GenAI": (until, until)}


def test_the_engine_reads_the_tokenizer_and_the_template(tokenizer: Path, tmp_path: Path) -> None:
  genai = importlib.import_module("onnxruntime_genai")
  template = "{% for message in messages %}{{ message['content'] }}<end>{% endfor %}"

  def step(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    start = (0, positions[0, 0], 0)
    cache = {
      name: jax.lax.dynamic_update_slice(rows, params[tokens], start)
      for name, rows in cache.items()
    }
    return cache["k"][:, : tokens.shape[1]] @ params.T + params[tokens] @ params.T, cache

  params = np.random.default_rng(0).standard_normal((257, 4)).astype(np.float32)
  decoder = generation.Decoder(
    step=step,
    params=params,
    init_cache=lambda batch, length: {name: jnp.zeros((batch, length, 4)) for name in "kv"},
    context_length=32,
    stop_tokens=[0],
    tokenizer=tokenizer,
    chat_template=template,
  )
  target = onnxruntime_genai.OnnxRuntimeGenAI()
  target.check(decoder)
  folder = target.write(decoder, tmp_path / "model")
  target.runners(decoder, folder)  # raises if the tokens differ
  text = genai.Tokenizer(genai.Model(str(folder))).apply_chat_template(
    json.dumps([{"role": "user", "content": "hello"}])
  )
  assert text == "hello<end>"
  assert generation.run(folder, "hello", target="onnxruntime-genai", new=3)


@pytest.mark.parametrize(
  ("fields", "options", "said"),
  [
    ({}, {"cache": "paged"}, "give 'shared' or 'growing'"),
    ({"tokenizer": "x.model"}, {}, "no SentencePiece model"),
    ({"chat_template": "{{ messages }}"}, {}, "there is none"),
    (
      {"init_cache": lambda b, n: tiny.rows(b, n) | {"k_1": jnp.zeros((b, n, 2, 4))}},
      {},
      "one shape and one dtype",
    ),
    ({"init_cache": lambda b, n: tiny.rows(b, n) | {"x": jnp.zeros((b, n))}}, {}, "has 5 arrays"),
  ],
)
def test_what_the_engine_refuses_is_refused_first(
  fields: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
  def step(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    return jnp.zeros((*tokens.shape, tiny.VOCABULARY)), cache

  if "tokenizer" in fields:
    fields = {"tokenizer": tmp_path / fields["tokenizer"]}
    fields["tokenizer"].touch()
  decoder = tiny.decoder(**{"step": step, **fields})
  with pytest.MonkeyPatch.context() as patch, pytest.raises(jax2tf.ArgumentError) as refused:
    patch.setattr(onnxruntime_genai, "extra", lambda module: None)
    onnxruntime_genai.OnnxRuntimeGenAI(**options).check(decoder)
  assert said in str(refused.value)


def test_other_tokens_than_the_files_are_refused(tokenizer: Path) -> None:
  decoder = tiny.decoder(tokenizer=tokenizer)
  with pytest.raises(generation.ExportError, match="reads other tokens from 'A model answers"):
    tokenizers.compare(decoder, "onnxruntime-genai", "The engine", lambda text: [0])
