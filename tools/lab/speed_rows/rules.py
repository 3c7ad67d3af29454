"""Times of lowering rules, without XLA, against jax.jit.

JAX's LAPACK is OpenBLAS, whose threads spin while they wait. On busy cores that slows it down by a
factor of hundreds, so it gets one thread: OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence

import jax

from jax2tf.tools.lab import measure, workers
from jax2tf.tools.lab.speed_rows import harness
from jax2tf.tools.lab.speed_rows.rule_rows import ROWS

_SECONDS = 2.0  # of measurement for each way
# A way is slow if it takes this many times as long as JAX, in all runs, and long enough.
SLOW, MATTERS_MS = 5.0, 1.0


def rows() -> list[str]:
  """The functions."""
  return [*ROWS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, dict[str, harness.Numbers]]]:
  """(name, {way: its numbers}) of each function."""
  os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before the process that loads it
  yield from workers.each(_row, [(name,) for name in names], workers.failed)


def _row(name: str) -> tuple[str, dict[str, harness.Numbers]]:
  rule = ROWS[name]
  # A factorisation may have other signs than JAX's; the tests of the rules compare values.
  row = harness.Row(rule.fun, None, rule.args(rule.n), ways=("ours",), rtol=None)
  found = {"forward": harness.measured(row, _SECONDS)}
  if rule.differentiable:
    found["gradient"] = harness.measured(row, _SECONDS, gradient=True)
  jax.clear_caches()
  return name, found


def ratio(numbers: harness.Numbers) -> float:
  """The median ratio of TensorFlow's time to JAX's."""
  return statistics.median(measure.ratios(numbers, "ours", "jax"))


def is_slow(numbers: harness.Numbers) -> bool:
  """Whether the report lists the row, with a reason."""
  least, *_ = measure.ratios(numbers, "ours", "jax")
  return least > SLOW and min(numbers["ours"]) > MATTERS_MS
