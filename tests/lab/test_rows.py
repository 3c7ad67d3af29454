"""The rows that the laboratory measures."""

from __future__ import annotations

import importlib

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.tools.lab import reports
from jax2tf.tools.lab.speed_rows import SECTIONS, harness, rule_rows

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
ROW = harness.Row(
  lambda w, x: jnp.tanh(x @ w), lambda w, x: tf.tanh(x @ w), [X], X.T, ways=("ours", "fused")
)


@pytest.mark.parametrize(
  "section", [*(f"speed_rows.{name}" for name in SECTIONS), "model_rows.zoo", "model_rows.minilm"]
)
def test_what_is_kept_is_what_is_measured(section: str) -> None:
  rows = importlib.import_module(f"jax2tf.tools.lab.{section}").rows()
  kept = reports.read(section.replace("speed_rows.", "speed-").replace("model_rows.", "models-"))
  assert {tuple(sorted(numbers)) for numbers in kept.values()} == {tuple(sorted(rows))}


@pytest.mark.parametrize("gradient", [False, True])
def test_a_row_has_a_time_for_each_way(gradient: bool) -> None:
  times = harness.measured(ROW, seconds=0.01, gradient=gradient)
  assert [len(times[way]) for way in ("jax", "hand", "ours", "fused")] == [5] * 4


def test_a_row_with_other_values_is_an_error() -> None:
  other = harness.Row(ROW.in_jax, lambda w, x: 2 * tf.tanh(x @ w), [X], X.T)
  with pytest.raises(AssertionError, match="hand"):
    harness.measured(other, seconds=0.01)


def test_a_reason_is_found_by_whole_words() -> None:
  assert rule_rows.reason("scatter: max of elements").endswith("that the first ignores")
  assert rule_rows.reason("linalg: eigh") == "no reason known"
