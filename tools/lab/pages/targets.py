"""docs/reports/targets.md: what runs in which runtime."""

from __future__ import annotations

import collections
import heapq
import operator
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax2tf.converters import onnx, tfjs, tflite  # noqa: F401  (they register their replacements)
from jax2tf.converters.export import registry
from jax2tf.converters.onnx import releases
from jax2tf.tools.lab import reports
from jax2tf.tools.lab.pages import Rows, table

TITLES = {"onnx": "ONNX Runtime", "tflite": "LiteRT", "tfjs": "TF.js"}
STATUSES = {
  "equal": "equals JAX",
  "noted": "equals JAX except for NaN, infinities or extreme numbers, with a warning",
  "lacks": "refused: the target has no such op or dtype",
  "differs": "refused: the answer differs from JAX's",
  "fails": "another error",
  "silent": "a file with wrong answers",
}
_SHORT = STATUSES | {
  "equal": "yes",
  "noted": "yes, except for NaN and infinities",
  "lacks": "no",
  "differs": "refused, differs",
}
_RELEASE_KINDS = ("ordinary inputs", "NaN and infinities too")
RIGHT, REFUSED, WRONG = VERDICTS = ("right", "refused", "wrong")
CONVERTERS = ("ours", "jax2onnx")
FIGURES = ("ms", "nodes", "bytes", "seconds")  # of a row of the registry
_LIMIT, _LARGEST = 1.3, 10  # of ratios: from which they count, and how many are listed
_ABOUT = """# What runs where

Generated from the numbers in `docs/reports/data`; do not edit. `make targets` measures
all of it again.

## Primitives and random programs

Every primitive is exported to every target in a few dtypes, with the arguments of JAX's test
harnesses, runs there and is compared with `jax.jit`. The same is done with random programs, which
then also run on difficult inputs that the exporter has not seen. An exporter writes a file only if
the file agrees with JAX in the target's runtime. Otherwise the export fails and names the user's
line.
"""

_REPLACED = """### Replacements

Replacements of ops that a target lacks or computes differently. The reasons are the `because` texts
of the replacements; [CONTRIBUTING](../../CONTRIBUTING.md) says how to add one.
"""

_RELEASES = """## ONNX Runtime, older releases

`onnx.save` states the oldest release of ONNX Runtime for every file
([Older ONNX Runtimes](../guide/onnx-files.md#older-onnx-runtimes)). For this report, files of the
zoo, of the exporter's replacements and of JAX's test harnesses run in every release, its newest
patch, on a CPU. Their outputs are compared with JAX, as in an export. A release agrees if it has no
difference that the newest release does not have.
"""

_KERNELS = """
These kernels came later than opset 18. ONNX Runtime lists its kernels from 1.16 on. For 1.14 and
1.15, the files below are the evidence.
"""
_NAN = """
In older releases, these kernels give other answers for NaN or infinities than in the newest one:
"""

_READERS = """## TensorFlow, older releases

Native modules, written for the release in each row. A cell is the largest difference of values and
gradients from `jax.jit`, in a process with that TensorFlow and without JAX.
"""

_PLAIN = """## Plain tf2onnx and TFLiteConverter

The models have random weights and are converted by `jax2tf.convert`. The tool translates them as a
script would: plain, and with our call, which is `onnx.prepared` with `onnx.custom_op_handlers`, or
`tflite.converter` ([Use plain tf2onnx or TFLiteConverter](../tasks/plain-converters.md)).
The file runs in ONNX Runtime or LiteRT, at two sizes of each dimension. **right**: every output
equals `jax.jit`. refused: the tool or the runtime raises an error. **wrong**: an output differs,
without an error.
"""


_REGISTRY = """## ONNX, beside another converter

Programs with all public functions of JAX, Flax and Equinox that have a value, as files of
`onnx.save` and of jax2onnx, with the same JAX. Both files run in ONNX Runtime, with one thread, and
are compared with `jax.jit` at ordinary inputs. **right**, refused and **wrong** are as above. Ours
is also refused if the comparison of `onnx.save` differs. A ratio is ours divided by theirs, for the
files that are right in both. Times are medians of five alternating runs of programs that take more
than 50 microseconds. [The numbers](data/targets-registry.json) have a row for each program.
"""


def text() -> str:
  """The page."""
  parts = (_sweep, _replacements, _releases, _readers, _plain_tools, _registry)
  return "\n".join([_ABOUT, *(line for part in parts for line in part())])


