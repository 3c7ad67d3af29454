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
import onnx
import pytest

import jax2tf
from jax2tf.converters import generation
from jax2tf.converters.generation import block_weights, loops, onnxruntime_genai, tokenizers
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


@pytest.mark.parametrize(("scheme", "bits"), [("int4", 4), ("int8", 8)])
def test_quantized_products(scheme: str, bits: int, tmp_path: Path) -> None:
  """The engine computes what JAX computes with the rounded weights, a tied embedding among them,
  and the matrices have a quarter or an eighth of their size."""
  params = tiny.params()
  params["head"] = params["embed"].T

  def tied(params: Any, tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
    return tiny.step({**params, "head": params["embed"].T}, tokens, positions, cache, mask)

  def rounded(matrix: np.ndarray) -> np.ndarray:
    integers, scales = block_weights.blocks(matrix.T, bits)
    halves = [integers & 15, integers >> 4] if bits == 4 else [integers]
    steps = np.stack(halves, -1).reshape(*scales.shape, -1).astype(np.float32) - 2 ** (bits - 1)
    whole = (steps * scales[..., None]).reshape(len(scales), -1)
    return np.ascontiguousarray(whole[:, : len(matrix)].T)

  layers = [{name: rounded(x) for name, x in layer.items()} for layer in params["layers"]]
  nearby = {**params, "layers": layers, "head": rounded(params["head"])}
  del params["head"]
  decoder = tiny.decoder(step=tied, params=params)
  target = onnxruntime_genai.OnnxRuntimeGenAI(quantization=scheme, accuracy_level=1)
  target.check(decoder)
  folder = target.write(decoder, tmp_path / "model")
  [made] = target.runners(decoder, folder)["ONNX Runtime GenAI"](TALKS)
  [expected] = loops.in_jax(tiny.decoder(params=nearby), loops.at_once)(TALKS)
  assert made.turns == expected.turns
  model = onnx.load(str(folder / "model.onnx"))
  kinds = [node.op_type for node in model.graph.node]
  assert kinds.count("MatMulNBits") == 13  # those with the cache stay
  sizes = {one.name: int(np.prod(one.dims)) for one in model.graph.initializer}
  assert sum(size for name, size in sizes.items() if name.endswith("_bits")) > 0


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
    ({}, {"quantization": "nf4"}, "give 'int4' or 'int8'"),
    ({}, {"quantization": "int4", "accuracy_level": 0}, "give one of 1, 2, 3, 4"),
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
