"""Measures rows of docs/reports/models.md and writes the page; needs a checkout.

Usage: python -m jax2tf.tools.lab.models [SECTION ...] [--rows=regular expression] [--again].
It goes on where the last run stopped: build/models has the names of the rows that it measured.
"""

from __future__ import annotations

import importlib
import pathlib
import re

import click
import jax
import tensorflow as tf
from absl import logging
from rich.progress import track

from jax2tf.tools.lab import pages, reports
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
  versions = f"JAX {jax.__version__}, TensorFlow {tf.__version__}"
  for name in sections or SECTIONS:
    section = importlib.import_module(f"jax2tf.tools.lab.model_rows.{name}")
    done = pathlib.Path("build", "models", f"{name}-jax-{jax.__version__}.txt")
    done.parent.mkdir(parents=True, exist_ok=True)
    finished = done.read_text().splitlines() if done.exists() and not again else []
    missing = [row for row in section.rows() if re.search(rows, row) and row not in finished]
    # Rows of libraries that are not installed stay.
    known = reports.read(f"models-{name}").get(versions, {})
    order = list(dict.fromkeys([*known, *section.rows()]))
    for row, numbers in track(section.measured(missing), name, total=len(missing)):
      reports.update(f"models-{name}", {row: numbers}, order, version=versions)
      with done.open("a") as stream:
        stream.write(f"{row}\n")
  pages.write("models")


if __name__ == "__main__":
  main()
