"""The files of a tokenizer in a folder as Hugging Face writes them, which engines read, and whether
an engine's tokens are those of the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jax2tf.messages import ArgumentError

from .. import extras
from ..export.source import ExportError
from .decoder import Decoder

TOKENIZER = "tokenizer.json"
_SAMPLES = (
  "A model answers.",
  '  two spaces, 1234567890 and "quotes"\n\ttabs\n',
  "naïve café, straße, Ελληνικά, 日本語, 🙂",
)


def check(decoder: Decoder, engine: str, extra: str) -> None:
  """Checks the kind of the file.

  Args:
    decoder: of which the tokenizer is.
    engine: its name, for errors.
    extra: of jax2tf, which has the package that compares the tokens.

  Raises:
    ArgumentError: it is a SentencePiece model; or there is a template without a tokenizer.
    ImportError: the package tokenizers is missing.
  """
  if decoder.tokenizer is None:
    if decoder.chat_template is not None:
      raise ArgumentError(
        "chat_template",
        problem=f"{engine} renders it together with a tokenizer, and there is none",
        advice="name tokenizer.json, or leave the template out",
      )
    return
  if Path(decoder.tokenizer).suffix != ".json":
    raise ArgumentError(
      "tokenizer",
      str(decoder.tokenizer),
      problem=f"{engine} reads tokenizer.json, and no SentencePiece model",
      advice="convert it by transformers, or leave it out for a model that takes token ids",
    )
  _of_file(decoder, extra)


def write(decoder: Decoder, folder: Path) -> None:
  """Writes tokenizer.json and tokenizer_config.json. Nothing for a decoder without tokenizer."""
  if decoder.tokenizer is None:
    return
  shutil.copyfile(decoder.tokenizer, folder / TOKENIZER)
  config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_bos_token": False,
    "clean_up_tokenization_spaces": False,  # some readers would drop spaces before punctuation
    "model_max_length": decoder.context_length,
    **options(decoder),
  }
  (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def options(decoder: Decoder) -> dict[str, Any]:
  """The chat template, and the texts of the start token and of the first stop token, as far as the
  decoder and its tokenizer have them, as Hugging Face names them."""
  tokens = {added["id"]: added["content"] for added in _added(decoder)}
  named: dict[str, Any] = {}
  if decoder.start_token in tokens:
    named["bos_token"] = tokens[decoder.start_token]
  if stop := [tokens[token] for token in decoder.stop_tokens if token in tokens]:
    named["eos_token"] = stop[0]
  if decoder.chat_template is not None:
    named["chat_template"] = decoder.chat_template
  return named


def compare(
  decoder: Decoder, target: str, engine: str, encode: Callable[[str], Sequence[int]]
) -> None:
  """Compares an engine's tokens of a few texts with those of the package tokenizers.

  Raises:
    ExportError: they differ.
  """
  tokenizer = _of_file(decoder, target)
  for text in _SAMPLES:
    expected = tokenizer.encode(text).ids
    if (ours := list(encode(text))) != expected:
      raise ExportError(
        target,
        f"{engine} reads other tokens from {text!r} than the file has: {ours[:8]}, where the "
        f"package tokenizers has {expected[:8]}; leave the tokenizer out for a model that takes "
        "token ids",
      )


def _of_file(decoder: Decoder, extra: str) -> Any:
  package = extras.module("tokenizers", extra, "comparing the tokenizer of an engine")
  return package.Tokenizer.from_file(str(decoder.tokenizer))


def _added(decoder: Decoder) -> list[dict[str, Any]]:
  text = Path(str(decoder.tokenizer)).read_text(encoding="utf-8")
  return list(json.loads(text).get("added_tokens") or [])
