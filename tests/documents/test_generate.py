"""A model that generates text, trained for a few steps, saved with its cache, and run in a process
without JAX."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from jax2tf.examples import decoder, decoder_training, generate


def test_the_example_runs_to_its_last_line(
  tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
  generate.main(tmp_path, steps=3, count=12)
  said = capfd.readouterr().out
  for words in (
    "trained 918,656 parameters",
    "saved",
    "tokens/s by the cache",
    "JAX was not imported; all 48 tokens are JAX's",
  ):
    assert words in said
  assert {path.name for path in tmp_path.iterdir()} >= {"1", "speed.png", "tokenizer.json"}


def test_a_cache_changes_no_token() -> None:
  """Of two prompts of different lengths, in slots that are not the first, next to reading the whole
  text again."""
  params = jax.device_put(decoder.init(0))
  tokens, lengths, slots = (
    np.array([[5, 6, 7], [9, 0, 0]], np.int32),
    np.array([3, 1], np.int32),
    np.array([2, 0], np.int32),
  )
  cache, scores = jax.jit(decoder.prefill)(
    params, decoder.empty_cache(3, 16), slots, tokens, lengths
  )
  texts, after, whole = [[5, 6, 7], [9]], jax.jit(decoder.decode), jax.jit(decoder.logits)
  for _ in range(4):
    token = np.argmax(scores, axis=-1).astype(np.int32)
    for text, row, new in zip(texts, scores, token, strict=True):
      padded = np.array([text + [0] * (8 - len(text))])  # no token sees those behind it
      # sums in another order
      np.testing.assert_allclose(row, whole(params, padded)[0, len(text) - 1], atol=1e-5)
      text.append(int(new))
    cache, scores = after(params, cache, slots, token)
  np.testing.assert_array_equal(cache["lengths"], [5, 0, 7])


def test_a_text_is_the_same_in_any_batch() -> None:
  scores = np.random.default_rng(0).standard_normal((3, decoder.VOCABULARY)).astype(np.float32)
  seeds, positions = np.arange(3, dtype=np.int32), np.array([4, 5, 6], np.int32)
  together = decoder.sample(scores, seeds, positions, np.float32(1))
  for i in range(3):
    assert (
      decoder.sample(scores[i : i + 1], seeds[i : i + 1], positions[i : i + 1], np.float32(1))
      == together[i]
    )
  np.testing.assert_array_equal(
    decoder.sample(scores, seeds, positions, np.float32(0)), scores.argmax(axis=-1)
  )


def test_the_tokens_give_the_text_again() -> None:
  text = decoder_training.text()[:3000]
  vocabulary = decoder_training.tokenizer(text)
  assert vocabulary.decode(vocabulary.encode(text).ids) == text
