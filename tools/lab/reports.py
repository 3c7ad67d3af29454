"""Reads and writes the reports: docs/reports, with their numbers in docs/reports/data, one row per
line."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

DOCS = pathlib.Path("docs")


def page(name: str) -> pathlib.Path:
  """The file of a report; docs/coverage.md is at the place to which README links."""
  return (DOCS if name == "coverage" else DOCS / "reports") / f"{name}.md"


def picture(name: str) -> pathlib.Path:
  """The chart of a report."""
  return DOCS / "reports" / name


def data(name: str) -> pathlib.Path:
  """The numbers of a report."""
  return DOCS / "reports" / "data" / f"{name}.json"


def read(name: str) -> dict[str, Any]:
  """The stored numbers; empty for a new report."""
  file = data(name)
  return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def keep(name: str, report: Mapping[str, Any]) -> None:
  """Writes the numbers, one row per line."""
  data(name).write_text(lines(report) + "\n", encoding="utf-8")


def update(
  name: str, section: Mapping[str, Any], order: Sequence[str], version: str = jax.__version__
) -> None:
  """Writes the rows of the installed JAX to a report, which keeps those of other versions.

  Args:
    name: the name of the numbers.
    section: row -> its numbers; other rows keep theirs.
    order: the names of all rows; the report drops any other.
    version: the key of the rows.
  """
  report = read(name)
  known = report.get(version, {}) | section
  report[version] = {row: known[row] for row in order if row in known}
  keep(name, rounded(report))


def rounded(report: Mapping[str, Any]) -> dict[str, Any]:
  """The numbers, of which those with a point have four digits."""
  found: dict[str, Any] = json.loads(
    json.dumps(report), parse_float=lambda text: float(f"{float(text):.4g}")
  )
  return found


def lines(value: Any, indent: str = "") -> str:
  """JSON in which each value without a dict inside takes one line."""
  members = (
    list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
  )
  if not any("{" in json.dumps(member) for member in members):
    return json.dumps(value)
  inner = indent + " "
  open_, close = "{}" if isinstance(value, dict) else "[]"
  keys = (
    [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(members)
  )
  rows = ",\n".join(
    f"{inner}{key}{lines(member, inner)}" for key, member in zip(keys, members, strict=True)
  )
  return f"{open_}\n{rows}\n{indent}{close}"
