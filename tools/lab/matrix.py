"""Measures rows of docs/reports/speed.md, models.md, targets.md, devices.md and generation.md and
writes the pages; needs a checkout.

Usage: python -m jax2tf.tools.lab.matrix [PAGE [SECTION ...]] [--rows=regular expression] [--again].
It goes on where the last run stopped. RUNTIMES_PYTHON=python3.10,python3.12 names interpreters for
old releases of TensorFlow and of ONNX Runtime.
"""

from __future__ import annotations

import importlib
import pathlib
import re
from typing import Any

import click
import jax
import tensorflow as tf
from absl import logging
from rich.progress import track

from jax2tf.tools.lab import pages, reports

VERSIONS = f"JAX {jax.__version__}, TensorFlow {tf.__version__}"
# The sections of each page are modules of a package, each with `rows()`, the names of its rows, and
# `measured(names)`, which yields (name, numbers) for each.
_PACKAGES = {
  "speed": "speed_rows",
  "models": "model_rows",
  "targets": "target_rows",
  "devices": "device_rows",
  "generation": "generation_rows",
}


@click.command
@click.argument("page", type=click.Choice([*_PACKAGES]), required=False)
@click.argument("sections", nargs=-1)
@click.option(
  "--rows",
  default="",
  help="Measure only rows whose name matches this regular expression; the others keep their "
  "numbers.",
)
@click.option("--again", is_flag=True, help="Measure rows that the last run measured too.")
def main(page: str | None, sections: tuple[str, ...], rows: str, again: bool) -> None:
  """Measures rows of the sections, by default of all, and writes the page. Fails if there is a
  wrong answer without an error, or if the exporter states a release that is too old."""
  logging.set_verbosity(logging.WARNING)  # JAX logs the accelerators that it did not find
  faults: list[str] = []
  for each in [page] if page else _PACKAGES:
    package = importlib.import_module(f"jax2tf.tools.lab.{_PACKAGES[each]}")
    if unknown := [name for name in sections if name not in package.SECTIONS]:
      raise click.UsageError(f"{unknown[0]!r} is none of {', '.join(package.SECTIONS)}")
    for name in sections or package.SECTIONS:
      section = importlib.import_module(f"{package.__name__}.{name}")
      if hasattr(section, "sweep"):
        faults += section.sweep(again)
        continue
      numbers = measure(each, name, section, rows, again)
      faults += section.faults(numbers) if hasattr(section, "faults") else []
    pages.write(each)
  if faults:
    raise click.ClickException("\n".join(faults))


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
  rows = section.rows()
  missing = [row for row in rows if re.search(pattern, row) and row not in finished]
  # Rows of libraries that are not installed stay.
  known = reports.read(numbers_file).get(VERSIONS, {})
  order = list(dict.fromkeys([*known, *rows]))
  for row, numbers in track(section.measured(missing), name, total=len(missing)):
    reports.update(numbers_file, {row: numbers}, order, version=VERSIONS)
    with done.open("a") as stream:
      stream.write(f"{row}\n")
  section_numbers: dict[str, Any] = reports.read(numbers_file).get(VERSIONS, {})
  return section_numbers


if __name__ == "__main__":
  main()
