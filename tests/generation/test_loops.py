"""The greedy loop in JAX, and what the comparison with it finds."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters.generation import conversations, loops, report
from jax2tf.converters.generation.conversations import Conversation, Generated, Turn
from tests.support import tiny_decoder as tiny

# One prompt in pieces of 4, and a second turn: steps of 4 tokens and of one.
TALK: Conversation = (Turn((3, 1, 4, 1, 5, 9, 2, 6, 5), 4), Turn((3, 5, 8, 9), 3))
PIECES = loops.in_pieces([4])


@pytest.fixture(scope="module")
def generated() -> Generated:
  [made] = loops.in_jax(tiny.sums_decoder(), PIECES)([TALK])
  return made


@pytest.fixture(scope="module")
def whole() -> loops.Whole:
  return loops.Whole(tiny.sums_decoder(), [TALK])


def _row(made: Generated, whole: loops.Whole, **options: Any) -> report.Row:
  return report.compared("engine", TALK, made, whole, 1e-4, **options)


def test_pieces_are_those_of_engines() -> None:
  assert loops.in_pieces([8, 16])(26) == [16, 9, 1]
  assert loops.in_pieces([8, 16])(1) == [1]


def test_the_loop_has_the_tokens_of_the_whole_text(
  generated: Generated, whole: loops.Whole
) -> None:
  row = _row(generated, whole)
  assert (row.tokens, row.equal, row.problem, row.prompts) == (7, 7, "", "9 + 4")
  assert row.max_abs is not None and row.max_abs < 1e-5


def test_a_step_by_rules_is_the_step_with_the_whole_cache(generated: Generated) -> None:
  [made] = loops.in_jax(tiny.sums_decoder(), PIECES, by_rules=True)([TALK])
  assert made.turns == generated.turns


def test_a_wrong_rule_is_seen(whole: loops.Whole) -> None:
  decoder = tiny.sums_decoder(rules={"end_index": 0})
  [made] = loops.in_jax(decoder, PIECES, by_rules=True)([TALK])
  assert "are not JAX's" in _row(made, whole).problem


def test_a_function_without_a_cache_is_a_reference(generated: Generated) -> None:
  def reference(params: Any, tokens: jax.Array) -> jax.Array:
    weighted = (params + params[::-1])[tokens] * tiny.weights_of_rows(tokens.shape[1])
    return jnp.cumsum(weighted, axis=1) @ params.T

  given = loops.Whole(tiny.sums_decoder(reference=reference), [TALK])
  assert _row(generated, given).equal == 7


def test_tokens_behind_a_first_difference_count(generated: Generated, whole: loops.Whole) -> None:
  """JAX continues the engine's own text."""
  first = list(generated.turns[0])
  first[1] = (first[1] + 1) % tiny.VOCABULARY
  row = _row(Generated((tuple(first), generated.turns[1])), whole)
  assert "the first is token 2" in row.problem
  assert row.margin > 0
  assert _row(Generated((tuple(first), generated.turns[1])), whole, rounds=True).problem == ""


def test_a_near_tie_is_no_error(generated: Generated) -> None:
  flat = np.tile(np.float32([5, 4.9995, 0]), (7, 1))
  row = report.compared("engine", TALK, Generated(((0, 1, 0, 0), (0, 0, 0))), lambda *_: flat, 1e-4)
  assert (row.equal, row.near, row.problem) == (6, 1, "")


def test_a_difference_of_logits_is_seen(generated: Generated, whole: loops.Whole) -> None:
  assert generated.logits is not None
  moved = dataclasses.replace(generated, logits=tuple(x + 0.5 for x in generated.logits))
  assert "its logits differ from JAX's by 0.5" in _row(moved, whole).problem


def test_an_engine_that_ends_early_is_seen(generated: Generated, whole: loops.Whole) -> None:
  assert _row(Generated(generated.turns[:1]), whole).problem == "it ended after 4 of 7 tokens"
  assert _row(Generated((), problem="no kernel"), whole).problem == "no kernel"


def test_planned_conversations_reach_the_end_of_the_cache() -> None:
  planned = conversations.planned(tiny.decoder(stop_tokens=[7]), [8, 16])
  totals = [sum(len(turn.prompt) + turn.new for turn in each) for each in planned]
  assert max(totals) == tiny.CONTEXT
  assert {len(each) for each in planned} == {1, 2}
  assert {1, 9, 17} <= {len(each[0].prompt) for each in planned}
  assert not any(7 in turn.prompt for each in planned for turn in each)
