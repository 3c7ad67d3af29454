"""Texts and tokens: the tokenizer of a model, and text that grows by tokens."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

# What a decoder gives for bytes that are no whole character.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# A decoder may drop a space before the first token of a list, so some tokens stay before new ones.
_OVERLAP = 8
_LONGEST = 64  # tokens that are decoded again with each new one
_EXTRA = "pip install 'jax2tf[generation]'"


class Tokenizer(Protocol):
  """What a server needs of a tokenizer. None of these add tokens before or after a text."""

  def encode(self, text: str) -> list[int]:
    """The tokens of a text, of which special tokens may be parts."""

  def decode(self, tokens: Sequence[int]) -> str:
    """The text of tokens, without special tokens."""

  def piece(self, token: int) -> str:
    """How a token is written, "<s>"."""


class _HuggingFace:
  """The file tokenizer.json."""

  def __init__(self, file: Path):
    self._tokenizer: Any = _module("tokenizers").Tokenizer.from_file(str(file))

  def encode(self, text: str) -> list[int]:
    ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
    return ids

  def decode(self, tokens: Sequence[int]) -> str:
    text: str = self._tokenizer.decode(list(tokens))
    return text

  def piece(self, token: int) -> str:
    return self._tokenizer.id_to_token(token) or ""


class _SentencePiece:
  """A .model file of SentencePiece."""

  def __init__(self, file: Path):
    self._processor: Any = _module("sentencepiece").SentencePieceProcessor(model_file=str(file))

  def encode(self, text: str) -> list[int]:
    ids: list[int] = self._processor.encode(text)
    return ids

  def decode(self, tokens: Sequence[int]) -> str:
    text: str = self._processor.decode(list(tokens))
    return text

  def piece(self, token: int) -> str:
    text: str = self._processor.id_to_piece(token)
    return text


def tokenizer_of(file: Path) -> Tokenizer:
  """The tokenizer of a file, by its suffix.

  Raises:
    ModuleNotFoundError: the package that reads it is not installed.
  """
  return _SentencePiece(file) if file.suffix == ".model" else _HuggingFace(file)


def _module(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      f"the tokenizer of this model needs {name}: {_EXTRA}", name=name
    ) from error


class Growing:
  """The text of tokens that come one by one. A character whose last bytes are still to come is kept
  back."""

  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    self._tokens: list[int] = []
    self._given = 0  # characters of the text of `_tokens`

  def add(self, token: int) -> str:
    """The text that this token completes."""
    self._tokens.append(token)
    text = self._tokenizer.decode(self._tokens)
    complete = text.rstrip(_INCOMPLETE)
    new = complete[self._given :]
    self._given = max(self._given, len(complete))
    if len(self._tokens) >= _LONGEST and complete == text:
      self._tokens = self._tokens[-_OVERLAP:]
      self._given = len(self._tokenizer.decode(self._tokens))
    return new

  def end(self) -> str:
    """What was kept back."""
    return self._tokenizer.decode(self._tokens)[self._given :]


class Stops:
  """Ends a text before the first of some strings. A part that may be the beginning of one is kept
  back."""

  def __init__(self, strings: Sequence[str]):
    self._strings = [string for string in strings if string]
    self._kept = ""

  def add(self, text: str) -> tuple[str, bool]:
    """(the text that no string can take back any more, whether a string ends it)."""
    whole = self._kept + text
    found = [at for at in map(whole.find, self._strings) if at >= 0]
    if found:
      self._kept = ""
      return whole[: min(found)], True
    begun = max((_overlap(whole, string) for string in self._strings), default=0)
    self._kept = whole[len(whole) - begun :]
    return whole[: len(whole) - begun], False

  def end(self) -> str:
    """What was kept back, where the text ends without a string."""
    kept, self._kept = self._kept, ""
    return kept


def _overlap(text: str, string: str) -> int:
  """The length of the longest end of `text` that `string` begins with."""
  longest = min(len(text), len(string) - 1)
  return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
