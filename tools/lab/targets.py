"""Measures rows of docs/reports/targets.md and writes the page; needs a checkout.

Usage: python -m jax2tf.tools.lab.targets [SECTION ...] [--rows=regular expression] [--again]. It
goes on where the last run stopped. RUNTIMES_PYTHON=python3.10,python3.12 names interpreters for old
releases of TensorFlow and of ONNX Runtime.
"""

from __future__ import annotations

import importlib

import click
from absl import logging

from jax2tf.tools.lab import matrix, pages
from jax2tf.tools.lab.target_rows import SECTIONS


@click.command
@click.argument("sections", nargs=-1, type=click.Choice(SECTIONS))
@click.option("--rows", default="", help="Measure only rows that match this expression.")
@click.option("--again", is_flag=True, help="Measure rows that the last run measured too.")
def main(sections: tuple[str, ...], rows: str, again: bool) -> None:
  """Measures rows of the sections, by default of all, and writes the page. Fails if there is a
  wrong answer without an error, or if the exporter states a release that is too old."""
  logging.set_verbosity(logging.WARNING)  # JAX logs the accelerators that it did not find
  faults = []
  for name in sections or SECTIONS:
    section = importlib.import_module(f"jax2tf.tools.lab.target_rows.{name}")
    if name == "primitives":
      faults += section.sweep(again)
    else:
      numbers = matrix.measure("targets", name, section, rows, again)
      faults += section.faults(numbers) if hasattr(section, "faults") else []
  pages.write("targets")
  if faults:
    raise click.ClickException("\n".join(faults))


if __name__ == "__main__":
  main()
