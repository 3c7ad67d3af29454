"""What docs/reports/data/jax-tests.json has, of which docs/coverage.md is made."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from jax2tf.tools.lab import causes, pages, reports

NAME = "jax-tests"


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
  reports.keep(NAME, ordered)
  pages.write("coverage")


def faults(numbers: Mapping[str, Any]) -> list[str]:
  """One sentence for each kind of failure, and for each refusal that no limitation tells."""
  failures = numbers["failed"].items()
  failed = [f"{kind} ({one['cases']} as {one['first']}): {one['detail']}" for kind, one in failures]
  untold = [cause for cause in numbers["refused"] if causes.limitation(cause) is None]
  return failed + [f"refused, without a line in docs/limitations.md: {cause}" for cause in untold]


def _first(row: Mapping[str, Any]) -> dict[str, Any]:
  return {"cases": 0, "first": row["test"], "detail": row.get("detail", "")[:200]}


def _order(configuration: str) -> tuple[list[int], str]:
  """By version, then without 64-bit types first."""
  version, _, types = configuration.partition(" ")
  return [int(part) for part in version.split(".") if part.isdigit()], types
