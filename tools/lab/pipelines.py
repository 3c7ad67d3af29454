"""Runs files of rows through models with `jax2tf batch`, bare processes and engines:
docs/reports/serving.md.

Usage: python -m jax2tf.tools.lab.pipelines [--parts=mlp,encoder,engines] --beam PYTHON --spark
PYTHON. Each way is a program. It runs first with few rows, which is its start-up, and then with
all. The outputs are compared. What fails is listed at the end, with the exit code 1.
"""

from __future__ import annotations

import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from jax2tf.tools.batch import THREADS
from jax2tf.tools.lab import options, pages, pipeline_data, pipeline_runs, reports

# {part: (model, number of rows, ways)}. The engines of the last part handle elements, or
# batches as small as Spark's.
_FAST = ("batch 1", "batch 2", "bare 1", "bare 2", "ray", "dask", "beam tables")
_PARTS = {
  "mlp": ("mlp", 240_000, _FAST),
  "encoder": ("encoder", 3_200, _FAST),
  "engines": ("mlp", 32_000, ("batch 2", "beam elements", "spark")),
}
_FEW = 16  # rows of the first run
_ROUNDS = 3  # the first has cold caches
_PATIENCE = 500  # seconds for a run
_PYTHON = click.Path(exists=True, dir_okay=False)


def command(way: str, name: str, pythons: Mapping[str, str | None]) -> list[str]:
  """The program of a way for a model, without the folders of the model, the rows and the results.

  Raises:
    ValueError: there is no environment with the engine.
  """
  kind, _, number = way.partition(" ")
  if kind == "batch":
    return [sys.executable, "-m", "jax2tf.tools.cli", "batch", f"--workers={number}"]
  python = pythons.get(kind, sys.executable)
  if python is None:
    raise ValueError("its environment was not given: --beam or --spark")
  return [python, "-m", pipeline_runs.__name__, way, name]


def run(
  program: list[str], model: pathlib.Path, source: pathlib.Path, target: pathlib.Path
) -> float:
  """The seconds of a program.

  Raises:
    RuntimeError: it failed; the message has the last line that it wrote.
    subprocess.TimeoutExpired: it did not end.
  """
  variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **dict.fromkeys(THREADS, "1")}
  target.mkdir()
  start = time.monotonic()
  # a pipe would wait for processes that an engine leaves behind
  with tempfile.TemporaryFile() as output:
    done = subprocess.run(
      [*program, str(model), f"{source}/*.parquet", str(target)],
      stdout=output,
      stderr=output,
      timeout=_PATIENCE,
      check=False,
      env=variables,
    )
    seconds = time.monotonic() - start
    output.seek(0)
    last = output.read().decode(errors="replace").strip().splitlines()[-1:]
  if done.returncode:
    raise RuntimeError(f"it ended with {done.returncode}: {''.join(last)[:300]}")
  return seconds


def measured(part: str, work: pathlib.Path, pythons: Mapping[str, str | None]) -> dict[str, Any]:
  """The rate and the start-up of each way in each round, and what failed.

  The outputs of the first way are compared with JAX, those of the others with the first.
  """
  name, rows, ways = _PARTS[part]
  model, few, every = work / "model", work / "few", work / "rows"
  pipeline_data.save(name, model)
  pipeline_data.write(name, few, _FEW)
  pipeline_data.write(name, every, rows)
  rate: dict[str, list[float]] = collections.defaultdict(list)
  start: dict[str, list[float]] = collections.defaultdict(list)
  faults: dict[str, str] = {}
  expected: np.ndarray | None = None
  for turn in range(_ROUNDS):
    for way in (way for way in ways if way not in faults):
      targets = [work / f"{way}-{kind}-{turn}" for kind in ("few", "all")]
      try:
        program = command(way, name, pythons)
        start_seconds = run(program, model, few, targets[0])
        seconds = run(program, model, every, targets[1]) - start_seconds
        found = pipeline_data.answers(rows, targets[1])
        if expected is None:
          of_jax = pipeline_data.of_jax(name, every)
          pipeline_data.compare(found[: len(of_jax)], of_jax)
          expected = found
        pipeline_data.compare(found, expected)
      except Exception as error:  # an engine may fail in any way
        faults[way] = f"{part}, {way}: {error}"
        print(faults[way], flush=True)
        continue
      rate[way].append(rows / seconds)
      start[way].append(start_seconds)
      print(f"{part}, {way}: {rate[way][-1]:,.0f} rows/s after {start_seconds:.1f} s", flush=True)
  return {
    "rows": rows,
    "rows_per_second": dict(rate),
    "start_seconds": dict(start),
    "faults": [*faults.values()],
  }


@click.command
@click.option(
  "--parts", callback=options.commas, default=",".join(_PARTS), help="The parts to measure."
)
@click.option("--beam", type=_PYTHON, help="The Python of an environment with Beam.")
@click.option("--spark", type=_PYTHON, help="The Python of an environment with Spark.")
def main(parts: list[str], **pythons: str | None) -> None:
  """Measures all parts, and writes the report after each."""
  faults = []
  for part in parts:
    with tempfile.TemporaryDirectory() as folder:
      numbers = measured(part, pathlib.Path(folder), pythons)
    reports.update("pipelines", {part: numbers}, [*_PARTS])
    pages.write("serving")
    faults += numbers["faults"]
  if faults:
    raise SystemExit("\n".join(faults))


if __name__ == "__main__":
  main()
