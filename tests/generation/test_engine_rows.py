"""Steps for engines that keep keys and values themselves, of a fixed length or growing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters.generation import engine_rows
from jax2tf.converters.generation.decoder import Decoder
from tests.support import tiny_decoder as tiny

Write = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _sliced(rows: jax.Array, new: jax.Array, positions: jax.Array) -> jax.Array:
  return jax.lax.dynamic_update_slice(rows, new, (0, positions[0, 0], 0, 0))


def _scattered(rows: jax.Array, new: jax.Array, positions: jax.Array) -> jax.Array:
  return rows.at[:, positions[0]].set(new)


def _selected(rows: jax.Array, new: jax.Array, positions: jax.Array) -> jax.Array:
  """By a product with a matrix of zeros and ones."""
  hit = (jnp.arange(rows.shape[1])[:, None] == positions[0]).astype(rows.dtype)
  kept = rows * (1 - hit.sum(axis=1))[:, None, None]
  return kept + jnp.einsum("ts,bshd->bthd", hit, new)


def _decoder(write: Write) -> Decoder:
  def step(
    params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
  ) -> tuple[jax.Array, Any]:
    return tiny.body(
      params, tokens, positions, mask, cache, lambda rows, new: write(rows, new, positions)
    )

  return tiny.decoder(step=step)


@pytest.mark.parametrize(
  ("write", "primitives", "by_heads"),
  [
    (_sliced, {"dynamic_update_slice": 0, "concatenate": 8}, True),
    (_scattered, {"scatter": 0, "concatenate": 8}, False),
    (_selected, {"concatenate": 8}, True),  # rows of zeros behind the old ones
  ],
)
def test_a_growing_cache_has_the_logits_of_the_whole_text(
  write: Write, primitives: dict[str, int], by_heads: bool
) -> None:
  decoder = _decoder(write)
  rows = engine_rows.of_decoder(decoder, by_heads=by_heads)
  tokens = np.arange(3, 13, dtype=np.int32)[None]
  positions = np.arange(10, dtype=np.int32)[None]
  expected, _ = jax.jit(decoder.call)(decoder.params, tokens, positions, decoder.init_cache(1, 10))

  step = engine_rows.growing(decoder, rows)
  past = {path: jnp.zeros(one.shape(1, 0), one.leaf.dtype) for path, one in rows.items()}
  logits = []
  for start, end in ((0, 4), (4, 10)):
    one, past = jax.jit(step)(decoder.params, tokens[:, start:end], positions[:, start:end], past)
    logits.append(one)
  # float32; the same products of other lengths
  np.testing.assert_allclose(np.concatenate(logits, 1), expected, atol=2e-5)
  assert past["k_0"].shape == ((1, 2, 10, 8) if by_heads else (1, 1, 10, 16))

  jaxpr = jax.make_jaxpr(step)(decoder.params, tokens[:, :4], positions[:, :4], past)
  found = [eqn.primitive.name for eqn in jaxpr.eqns]
  assert {name: found.count(name) for name in primitives} == primitives
