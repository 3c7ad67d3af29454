"""Writes docs/reports/jax-tests.md and docs/reports/data/jax-tests.json."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from jax2tf.tools.lab import reports
from jax2tf.tools.lab.jax_tests import causes

NAME = "jax-tests"
_STATUSES = {
  "agree": "agree",
  "rounding": "differ by rounding",
  "refused": "refused",
  "wrong": "wrong",
  "crash": "crash",
  "untraceable": "untraceable",
}


def summary(rows: Iterable[Mapping[str, Any]], sample: Mapping[str, Any]) -> dict[str, Any]:
  """The numbers of one configuration, as the data has them.

  Args:
    rows: of the cases.
    sample: what was run: the options that chose the cases, and the tests that ran.
  """
  files: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  ways: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  against: collections.Counter[str] = collections.Counter()
  refused: collections.Counter[str] = collections.Counter()
  failed: dict[str, dict[str, Any]] = {}
  for row in rows:
    file = row["test"].partition("::")[0].removesuffix(".py")
    files[file][row["status"]] += 1
    ways[row["way"]][row["status"]] += 1
    if row["status"] in ("agree", "rounding") and row.get("against"):
      against[row["against"]] += 1
    if row["status"] == "refused":
      refused[causes.short(row["cause"])] += 1
    if row["status"] in ("wrong", "crash"):
      failure = failed.setdefault(f"{row['status']}: {causes.kind_of(row)}", _first(row))
      failure["cases"] += 1
  return {
    "sample": dict(sample),
    "files": {file: dict(counts) for file, counts in sorted(files.items())},
    "ways": {way: dict(counts) for way, counts in sorted(ways.items())},
    "against": dict(against),
    "refused": dict(refused.most_common()),
    "failed": dict(sorted(failed.items(), key=lambda item: -item[1]["cases"])),
  }


def write(configuration: str, numbers: Mapping[str, Any]) -> None:
  """Writes one configuration, such as "0.12.0 x64", to the report, which keeps the others."""
  report = reports.read(NAME) | {configuration: numbers}
  ordered = {name: report[name] for name in sorted(report, key=_order)}
  reports.keep(NAME, ordered, markdown)


def faults(numbers: Mapping[str, Any]) -> list[str]:
  """One sentence for each kind of failure, and for each refusal that no limitation tells."""
  failures = numbers["failed"].items()
  failed = [f"{kind} ({one['cases']} as {one['first']}): {one['detail']}" for kind, one in failures]
  untold = [cause for cause in numbers["refused"] if causes.limitation(cause) is None]
  return failed + [f"refused, without a line in docs/limitations.md: {cause}" for cause in untold]


def markdown(report: Mapping[str, Any]) -> str:
  """The page."""
  text = [_HEAD, *_by_configuration(report)]
  for configuration, numbers in report.items():
    text += ["", f"## By file, JAX {configuration}", "", *_by_file(numbers["files"])]
  sections = {"Ways": _by_way, "Refused": _refused, "Failures by cause": _failed}
  for title, section in sections.items():
    text += ["", f"## {title}", "", *section(report)]
  return "\n".join(text) + "\n"


def _first(row: Mapping[str, Any]) -> dict[str, Any]:
  return {"cases": 0, "first": row["test"], "detail": row.get("detail", "")[:200]}


def _order(configuration: str) -> tuple[list[int], str]:
  """By version, then without 64-bit types first."""
  version, _, types = configuration.partition(" ")
  return [int(part) for part in version.split(".") if part.isdigit()], types


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
  head = list(head)
  lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
  return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]


def _counts(counts: Mapping[str, int]) -> list[int]:
  cases = sum(number for status, number in counts.items() if status != "untraceable")
  return [cases, *(counts.get(status, 0) for status in _STATUSES)]


def _total(tables: Iterable[Mapping[str, int]]) -> collections.Counter[str]:
  total: collections.Counter[str] = collections.Counter()
  for counts in tables:
    total.update(counts)
  return total


def _by_configuration(report: Mapping[str, Any]) -> list[str]:
  rows = []
  for configuration, numbers in report.items():
    tests = numbers["sample"]["tests"]
    rows.append([f"JAX {configuration}", tests, *_counts(_total(numbers["files"].values()))])
  return _table(["", "tests", "cases", *_STATUSES.values()], rows)


def _by_file(files: Mapping[str, Mapping[str, int]]) -> list[str]:
  rows: list[list[Any]] = [[f"`{file}`", *_counts(counts)] for file, counts in files.items()]
  rows.append(["all", *_counts(_total(files.values()))])
  return _table(["file", "cases", *_STATUSES.values()], rows)


def _by_way(report: Mapping[str, Any]) -> list[str]:
  ways: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  against: collections.Counter[str] = collections.Counter()
  for numbers in report.values():
    against.update(numbers["against"])
    for way, counts in numbers["ways"].items():
      ways[way].update(counts)
  rows: list[list[Any]] = [[way, *_counts(counts)] for way, counts in ways.items()]
  table = _table(["way", "cases", *_STATUSES.values()], rows)
  if not against:
    return table
  rows = [[what, number, _AGAINST[what]] for what, number in against.most_common()]
  return [*table, "", _OTHERS, "", *_table(["compared with", "cases", "why"], rows)]


def _refused(report: Mapping[str, Any]) -> list[str]:
  total = _total(numbers["refused"] for numbers in report.values())
  if not total:
    return ["None."]
  head = ["cause", "cases", "line of [limitations.md](../limitations.md)"]
  counts = total.most_common()
  return _table(head, [[cause, n, causes.limitation(cause) or "none"] for cause, n in counts])


def _failed(report: Mapping[str, Any]) -> list[str]:
  rows = [
    [kind.replace("|", "/"), one["cases"], configuration, f"`{one['first']}`"]
    for configuration, numbers in report.items()
    for kind, one in numbers["failed"].items()
  ]
  return _table(["cause", "cases", "configuration", "first test"], rows) if rows else ["None."]


_HEAD = """# JAX's own unit tests

Generated by `make jax-tests JAX_TESTS=.../tests`; do not edit. `tests/` is that of JAX's public
repository at the installed release, or the commit nearest to it; nothing of it is part of this
project. The tests run as they are. What they compute with JAX, the converted function computes too.

- **Tests** are chosen by a seed: two parametrizations of each test method, or a tenth where there
  are many. Those that need several devices, Pallas or a GPU are left out.
- A **case** is one call of a function in one way. Each call is computed in a graph; by the seed
  some are also computed eagerly, compiled by XLA, or with a symbolic first axis. Gradients are
  those of a tape; some cases have second gradients and tangents.
- **Differ by rounding**: beyond the tolerance of JAX's test, but by at most 30 of them, or 240
  machine epsilons (8 of types of 16 bits), of the largest number of the result; or by at most 30
  times what JAX's own result changes with the last bits of the arguments.
- **Refused**: a `LoweringError`, each with its line below. **Untraceable**: JAX itself refuses;
  these are not counted as cases.
"""
_OTHERS = "Results that differ from those of `jax.jit` are compared with something else:"
_AGAINST = {
  "op by op": "JAX itself differs without `jax.jit`, and has our result",
  "what is determined": "JAX leaves signs, bases or the order of equal things open",
  "determined signs": "derivatives of vectors, after their signs are determined",
  "other last bits": "JAX's own result changes as much with the last bits of the arguments",
  "the arguments": "terms as large as the arguments cancel to some of their last bits, in JAX and "
  "in ours",
}