def _sweep() -> Iterator[str]:
  report = reports.read("targets-primitives")
  titles = list(TITLES.values())
  counts = {
    (version, status): [section["programs"].get(target, {}).get(status, 0) for target in TITLES]
    for version, section in sorted(report.items())
    for status in STATUSES
  }
  rows = [[STATUSES[status], version, *each] for (version, status), each in counts.items()]
  yield from table(["random programs", "", *titles], rows, words=2)
  *_, (version, section) = sorted(report.items())
  yield from ("", f"Ops that an export lacked, with the number of exports, {version}:", "")
  for target, title in TITLES.items():
    ops = sorted(section["ops"].get(target, {}).items(), key=lambda item: (-item[1], item[0]))
    yield f"- {title}: {', '.join(f'{op} {n}' for op, n in ops) or 'none'}"
  cells = {
    version: {
      primitive: [_support(of_target.get(target, {})) for target in TITLES]
      for primitive, of_target in sorted(section["primitives"].items())
    }
    for version, section in report.items()
  }
  *older, newest = sorted(cells)
  yield from ("", f"### Primitives, {newest}", "")
  rows = [[f"`{primitive}`", *row] for primitive, row in cells[newest].items()]
  yield from table(["primitive", *titles], rows, words=4)
  for version in older:
    others = {name: row for name, row in cells[version].items() if cells[newest].get(name) != row}
    yield from ("", f"### Primitives that differ with {version}", "")
    yield from table(
      ["primitive", *titles], [[f"`{name}`", *row] for name, row in others.items()], words=4
    )
  yield ""


def _support(found: Mapping[str, Sequence[str]]) -> str:
  """Whether a target supports a primitive, or for which dtypes."""
  if len(found) < 2:
    return "".join(_SHORT[status] for status in found)
  return "; ".join(
    f"{_SHORT[status]}: {', '.join(sorted(set(dtypes) - {''}))}"
    for status, dtypes in sorted(found.items())
  )


def _replacements() -> Iterator[str]:
  yield _REPLACED
  rows = []
  for target, title in TITLES.items():
    by_reason = collections.defaultdict[str, list[str]](list)
    for op, because in registry.REASONS[target].items():
      by_reason[because].append(f"`{op}`")
    rows += [[title, reason, ", ".join(sorted(ops))] for reason, ops in sorted(by_reason.items())]
  yield from table(["target", "why", "ops"], rows, words=3)
  yield ""


