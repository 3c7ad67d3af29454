"""Runs files of rows through models with `jax2tf batch`, bare processes and engines:
docs/reports/serving.md.

Usage: python -m jax2tf.tools.lab.pipelines [--parts=mlp,encoder,engines,millions] --beam
PYTHON --spark PYTHON. All ways run once in each round; a ratio is of two rates of one round. What
fails or misses its bound is listed at the end, with the exit code 1.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import click
import numpy as np
import psutil

from jax2tf.tools.batch import THREADS
from jax2tf.tools.lab import bounds, options, pages, pipeline_data, pipeline_runs, reports

_PARTS = ("mlp", "encoder", "engines", "millions")
_ROUNDS, _ENGINE_ROWS = 3, 32_000
_PYTHON = click.Path(exists=True, dir_okay=False)
_SECONDS = 180.0  # that `millions` is to last
_EACH = 1_000_000  # rows of a file of `millions`
# writes the results to a folder -> "seconds", "start" and "shares"
Way = Callable[[pathlib.Path], Mapping[str, Any]]


def rates(
  name: str,
  rows: int,
  ways: Mapping[str, Way],
  source: pathlib.Path,
  rounds: int,
  work: pathlib.Path,
) -> dict[str, Any]:
  """The rate and the start-up of each way in each round, what failed, and the smallest share of a
  Ray actor.

  The outputs of the first way are compared with JAX, those of the others with the first.
  """
  rate: dict[str, list[float]] = collections.defaultdict(list)
  start: dict[str, list[float]] = collections.defaultdict(list)
  faults: dict[str, str] = {}
  shares: list[float] = []
  expected: np.ndarray | None = None
  for turn in range(rounds):
    for way in (way for way in ways if way not in faults):
      target = work / f"{name}-{way.replace(' ', '')}-{turn}"
      try:
        said = ways[way](target)
        found = pipeline_data.answers(rows, target)
        if expected is None:
          of_jax = pipeline_data.of_jax(name, source)
          pipeline_data.compare(found[: len(of_jax)], of_jax)
          expected = found
        pipeline_data.compare(found, expected)
      except Exception as error:  # an engine may fail in any way
        faults[way] = f"{name}, {way}: {error}"
        print(faults[way], flush=True)
        continue
      rate[way].append(rows / said["seconds"])
      start[way].append(said["start"])
      if way == "ray":
        shares.append(min(said["shares"]) if len(said["shares"]) > 1 else 0.0)
      print(f"{name}, {way}: {rate[way][-1]:,.0f} rows/s after {start[way][-1]:.1f} s", flush=True)
  return {
    "rows": rows,
    "rows_per_second": dict(rate),
    "start_seconds": dict(start),
    "ray_shares": shares,
    "faults": [*faults.values()],
  }


def models(name: str, work: pathlib.Path, rounds: int, beam: str | None) -> dict[str, Any]:
  """All ways that may be fast, on one of two models."""
  model, source = _prepared(name, pipeline_data.ROWS[name], work)
  engine = _engines(name, model, source)
  ways = {
    "batch 1": _ours(model, source, 1),
    "batch 2": _ours(model, source, 2),
    "bare 1": engine("bare1"),
    "bare 2": engine("bare2"),
    "ray": engine("ray"),
    "dask": engine("dask"),
    "beam tables": engine("beam", beam),
  }
  return rates(name, pipeline_data.ROWS[name], ways, source, rounds, work)


def engines(work: pathlib.Path, beam: str | None, spark: str | None) -> dict[str, Any]:
  """Engines that handle elements, or batches as small as Spark's."""
  model, source = _prepared("mlp", _ENGINE_ROWS, work)
  engine = _engines("mlp", model, source)
  ways = {
    "batch 2": _ours(model, source, 2),
    "beam elements": engine("beam-elements", beam),
    "spark": engine("spark", spark),
  }
  return rates("mlp", _ENGINE_ROWS, ways, source, 1, work)


def _prepared(name: str, rows: int, work: pathlib.Path) -> tuple[str, pathlib.Path]:
  pipeline_data.save(name, work / "model")
  pipeline_data.write(name, work / "rows", rows)
  return str(work / "model"), work / "rows"


def _ours(model: str, source: pathlib.Path, workers: int) -> Way:
  def run(target: pathlib.Path) -> Mapping[str, Any]:
    outcome = pipeline_data.batch(model, str(source), target, workers)
    if outcome.failed or outcome.bad:
      raise ValueError(f"{outcome.bad} bad rows, failed: {outcome.failed}")
    return {"seconds": outcome.seconds - outcome.started, "start": outcome.started}

  return run


