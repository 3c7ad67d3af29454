"""`generation.Decoder`: what it finds out about a cache, and what it refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax2tf
from jax2tf.converters import generation
from tests.support import tiny_decoder as tiny


def test_shapes_tell_batch_and_length() -> None:
  decoder = tiny.counting_decoder()
  found = {
    leaf.path: (leaf.kind, leaf.batch_axis, leaf.length_axis) for leaf in decoder.cache.leaves
  }
  assert found == {
    "end_index": ("ruled", 0, None),
    "rows/k_0": ("rows", 0, 1),
    "rows/k_1": ("rows", 0, 1),
    "rows/v_0": ("rows", 0, 1),
    "rows/v_1": ("rows", 0, 1),
  }
  assert decoder.vocabulary == tiny.VOCABULARY
  assert [(keys.path, values.path) for keys, values in decoder.cache.layers] == [
    ("rows/k_0", "rows/v_0"),
    ("rows/k_1", "rows/v_1"),
  ]


@pytest.mark.parametrize(
  ("rule", "expected"),
  [
    ("start", [[5], [5]]),
    (3, [[3], [3]]),
    (lambda positions, length: positions[:, :1] + length, [[13], [13]]),
  ],
)
def test_a_rule_gives_the_leaf_before_a_call(rule: Any, expected: list[list[int]]) -> None:
  decoder = tiny.counting_decoder(
    init_cache=lambda batch, length: {
      "rows": tiny.rows(batch, length),
      "end_index": jnp.zeros((batch, 1), jnp.int32),
    },
    step=lambda params, tokens, positions, cache: (
      jnp.zeros((*tokens.shape, tiny.VOCABULARY)),
      cache,
    ),
    rules={"end_index": rule},
  )
  positions = jnp.broadcast_to(jnp.arange(5, 7), (2, 2))
  rows = decoder.cache.split(decoder.init_cache(2, 8))
  cache = decoder.cache.joined(rows, positions)
  assert cache["end_index"].tolist() == expected


def _with_step(change: Any) -> dict[str, Any]:
  def step(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    return change(jnp.zeros((*tokens.shape, tiny.VOCABULARY)), cache)

  return {"step": step}


def _half(cache: Any) -> Any:
  return jax.tree.map(lambda x: x.astype(jnp.float16), cache)


@pytest.mark.parametrize(
  ("fields", "argument", "said"),
  [
    (
      _with_step(lambda logits, cache: (logits[:, -1], cache)),
      "step",
      "return logits of all tokens",
    ),
    (_with_step(lambda logits, cache: (logits, _half(cache))), "step", "k_0 was f32[1,64,2,8] and"),
    (_with_step(lambda logits, cache: (logits, {})), "step", "a cache of another structure"),
    (_with_step(lambda logits, cache: logits), "step", "return the pair"),
    (_with_step(lambda logits, cache: 1 / 0), "step", "ZeroDivisionError"),
    ({"decode": _with_step(lambda logits, cache: (logits[0], cache))["step"]}, "decode", "[1,1,V]"),
    ({"embed": lambda params, tokens: tokens}, "embed", "it returns int32[1, 2]"),
    ({"embed": lambda params, tokens: params["missing"]}, "embed", "KeyError"),
    ({"init_cache": tiny.counted, "rules": {}}, "rules", "'end_index', int32[1], holds integers"),
    ({"rules": {"end_index": "start"}}, "rules", "no leaf 'end_index'"),
    (
      {"init_cache": lambda batch, length: tiny.rows(batch, 8)},
      "init_cache",
      "grows with the length",
    ),
    (
      {"init_cache": lambda batch, length: tiny.rows(batch, batch * length)},
      "init_cache",
      "one axis",
    ),
    ({"init_cache": lambda batch: {}}, "init_cache", "takes 1 positional argument"),
    ({"context_length": 1}, "context_length", "2 or more"),
    ({"stop_tokens": [59]}, "stop_tokens", "the logits have 59 tokens"),
    ({"stop_tokens": [-1]}, "stop_tokens", "from 0 on"),
    ({"start_token": 59}, "start_token", "from 0 to 58"),
    ({"tokenizer": "missing.json"}, "tokenizer", "no such file"),
  ],
)
def test_what_does_not_fit_is_refused_at_once(
  fields: dict[str, Any], argument: str, said: str
) -> None:
  with pytest.raises(jax2tf.ArgumentError) as refused:
    tiny.decoder(**fields)
  assert refused.value.argument == argument
  assert said in str(refused.value)


@pytest.mark.parametrize(
  ("rule", "said"),
  [("next", "there is no rule 'next'"), (lambda positions, length: np.zeros(3), "gives shape [3]")],
)
def test_a_rule_that_does_not_fit_is_refused(rule: Any, said: str) -> None:
  with pytest.raises(jax2tf.ArgumentError, match="rules") as refused:
    tiny.counting_decoder(rules={"end_index": rule})
  assert said in str(refused.value)


def test_a_carried_leaf_is_for_targets_that_keep_the_whole_cache() -> None:
  decoder = tiny.decoder(
    init_cache=lambda batch, length: {**tiny.rows(batch, length), "mean": jnp.zeros((batch, 4))},
    **_with_step(lambda logits, cache: (logits, cache)),
  )
  with pytest.raises(jax2tf.ArgumentError, match="'mean', float32\\[1, 4\\], has no axis"):
    decoder.check_rows_only()


def test_generation_is_imported_when_it_is_asked_for() -> None:
  assert generation.Decoder.__module__ == "jax2tf.converters.generation.decoder"
