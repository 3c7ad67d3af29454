"""Byte-level tokenizers without merges, for models with few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import tokenizers


def made(
  before: Sequence[str] = (), *, of: str | None = None, after: Sequence[str] = ()
) -> tokenizers.Tokenizer:
  """A tokenizer with a token for each byte, or for those in the text `of`, in alphabetical order.

  The special tokens of `before` have the first ids, those of `after` the last ones.
  """
  import tokenizers  # noqa: PLC0415
  from tokenizers import decoders, models, pre_tokenizers  # noqa: PLC0415

  level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  if of is None:
    letters = set(pre_tokenizers.ByteLevel.alphabet())
  else:
    letters = {letter for piece, _ in level.pre_tokenize_str(of) for letter in piece}
  vocabulary = {name: i for i, name in enumerate([*before, *sorted(letters), *after])}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
  tokenizer.pre_tokenizer, tokenizer.decoder = level, decoders.ByteLevel()
  tokenizer.add_special_tokens([*before, *after])
  return tokenizer
