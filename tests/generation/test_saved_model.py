"""The target "saved_model": signatures that take the cache and return it, and their record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.converters import generation, saved_model
from jax2tf.converters.bundle import files, manifest
from jax2tf.converters.bundle.sessions import Session
from jax2tf.converters.generation import Turn
from tests.support import tiny_decoder as tiny

# A prompt in pieces of 4, 4 and 3; a second turn; the end of the cache.
TALKS = [(Turn((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5), 4), Turn((8, 9), 3)), (Turn((7, 9) * 30, 4),)]


def _empty(batch: int, length: int) -> dict[str, Any]:
  """The cache of the tiny decoder, with how often each token was read."""
  return {**tiny.counted(batch, length), "counts": jnp.zeros((batch, tiny.VOCABULARY))}


def _step(
  params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
) -> tuple[jax.Array, Any]:
  """The tiny decoder, which shuns tokens that it has read: a state without rows."""
  logits, after = tiny.counting_step(params, tokens, positions, cache, mask)
  counts = cache["counts"][:, None] + jnp.cumsum(jax.nn.one_hot(tokens, tiny.VOCABULARY), axis=1)
  return logits - counts, {**after, "counts": counts[:, -1]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> generation.Saved:
  decoder = tiny.counting_decoder(step=_step, init_cache=_empty, stop_tokens=[7], start_token=2)
  folder = tmp_path_factory.mktemp("models") / "tiny"
  return generation.save(decoder, folder, target="saved_model", conversations=TALKS, piece=4)


def test_the_tokens_are_those_of_jax(saved: generation.Saved) -> None:
  assert saved.path.name == "1"
  assert saved.report.agreement == {"TensorFlow": (11, 11)}


def test_the_manifest_says_how_to_generate(saved: generation.Saved) -> None:
  record = saved_model.manifest.read(saved.path).generation
  assert record is not None
  assert (record.vocabulary, record.context_length, record.piece) == (59, 64, 4)
  assert (record.stop_tokens, record.start_token, record.tokenizer) == ([7], 2, "")
  assert record.cache["cache_rows_k_0"] == "f32[1,64,2,8]"
  assert record.cache["cache_end_index"] == "i32[1]"
  signatures = manifest.read(saved.path).signatures
  assert signatures["init_cache"].outputs == record.cache
  assert signatures["prefill"].inputs == {
    "tokens": "i32[1,s]", "positions": "i32[1,s]", **record.cache
  }  # fmt: skip
  assert signatures["decode"].outputs == {**record.cache, "logits": "f32[1,59]"}


def test_sessions_are_values(saved: generation.Saved) -> None:
  """Two of them in turns give what each gives alone."""
  record = manifest.read(saved.path).generation
  assert record is not None
  signatures = tf.saved_model.load(str(saved.path)).signatures

  def session() -> Session:
    return Session(record, signatures, tf.constant)

  alone, other, together = session(), session(), session()
  expected = [alone([1, 2, 3]), alone([4])]
  found = []
  for tokens in ([1, 2, 3], [4]):
    other([9] * 5)
    found.append(together(tokens))
  np.testing.assert_array_equal(found, expected)
  with pytest.raises(ValueError, match="61 tokens behind 4 do not fit into a cache of 64"):
    together([0] * 61)


def test_a_later_jax2tf_may_add_fields(saved: generation.Saved, tmp_path: Path) -> None:
  content = json.loads((saved.path / files.MANIFEST).read_text())
  content["generation"]["later"] = 1
  (tmp_path / files.MANIFEST).parent.mkdir()
  (tmp_path / files.MANIFEST).write_text(json.dumps(content))
  assert manifest.read(tmp_path).generation == manifest.read(saved.path).generation


def test_what_does_not_fit_is_refused_at_once(saved: generation.Saved, tmp_path: Path) -> None:
  with pytest.raises(FileExistsError, match="1 exists already"):
    generation.save(tiny.decoder(), saved.path.parent, target="saved_model", version=1)
  with pytest.raises(jax2tf.ArgumentError, match="no tokenizer that reads it"):
    generation.save(tiny.decoder(chat_template="a"), tmp_path / "new", target="saved_model")
  with pytest.raises(jax2tf.ArgumentError, match="1 or more"):
    generation.save(tiny.decoder(), tmp_path / "new", target="saved_model", piece=0)
