"""Measures rows of a section of a page, and goes on where the last run stopped."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import tensorflow as tf
from rich.progress import track

from jax2tf.tools.lab import reports

VERSIONS = f"JAX {jax.__version__}, TensorFlow {tf.__version__}"


def measure(page: str, name: str, section: Any, pattern: str, again: bool) -> dict[str, Any]:
  """The numbers of all rows of a section, those of earlier runs too.

  build/`page` has the names of the rows that were measured here.

  Args:
    page: the page, whose numbers are in `page`-`name`.
    name: the name of the section.
    section: its module, with `rows` and `measured`.
    pattern: a regular expression; measures only rows whose names match.
    again: whether rows that the last run measured are measured too.
  """
  numbers_file = f"{page}-{name}"
  done = pathlib.Path("build", page, f"{name}-jax-{jax.__version__}.txt")
  done.parent.mkdir(parents=True, exist_ok=True)
  finished = done.read_text().splitlines() if done.exists() and not again else []
  missing = [row for row in section.rows() if re.search(pattern, row) and row not in finished]
  # Rows of libraries that are not installed stay.
  known = reports.read(numbers_file).get(VERSIONS, {})
  order = list(dict.fromkeys([*known, *section.rows()]))
  for row, numbers in track(section.measured(missing), name, total=len(missing)):
    reports.update(numbers_file, {row: numbers}, order, version=VERSIONS)
    with done.open("a") as stream:
      stream.write(f"{row}\n")
  section_numbers: dict[str, Any] = reports.read(numbers_file).get(VERSIONS, {})
  return section_numbers