def _engines(name: str, model: str, source: pathlib.Path) -> Callable[..., Way]:
  def engine(kind: str, python: str | None = sys.executable) -> Way:
    def run(target: pathlib.Path) -> Mapping[str, Any]:
      if python is None:
        raise ValueError("its environment was not given: --beam or --spark")
      target.mkdir(exist_ok=True)
      return _run(python, kind, name, model, str(source), str(target))

    return run

  return engine


def _run(python: str, *words: str) -> dict[str, Any]:
  """What a run of `pipeline_runs` prints.

  Raises:
    RuntimeError: it failed; the message has the last line that it wrote.
    subprocess.TimeoutExpired: it did not end.
  """
  command = [python, "-m", pipeline_runs.__name__, *words]
  variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **dict.fromkeys(THREADS, "1")}
  # a pipe would wait for processes that an engine leaves behind
  with tempfile.TemporaryFile() as errors:
    done = subprocess.run(
      command, stdout=subprocess.PIPE, stderr=errors, timeout=500, check=False, env=variables
    )
    errors.seek(0)
    last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
  if done.returncode:
    raise RuntimeError(f"it ended with {done.returncode}: {''.join(last)[:300]}")
  # Ray and Beam also print to standard output.
  found: dict[str, Any] = json.loads(
    done.stdout[done.stdout.rindex(b'{"seconds"') :].splitlines()[0]
  )
  return found


def millions(work: pathlib.Path) -> dict[str, Any]:
  """Many rows with a small model: memory of the workers, and the ratio of the last minute's rate to
  the first's."""
  model, target = str(work / "model"), work / "results"
  pipeline_data.save("small", pathlib.Path(model))
  pipeline_data.write("small", work / "try", 8 * _EACH, 8)
  tried = pipeline_data.batch(model, str(work / "try"), work / "tried", 2)
  files = max(1, int(_SECONDS * tried.rows / (tried.seconds - tried.started)) // _EACH)
  pipeline_data.write("small", work / "rows", files * _EACH, files)
  series: list[tuple[float, int, int]] = []  # seconds, files, bytes
  ended, begin = threading.Event(), time.monotonic()

  def watch() -> None:
    while not ended.wait(1.0):
      memory = [0]
      for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
          memory.append(child.memory_info().rss)
      series.append(
        (time.monotonic() - begin, len(list(target.glob("part-*.parquet"))), max(memory))
      )

  watcher = threading.Thread(target=watch)
  watcher.start()
  try:
    outcome = pipeline_data.batch(model, str(work / "rows"), target, 2)
  finally:
    ended.set()
    watcher.join()
  pipeline_data.check_files(_EACH, target)
  running = [each for each in series if each[1]]
  span = min(60.0, (running[-1][0] - running[0][0]) / 2)
  first = [each for each in running if each[0] <= running[0][0] + span]
  last = [each for each in running if each[0] >= running[-1][0] - span]
  speed = [(part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0]) for part in (first, last)]
  memory = [max(each[2] for each in part) / 2**20 for part in (first, last)]
  found = {
    "rows": outcome.rows,
    "seconds": outcome.seconds,
    "start_seconds": outcome.started,
    "window_seconds": span,
  }
  return found | {"last_by_first": speed[1] / speed[0], "megabytes": memory}


@click.command
@click.option(
  "--parts", callback=options.commas, default=",".join(_PARTS), help="The parts to measure."
)
@click.option("--beam", type=_PYTHON, help="The Python of an environment with Beam.")
@click.option("--spark", type=_PYTHON, help="The Python of an environment with Spark.")
def main(parts: list[str], beam: str | None, spark: str | None) -> None:
  """Measures all parts, and writes the report after each."""
  report: dict[str, Any] = {}
  measure: dict[str, Callable[[pathlib.Path], dict[str, Any]]] = {
    "mlp": lambda work: models("mlp", work, _ROUNDS, beam),
    "encoder": lambda work: models("encoder", work, _ROUNDS, beam),
    "engines": lambda work: engines(work, beam, spark),
    "millions": millions,
  }
  for part in parts:
    with tempfile.TemporaryDirectory() as folder:
      report[part] = measure[part](pathlib.Path(folder))
    report[part]["load_at_end"] = os.getloadavg()[0]
    reports.update("pipelines", {part: report[part]}, _PARTS)
    pages.write("serving")
  if missed := [text for part in parts for text in bounds.missed(part, report[part])]:
    raise SystemExit("\n".join(["missed:", *missed]))


if __name__ == "__main__":
  main()
