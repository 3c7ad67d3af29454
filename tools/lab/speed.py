"""Measures rows of docs/reports/speed.md and writes the page; needs a checkout.

Usage: python -m jax2tf.tools.lab.speed [SECTION ...] [--rows=regular expression]. The calls of a
row run interleaved in one process, so that noise of the machine affects all and ratios stay valid.
"""

from __future__ import annotations

import importlib
import re

import click
import jax
import tensorflow as tf
from absl import logging
from rich.progress import track

from jax2tf.tools.lab import pages, reports
from jax2tf.tools.lab.speed_rows import SECTIONS


@click.command
@click.argument("sections", nargs=-1, type=click.Choice(SECTIONS))
@click.option(
  "--rows",
  default="",
  help="Measure only rows whose name matches this regular expression; the others keep their "
  "numbers.",
)
def main(sections: tuple[str, ...], rows: str) -> None:
  """Measures rows of the sections, by default of all, and writes the page."""
  logging.set_verbosity(logging.WARNING)  # JAX logs the accelerators that it did not find
  versions = f"JAX {jax.__version__}, TensorFlow {tf.__version__}"
  for name in sections or SECTIONS:
    section = importlib.import_module(f"jax2tf.tools.lab.speed_rows.{name}")
    chosen = [row for row in section.ROWS if re.search(rows, row)]
    for row in track(chosen, name):  # an interrupted run keeps the finished rows
      numbers = {row: section.measured(row)}
      reports.update(f"speed-{name}", numbers, list(section.ROWS), version=versions)
  pages.write("speed")


if __name__ == "__main__":
  main()
