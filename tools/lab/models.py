"""Measures rows of docs/reports/models.md and writes the page; needs a checkout.

Usage: python -m jax2tf.tools.lab.models [SECTION ...] [--rows=regular expression] [--again].
It goes on where the last run stopped: build/models has the names of the rows that it measured.
"""

from __future__ import annotations

import importlib

import click
from absl import logging

from jax2tf.tools.lab import matrix, pages
from jax2tf.tools.lab.model_rows import SECTIONS


@click.command
@click.argument("sections", nargs=-1, type=click.Choice(SECTIONS))
@click.option(
  "--rows",
  default="",
  help="Measure only rows whose name matches this regular expression; the others keep their "
  "numbers.",
)
@click.option("--again", is_flag=True, help="Measure rows that the last run measured too.")
def main(sections: tuple[str, ...], rows: str, again: bool) -> None:
  """Measures rows of the sections, by default of all, and writes the page."""
  logging.set_verbosity(logging.WARNING)  # JAX logs the accelerators that it did not find
  for name in sections or SECTIONS:
    section = importlib.import_module(f"jax2tf.tools.lab.model_rows.{name}")
    matrix.measure("models", name, section, rows, again)
  pages.write("models")


if __name__ == "__main__":
  main()
