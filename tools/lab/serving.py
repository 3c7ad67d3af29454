"""Measures `jax2tf serve` and checks each of its answers: docs/reports/serving.md.

Usage: python -m jax2tf.tools.lab.serving [--parts=load,soak,requests] [--share=0.1]

It fails if an answer is wrong or lost, if a server starts too late, or if its memory grows.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import click
from absl import logging

from jax2tf.tools.lab import bounds, load, options, pages, reports, server_fuzz

# (a folder, the share of a whole measurement) -> (its numbers, its faults)
Part = Callable[[pathlib.Path, float], tuple[dict[str, Any], list[str]]]
PARTS: dict[str, tuple[Part, str]] = {
  "load": (load.measure, "serving-load"),
  "soak": (load.soak, "serving-soak"),
  "requests": (server_fuzz.measure, "server-fuzz"),
}


@click.command
@click.option("--parts", callback=options.commas, default=",".join(PARTS), help="What to measure.")
@click.option(
  "--share",
  type=click.FloatRange(0.001, 1.0),
  default=1.0,
  help="Of the time and the requests of a whole measurement. A shorter one is not written.",
)
def main(parts: list[str], share: float) -> None:
  """Prints and writes the figures of each part. Raises SystemExit if there is a fault."""
  logging.set_verbosity(logging.WARNING)
  faults = []
  for part in parts:
    measure, name = PARTS[part]
    about = bounds.machine()
    with tempfile.TemporaryDirectory() as folder:
      numbers, of_part = measure(pathlib.Path(folder), share)
    report = about | numbers
    print(reports.lines(report))
    if share == 1:
      pages.keep("serving", name, report)
    faults += [f"{part}: {fault}" for fault in of_part]
  if faults:
    raise SystemExit(f"{len(faults)} faults, such as: {faults[0]}")


if __name__ == "__main__":
  main()