def too_low(section: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """The files for which a release of ONNX Runtime does not agree though the exporter states so."""
  return [
    f"{name} agrees for {kind} from 1.{real} on, and states 1.{stated}"
    for name, row in section.items()
    if "stated" in row
    for kind, stated, real in zip(_RELEASE_KINDS, row["stated"], row["real"], strict=True)
    if stated < real
  ]


def _releases() -> Iterator[str]:
  yield _RELEASES
  opsets = [[opset, f"1.{number}"] for opset, number in releases.OPSETS.items()]
  yield from table(["opset", "first release"], opsets, words=2)
  yield _KERNELS
  yield from _kernels(releases.KERNELS)
  yield _NAN
  yield from _kernels(releases.NAN)
  for version, section in sorted(reports.read("targets-onnx").items()):
    yield from ("", f"### Files in each release, {version}", "", *_files(section))


def _kernels(kernels: Mapping[tuple[str, str], int]) -> list[str]:
  dtypes = collections.defaultdict[tuple[int, str], list[str]](list)
  for (op, dtype), number in kernels.items():
    dtypes[number, op].append(dtype)
  ops = collections.defaultdict[tuple[int, str], list[str]](list)
  for (number, op), of_op in sorted(dtypes.items()):
    ops[number, ", ".join(sorted(of_op))].append(op)
  rows = [[f"1.{number}", ", ".join(names), of_ops] for (number, of_ops), names in ops.items()]
  return table(["first release", "ops", "dtypes"], rows, words=3)


def _files(section: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
  rows = {name: row for name, row in section.items() if "stated" in row}
  yield f"{len(rows)} files. The first release for"
  yield ""
  counted = [
    collections.Counter(row[which][i] for row in rows.values())
    for i in range(len(_RELEASE_KINDS))
    for which in ("stated", "real")
  ]
  head = [f"{kind}: {which}" for kind in _RELEASE_KINDS for which in ("stated", "found")]
  numbers = sorted(set().union(*counted))
  yield from table(["", *head], [[f"1.{n}", *(counts[n] for counts in counted)] for n in numbers])
  yield f"\nState an older release than agrees: {len(too_low(section))}."
  newer = sum(any(map(operator.gt, row["stated"], row["real"])) for row in rows.values())
  yield f"State a newer release than the first that agrees: {newer}."
  if lost := [name for name, row in section.items() if "lost" in row]:
    yield f"Not measured: {', '.join(lost)}."
  yield ""


def _readers() -> Iterator[str]:
  yield _READERS
  for version, section in sorted(reports.read("targets-readers").items()):
    functions = list(next(iter(section.values()))["functions"])
    rows = [
      [row["release"], row["StableHLO"], *(row["functions"][name] for name in functions)]
      for row in section.values()
    ]
    yield f"Written with {version}:\n"
    yield from table(["TensorFlow", "written as StableHLO", *functions], rows, words=2)
    yield ""


def _plain_tools() -> Iterator[str]:
  yield _PLAIN
  *older, (version, section) = sorted(reports.read("targets-plain").items())
  columns = [name for name in next(iter(section.values())) if name != "library"]
  verdicts = {model: [row[column][0] for column in columns] for model, row in section.items()}
  rows = [
    [model, section[model]["library"], *map(_verdict, each)] for model, each in verdicts.items()
  ]
  for verdict in VERDICTS:
    counts = [
      sum(each == verdict for each in of_column)
      for of_column in zip(*verdicts.values(), strict=True)
    ]
    rows.append([f"**{verdict}**", "", *map(str, counts)])
  yield from (f"### Models, {version}", "")
  yield from table(["model", "library", *columns], rows, words=2 + len(columns))
  yield ""
  for model, row in section.items():
    for column in columns:
      if row[column][0] != RIGHT:
        yield _reason(model, column, row)
  for other, before in older:
    differing = [
      f"{model}, {column}: {row[column][0]}"
      for model, row in before.items()
      for column, verdict in zip(columns, verdicts.get(model, ()), strict=False)
      if row[column][0] != verdict
    ]
    yield f"\nWith {other}: {'; '.join(differing) or 'the same verdicts'}."
  yield ""


def _reason(name: str, column: str, row: Mapping[str, Any]) -> str:
  verdict, why = row[column]
  return f"- {name}, {column}: {verdict}. `{why[:200].replace('`', ' ')}`"


def _verdict(verdict: str) -> str:
  return verdict if verdict == REFUSED else f"**{verdict}**"


def _registry() -> Iterator[str]:
  yield _REGISTRY
  for version, section in reports.read("targets-registry").items():
    by_library = collections.defaultdict[str, dict[str, Any]](dict)
    for name, row in section.items():
      by_library[row["library"]][name] = row
    by_library["**all**"] = section
    counted = [f"{converter}: {verdict}" for converter in CONVERTERS for verdict in VERDICTS]
    head = ["library", "programs", *counted, *(f"{figure}, median ratio" for figure in FIGURES)]
    totals = [
      [name, len(rows), *_counts(rows), *_medians(rows)] for name, rows in by_library.items()
    ]
    yield from (f"### Programs, {version}", "", *table(head, totals), "")
    yield from _right_only_in_one(section)
    for figure in ("ms", "nodes"):
      yield from _largest(section, figure)


def _right_only_in_one(section: Rows) -> Iterator[str]:
  """The counts, and the programs that only the other converter has right, with our reasons."""
  ours, theirs = CONVERTERS
  right = {
    converter: {name for name, row in section.items() if row[converter][0] == RIGHT}
    for converter in CONVERTERS
  }
  only_theirs = [name for name in section if name in right[theirs] - right[ours]]
  yield f"Right only as a file of {ours}: {len(right[ours] - right[theirs])}."
  yield f"Right only as a file of {theirs}: {len(only_theirs)}."
  yield ""
  if only_theirs:
    yield from (_reason(f"`{name}`", ours, section[name]) for name in only_theirs)
    yield ""


def _largest(section: Rows, figure: str) -> Iterator[str]:
  """The count of the ratios of a figure above the limit, and the largest of them."""
  ratios = _ratios(section, figure)
  above = {name: ratio for name, ratio in ratios.items() if ratio > _LIMIT}
  largest = heapq.nlargest(_LARGEST, above, key=lambda name: above[name])
  count = f"Ratio of {figure} above {_LIMIT}: {len(above)} of {len(ratios)}."
  yield f"{count} The largest:" if above else count
  yield ""
  for name in largest:
    ours, theirs = section[name][figure]
    yield f"- `{name}`: {above[name]:.1f}, {ours:.3g} to {theirs:.3g}"
  if largest:
    yield ""


def _counts(rows: Rows) -> list[int]:
  return [
    sum(row[converter][0] == verdict for row in rows.values())
    for converter in CONVERTERS
    for verdict in VERDICTS
  ]


def _medians(rows: Rows) -> Iterator[str]:
  for figure in FIGURES:
    ratios = _ratios(rows, figure)
    yield f"{statistics.median(ratios.values()):.2f}" if ratios else ""


def _ratios(rows: Rows, figure: str) -> dict[str, float]:
  """Ours by theirs, of the programs that are right in both and have the figure."""
  return {
    name: row[figure][0] / row[figure][1]
    for name, row in rows.items()
    if all(row[converter][0] == RIGHT for converter in CONVERTERS) and all(row[figure])
  }
