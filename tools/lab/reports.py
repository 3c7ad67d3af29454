"""Reads and writes the reports: docs/reports, with their numbers in docs/reports/data, one row per
line."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
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


def keep(
  name: str, report: Mapping[str, Any], markdown: Callable[[Any], str] | None = None
) -> None:
  """Writes the numbers, one row per line, and the page if it is given."""
  data(name).write_text(lines(report) + "\n", encoding="utf-8")
  if markdown:
    page(name).write_text(markdown(report), encoding="utf-8")


def update(
  name: str,
  section: Mapping[str, Any],
  order: Sequence[str],
  markdown: Callable[[Any], str] | None = None,
  picture: Callable[[Any], None] | None = None,
  version: str = jax.__version__,
) -> None:
  """Writes the rows of the installed JAX to a report and its picture, which keep those of other
  versions.

  Args:
    name: the name of the report.
    section: row -> its numbers; other rows keep theirs.
    order: the names of all rows; the report drops any other.
    markdown: a function from {JAX version: section} to the text of the page, if the report has a
      page of its name.
    picture: a function that draws the picture, if the report has one.
    version: the key of the rows.
  """
  report = read(name)
  known = report.get(version, {}) | section
  report[version] = {row: known[row] for row in order if row in known}
  rounded = json.loads(json.dumps(report), parse_float=lambda text: float(f"{float(text):.4g}"))
  keep(name, rounded, markdown)
  if picture:
    picture(rounded)


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
