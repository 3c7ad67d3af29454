"""The reports, made of the numbers in docs/reports/data and of nothing else.

A page is a module here with a function `text`, and with a function `draw` if the page has pictures.
Each of its sections has the numbers of one file. `python -m jax2tf.tools.lab.pages` writes all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax2tf.tools.lab import reports

NAMES = ("artifacts", "coverage", "devices", "generation", "models", "serving", "speed", "targets")

# {name of a row: its numbers}
Rows = Mapping[str, Any]


def text(name: str) -> str:
  """The page of a report, of what is kept."""
  page: str = importlib.import_module(f"{__name__}.{name}").text()
  return page


def write(*names: str) -> None:
  """Writes pages with their pictures, by default all."""
  for name in names or NAMES:
    reports.page(name).write_text(text(name), encoding="utf-8")
    page = importlib.import_module(f"{__name__}.{name}")
    if hasattr(page, "draw"):
      page.draw()


def keep(name: str, numbers: str, section: Mapping[str, Any]) -> None:
  """Keeps the numbers of the installed JAX, and writes the page that shows them."""
  reports.update(numbers, section, [*section])
  write(name)


def newest_first(numbers: str) -> list[tuple[str, Rows]]:
  """(versions, the rows that are kept of them), the newest versions first."""
  return sorted(reports.read(numbers).items(), reverse=True)


def sections(
  page: str, tables: Mapping[str, tuple[str, Callable[[Rows], Sequence[str]]]]
) -> Iterator[str]:
  """The lines of sections.

  Args:
    page: the page, whose numbers are in `page`-`name`.
    tables: {name of a section: (what it is about, its tables of the rows of some versions)}
  """
  for name, (about, of_rows) in tables.items():
    yield from ("", *about.splitlines())
    for versions, rows in newest_first(f"{page}-{name}"):
      yield from ("", f"**{versions}**", "", *of_rows(rows))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], words: int = 1) -> list[str]:
  """The lines of a table.

  Args:
    head: the titles of the columns.
    rows: the cells. Whole numbers get thousands separators.
    words: the number of columns with words; numbers in the others stand on the right.
  """
  lines = [f"| {' | '.join(head)} |", "|" + "---|" * words + "---:|" * (len(head) - words)]
  return lines + [f"| {' | '.join(map(shown, row))} |" for row in rows]


def shown(value: Any) -> str:
  """A value in a cell."""
  if isinstance(value, dict):
    return ", ".join(f"{name}: {shown(each)}" for name, each in value.items())
  if isinstance(value, list):
    return ", ".join(map(shown, value))
  if isinstance(value, bool):
    return "yes" if value else "no"
  return value if isinstance(value, str) else f"{value:,}"
