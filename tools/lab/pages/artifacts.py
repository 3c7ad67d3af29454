"""docs/reports/artifacts.md: does an artifact compute what its function computed?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax2tf.tools.lab.pages import Rows, sections, table

_ABOUT = """# Artifacts: StableHLO read as JAX functions

Generated from the numbers in `docs/reports/data`; do not edit."""

_HARNESSES = """## JAX's test harnesses, there and back

`make artifacts` exports harnesses of `jax._src.internal_test_util.test_harnesses`, serializes them,
and reads them with `jax2tf.stablehlo.load`. The results are compared with `jax.jit` of the harness,
with the tolerances of [Coverage](../coverage.md). *symbolic*: mapped over an axis of symbolic size,
and called with two sizes. A case is *refused* if the error says which op cannot be read; any other
failure is an *error*. A case is *left out* if JAX itself does not run or export it. The
sample is drawn from a seed, with at least one harness of each group."""

_MODELS = """## Closed SavedModels in other runtimes

Every model of `tests/stablehlo/artifacts/closed-models.tar.xz` with XlaCallModule ops, opened and
exported by `onnx`, `tflite` and `tfjs`. Its name says how, and by which JAX, it was written."""


def text() -> str:
  """The page."""
  tables = {"harnesses": (_HARNESSES, _harnesses), "models": (_MODELS, _models)}
  return "\n".join([_ABOUT, *sections("artifacts", tables)]) + "\n"


def _harnesses(rows: Rows) -> Sequence[str]:
  head = ("way", "cases", "groups", "right", "refused", "error", "wrong", "left out")
  counted = ("groups", "right", "refused", "error", "wrong", "left out")
  lines = [(way, _cases(rows[way]), *(rows[way][key] for key in counted)) for way in rows["ways"]]
  others = [f"- {case}" for case in rows["others"]]
  return [*table(head, lines), *(["", *others] if others else [])]


def _cases(row: Any) -> int:
  return int(sum(row[key] for key in ("right", "refused", "error", "wrong", "left out")))


def _models(rows: Rows) -> Sequence[str]:
  head = ("model", "onnx", "tflite", "tfjs")
  lines = [(name, *(row[to] for to in head[1:])) for name, row in rows.items()]
  return table(head, lines, words=4)
