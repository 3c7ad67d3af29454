"""Each primitive in each dtype: the first cases of JAX's own harnesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import jax2tf
from jax2tf.tools.lab import workers
from jax2tf.tools.lab.device_rows import counts
from jax2tf.tools.lab.target_rows.primitives import function
from tests.support.conformance import harnesses

# {name of a harness: the numbers of `counts`}
Numbers = dict[str, Any]

_CASES = 1  # of each primitive and dtype
# Those of models and of random bits; the others are widened to these, or are rare.
_DTYPES = ("float32", "bfloat16", "int32", "uint32", "bool", "complex64")
_ROWS_PER_WORKER = 100
_SECONDS = 120  # the time limit of a row


def rows() -> list[str]:
  """ "primitive dtype", in the order of the primitives."""
  return sorted(name for name in _cases() if name.split()[-1] in _DTYPES)


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Reads the graphs of the cases of each primitive and dtype."""
  cases = _cases()
  tasks = [(name, cases[name]) for name in names]
  yield from workers.each(_row, tasks, _lost, renewed_after=_ROWS_PER_WORKER, seconds=_SECONDS)


def _cases() -> dict[str, list[str]]:
  """{"primitive dtype": the names of its first harnesses}."""
  cases: dict[str, list[str]] = {}
  for name, harness in harnesses.load().items():
    if name.endswith(harnesses.X64) or harness.dtype is None:
      continue
    dtype = np.dtype(harness.dtype).name
    of_dtype = cases.setdefault(f"{harness.group_name} {dtype}", [])
    if len(of_dtype) < _CASES:
      of_dtype.append(name)
  return cases


def _row(name: str, cases: Sequence[str]) -> tuple[str, Numbers]:
  return name, {case: _of_case(case) for case in cases}


def _of_case(case: str) -> counts.Numbers:
  fun, arrays, *_ = function(f"harness:{case}", 0)
  converted = jax2tf.convert(fun, with_gradient=False, platforms=counts.PLATFORMS)
  return counts.of_function(converted, counts.specs(list(arrays)))


def _lost(error: workers.LostError, name: str, _: Sequence[str]) -> tuple[str, Numbers]:
  return name, {"lost": {"refused": str(error).splitlines()[0][:120]}}
