"""Bundles of LiteRT-LM: a .litertlm file of a LiteRT model, a tokenizer and metadata."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import extras
from ..bundle import publish

# Stands for token 0 in `one_for_one`; the tokens are the code points from here on. None of them is
# a letter that a normalizer or a splitter of words changes.
FIRST = 0x10000
_NO_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def extra(module: str) -> Any:
  """A module of jax2tf[litert-lm]."""
  return extras.module(module, "litert-lm", "exporting to LiteRT-LM")


def write(
  path: Path,
  model: Path,
  tokenizer: Path,
  *,
  context_length: int,
  stop_tokens: Sequence[int],
  start_token: int | None = None,
  chat_template: str | None = None,
  embedder: Path | None = None,
) -> None:
  """Writes a bundle.

  Args:
    path: of the bundle.
    model: the .tflite file.
    tokenizer: tokenizer.json, or SentencePiece's .model.
    context_length: the number of rows of the cache.
    stop_tokens: tokens that end an answer.
    start_token: the token before each text.
    chat_template: in Jinja.
    embedder: the .tflite file that makes embeddings, for a model that takes these.
  """
  builder = extra("litert_lm_builder.litertlm_builder")
  file = builder.LitertLmFileBuilder()
  author = builder.Metadata(key="Authors", value="jax2tf", dtype=builder.DType.STRING)
  file.add_system_metadata(author)
  metadata = path.with_name("metadata.pb")
  metadata.write_bytes(_metadata(context_length, stop_tokens, start_token, chat_template))
  file.add_llm_metadata(str(metadata))
  if tokenizer.suffix == ".model":
    file.add_sentencepiece_tokenizer(str(tokenizer))
  else:
    file.add_hf_tokenizer(str(tokenizer))
  file.add_tflite_model(str(model), builder.TfLiteModelType.PREFILL_DECODE)
  if embedder is not None:
    file.add_tflite_model(str(embedder), builder.TfLiteModelType.EMBEDDER)
  with path.open("wb") as stream:
    file.build(stream, validate_metadata=True)


def copy_models(path: Path, model: Path, embedder: Path | None) -> None:
  """Copies the LiteRT models of a bundle.

  Args:
    path: of the bundle.
    model: the .tflite file to write.
    embedder: that of the embedder; None if the bundle is to have none.

  Raises:
    RuntimeError: the bundle has other models than these.
  """
  with tempfile.TemporaryDirectory(dir=model.parent) as folder:
    peek = extra("litert_lm_builder.litertlm_peek")
    peek.peek_litertlm_file(str(path), folder, io.StringIO())
    models = sorted(Path(folder).glob("*.tflite"))  # named by their sections, in order
    expected = [model] if embedder is None else [model, embedder]
    if len(models) != len(expected):
      raise RuntimeError(
        f"{path} has {len(models)} LiteRT models, and {len(expected)} are expected; "
        "compare it with the decoder that it was made of"
      )
    for source, target in zip(models, expected, strict=True):
      publish.move(source, target)


def one_for_one(path: Path, vocabulary: int) -> None:
  """Writes a tokenizer.json that has one character for each token, so that a check can give the
  engine, which takes text, any tokens."""
  model: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "vocab": {chr(FIRST + token): token for token in range(vocabulary)},
    "merges": [],
  }
  tokenizer: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {"type": "Fuse"},
    "model": model,
  }
  path.write_text(json.dumps(tokenizer), encoding="utf-8")


def _metadata(
  context_length: int,
  stop_tokens: Sequence[int],
  start_token: int | None,
  chat_template: str | None,
) -> bytes:
  proto = "litert_lm_builder.runtime.proto"
  metadata = extra(f"{proto}.llm_metadata_pb2").LlmMetadata()
  if start_token is not None:
    metadata.start_token.token_ids.ids.append(start_token)
  for token in stop_tokens:
    metadata.stop_tokens.add().token_ids.ids.append(token)
  metadata.max_num_tokens = context_length
  metadata.llm_model_type.generic_model.SetInParent()
  metadata.supports_thinking = False
  metadata.supports_function_calling = False
  metadata.sampler_params.type = extra(f"{proto}.sampler_params_pb2").SamplerParameters.GREEDY
  metadata.sampler_params.k = 1
  metadata.jinja_prompt_template = chat_template or _NO_TEMPLATE
  written: bytes = metadata.SerializeToString(deterministic=True)
  return written
