"""Runs all closed models, for docs/reports/artifacts.md; needs a checkout.

`python -m jax2tf.tools.lab.closed_models` resumes where it stopped. Results are lines in
build/closed-models/, one file for each JAX version.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import click

from jax2tf.tools.lab import pages, sweeps, workers
from jax2tf.tools.lab.closed_models.rows import Row, run
from jax2tf.tools.lab.options import commas
from tests.support import stored_artifacts as stored

_PATIENCE = 600  # seconds, beyond which a model hangs


def _names() -> list[str]:
  with tempfile.TemporaryDirectory() as folder:
    closed = [path.name for path in stored.closed_models(Path(folder))]
  return [*closed, *(f"torch-{name}" for name in stored.torch_modules())]


def _lost(error: workers.LostError, name: str) -> Row:
  return Row(name, f"lost: {error}")


@click.command
@click.option("--models", default="", callback=commas, help="Run only these models.")
@click.option("--fresh", is_flag=True, help="Discard earlier results of the chosen models.")
def main(models: list[str], fresh: bool) -> None:
  """Runs the missing models and writes the report."""
  os.environ["KERAS_BACKEND"] = "jax"  # of the processes, which write Keras' models directly
  names = models or _names()
  tasks = [(name,) for name in names]
  options: dict[str, Any] = {"renewed_after": 1, "seconds": _PATIENCE, "fresh": fresh}
  results = sweeps.run("closed-models", run, tasks, _lost, key=("model",), **options)
  rows = {name: results[(name,)] for name in names}
  for name, row in rows.items():
    print(name, row)
  if not models:
    numbers = {name: {k: v for k, v in row.items() if k != "model"} for name, row in rows.items()}
    pages.keep("artifacts", "artifacts-models", numbers)


if __name__ == "__main__":
  main()
