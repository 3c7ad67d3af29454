"""docs/reports/artifacts.md: does an artifact compute what its function computed?"""

from __future__ import annotations

import statistics
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

_MODELS = """## Closed models in other runtimes

Every SavedModel of `tests/stablehlo/artifacts/closed-models.tar.xz`, opened, and exported by
`onnx`, `tflite` and `tfjs`; and the stored modules of PyTorch, read by `stablehlo.load`, and
exported with their weights. A name says how, and by which JAX, a model was written: `graph` with
`Xla*` ops, `upstream`, `keras` and `native` with XlaCallModule ops.
`python -m jax2tf.tools.lab.closed_models` writes the table.

*nodes* and *time* compare the opened model with a SavedModel of the same function, converted
directly: its number of ops, and the median time of a call of a batch of 64, measured in turns in
one process. *open* is the time in seconds to open the model, without the comparison. The
machine had other work.

Opening leaves ordinary nodes as they are: `graph-0.4.38-draws` has the random bits of old JAX, and
`graph-0.4.38-rnn` a loop of five steps, which the direct conversion unrolls."""

_MUTANTS = """## Changed artifacts

`python -m jax2tf.tools.lab.artifact_fuzz` changes the stored files of `jax.export` and modules at
random, from a seed: their bytes, or the text of their modules. It loads them as `untrusted=True`
does, and runs them and the same module in jaxlib. A mutant is *refused* with a clear error, or the
values are *equal*. *parser ends*: MLIR's parser ends the child process, or needs more than 10
seconds, which `load` reports.
*jaxlib refuses* or *ends*: there are no values to compare. *large*: it has more than 2 million
elements, and is not run. *other arguments*: the stored arguments do not fit its symbolic sizes.
*open order*: the comparator of a sort is changed, and the values are others than jaxlib's, because
StableHLO leaves the result open if the comparator is no order. A *fault* would be another error,
other values, a crash, or more than 10 seconds."""

_MEMORY = """## A large module

`python -m jax2tf.tools.lab.large_module` writes a file of `jax.export` with one constant, and reads
it in another process. *memory* is the growth of that process, *of the child* that of the child of
`untrusted=True`, in multiples of the file."""


def text() -> str:
  """The page."""
  tables = {
    "harnesses": (_HARNESSES, _harnesses),
    "models": (_MODELS, _models),
    "mutants": (_MUTANTS, _mutants),
    "memory": (_MEMORY, _memory),
  }
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
  words, numbers = ("opened", "onnx", "tflite", "tfjs"), ("nodes", "speed", "seconds")
  head = ("model", *words, "nodes", "time", "open")
  lines = [
    (name, *(row.get(key, "") for key in words), *(_number(row.get(key)) for key in numbers))
    for name, row in rows.items()
  ]
  medians = [
    f"The median of *{title}* is {statistics.median(values):.2f}, the largest {max(values):.2f}."
    for title, values in (("nodes", _known(rows, "nodes")), ("time", _known(rows, "speed")))
    if values
  ]
  return [*table(head, lines, words=5), "", *medians]


def _number(value: float | None) -> str:
  return "" if value is None else f"{value:.2f}"


def _known(rows: Rows, key: str) -> list[float]:
  return [row[key] for row in rows.values() if row.get(key) is not None]


def _mutants(rows: Rows) -> Sequence[str]:
  kinds = list(next(iter(rows.values())))
  lines = [(way, sum(row.values()), *(row[kind] for kind in kinds)) for way, row in rows.items()]
  totals = [sum(row[kind] for row in rows.values()) for kind in kinds]
  return table(("change", "mutants", *kinds), [*lines, ("all", sum(totals), *totals)])


def _memory(rows: Rows) -> Sequence[str]:
  head = ("way", "size of the file in MB", "memory", "of the child", "seconds")
  return table(head, [(way, *row.values()) for way, row in rows.items()])
