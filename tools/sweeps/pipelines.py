"""Runs files of rows through two models with `jax2tf batch`, bare processes and engines: the report pipelines.

Usage: python -m jax2tf.tools.sweeps.pipelines [--parts=mlp,encoder,kills,millions]. With --resume it skips parts that the report has.
Rates exclude the time until a process has loaded the model. All ways run once in each round; a ratio is of two rates of one round.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import click
import psutil

from jax2tf.tools.sweeps import options, pipeline_data, pipeline_kills, pipeline_runs, reports

# (a way, another way, smallest accepted ratio of their rates)
ASKED = {
  "mlp": [("ray", "bare 2", 0.6), ("beam tables", "bare 1", 0.8)],
  "encoder": [("batch 2", "batch 1", 1.8), ("batch 2", "bare 2", 0.95), ("ray", "bare 2", 0.95), ("beam tables", "bare 1", 0.8)],
}


def rates(name: str, work: pathlib.Path, rounds: int, beam: str | None) -> dict[str, Any]:
  """Rows per second for each way in each round, and the share of each Ray actor."""
  model, source, rows = str(work / f"{name}-model"), str(work / f"{name}-rows"), pipeline_data.ROWS[name]
  pipeline_data.save(name, pathlib.Path(model))
  pipeline_data.write(name, pathlib.Path(source), rows)
  measured: dict[str, list[float]] = collections.defaultdict(list)
  shares: list[float] = []

  def ours(workers: int) -> Callable[[pathlib.Path], float]:
    def run(target: pathlib.Path) -> float:
      outcome = pipeline_data.batch(model, source, target, workers)
      return rows / (outcome.seconds - outcome.started)

    return run

  def other(kind: str) -> Callable[[pathlib.Path], float]:
    def run(target: pathlib.Path) -> float:
      target.mkdir()
      said = _run(beam if beam and kind == "beam" else sys.executable, kind, name, model, source, str(target))
      shares[:] = said.get("shares") or shares
      return rows / said["seconds"]

    return run

  ways = {
    "batch 1": ours(1),
    "batch 2": ours(2),
    "bare 1": other("bare1"),
    "bare 2": other("bare2"),
    "ray": other("ray"),
    "dask": other("dask"),
  } | ({"beam tables": other("beam")} if beam else {})
  for turn in range(rounds):
    for way, run in list(ways.items()):
      target = work / f"{name}-{way.replace(' ', '')}-{turn}"
      try:
        measured[way].append(run(target))
        pipeline_data.check(rows, target)
      except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{name}, {way}: {error}", flush=True)
        del ways[way]
      else:
        print(f"{name}, {way}: {measured[way][-1]:,.0f} rows/s", flush=True)
  return {"rows": rows, "rows_per_second": dict(measured), "ray_shares": shares}


def _run(python: str, *words: str) -> dict[str, Any]:
  command = [python, "-m", pipeline_runs.__name__, *words]
  variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", **os.environ}
  done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=500, check=True, env=variables)
  # Ray and Beam also print to standard output.
  found: dict[str, Any] = json.loads(done.stdout[done.stdout.rindex(b'{"seconds"') :].splitlines()[0])
  return found


def kills(work: pathlib.Path, beam: str | None) -> dict[str, Any]:
  """Kills a worker during a write and in the middle, for `jax2tf batch` and each engine."""
  model, source = pipeline_kills.prepare(work)

  def ours(target: pathlib.Path) -> None:
    target.rmdir()
    pipeline_data.batch(model, source, target, 2)

  def engine(way: str, python: str = sys.executable) -> pipeline_kills.Run:
    return lambda target: (None, _run(python, way, "small", model, source, str(target)))[0]

  of_ray = pipeline_kills.process_of("ray::", lambda process: ".submit" in " ".join(process.cmdline()))
  of_beam = pipeline_kills.process_of("sdk_worker", lambda process: pipeline_kills.has_open(process, source))
  ways = {
    "jax2tf batch": (ours, pipeline_kills.named_by_file, False),
    "Dask": (engine("dask"), pipeline_kills.named_by_file, False),
    "Ray": (engine("ray"), of_ray, False),
  } | ({"Beam's DirectRunner": (engine("beam-processes", beam), of_beam, True)} if beam else {})
  report = {}
  for name, (run, victim, fails) in ways.items():
    folder = work / name.replace(" ", "-")
    folder.mkdir()
    report[name] = pipeline_kills.kills(folder, run, victim, fails=fails)
    print(name, report[name], flush=True)
  return report


def millions(work: pathlib.Path, rows: int) -> dict[str, Any]:
  """Many rows with a small model: memory of the workers, and the ratio of the last minute's rate to the first's."""
  model, source, target = str(work / "many-model"), str(work / "many-rows"), work / "many"
  pipeline_data.save("small", pathlib.Path(model))
  pipeline_data.write("small", pathlib.Path(source), rows, 100)
  series: list[tuple[float, int, int]] = []  # seconds, files, bytes
  ended, begin = threading.Event(), time.monotonic()

  def watch() -> None:
    while not ended.wait(1.0):
      workers = [child.memory_info().rss for child in psutil.Process().children() if child.is_running()]
      series.append((time.monotonic() - begin, len(list(target.glob("part-*.parquet"))), max(workers, default=0)))

  watcher = threading.Thread(target=watch)
  watcher.start()
  try:
    outcome = pipeline_data.batch(model, source, target, 2)
  finally:
    ended.set()
    watcher.join()
  pipeline_data.check(rows // 100 * 100, target)
  running = [each for each in series if each[1]]
  span = min(60.0, (running[-1][0] - running[0][0]) / 2)
  first = [each for each in running if each[0] <= running[0][0] + span]
  last = [each for each in running if each[0] >= running[-1][0] - span]
  speed = [(part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0]) for part in (first, last)]
  memory = [max(each[2] for each in part) / 2**20 for part in (first, last)]
  return {"rows": rows, "seconds": outcome.seconds, "window_seconds": span, "last_by_first": speed[1] / speed[0], "megabytes": memory}


@click.command
@click.option("--parts", callback=options.commas, default="mlp,encoder,kills,millions", help="The parts to measure.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="The number of measurements of each rate.")
@click.option("--rows", type=click.IntRange(1000), default=100_000_000, help="The number of rows in the part `millions`.")
@click.option("--beam", type=click.Path(exists=True, dir_okay=False), help="The Python interpreter of an environment with Beam.")
@click.option("--resume", is_flag=True, help="Skip the parts that the report has.")
def main(parts: list[str], rounds: int, rows: int, beam: str | None, resume: bool) -> None:
  """Measures all parts, and writes the report after each."""
  report = {part: found for part, found in reports.read("pipelines").items() if resume or part not in parts}
  for part in (part for part in parts if part not in report):
    with tempfile.TemporaryDirectory() as folder:
      work = pathlib.Path(folder)
      if part in pipeline_data.ROWS:
        report[part] = rates(part, work, rounds, beam)
      else:
        report[part] = kills(work, beam) if part == "kills" else millions(work, rows)
    report[part]["load_at_end"] = os.getloadavg()[0]
    reports.keep("pipelines", report, page)


def _ratio(per_second: Mapping[str, list[float]], way: str, other: str, least: float) -> str:
  """A row of the table of ratios."""
  ratios = [a / b for a, b in zip(per_second.get(way, []), per_second.get(other, []), strict=False)]
  found = f"{statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f}" if ratios else "not run | "
  return f"| {way} / {other} | {found} | >= {least} |"


def page(report: Mapping[str, Any]) -> str:
  """The report in Markdown."""
  lines = [
    "# Batch inference, measured",
    "",
    f"Generated by `make pipelines` on {os.cpu_count()} cores; do not edit. Rates exclude start-up.",
    "All ways run once in each round. A ratio is of two rates of one round: the median of all rounds, and the smallest and largest.",
    "[batch.md](../guide/batch.md) is the guide.",
    "",
  ]
  for part in (part for part in ("mlp", "encoder") if part in report):
    found = report[part]
    per_second = found["rows_per_second"]
    rounds = len(per_second["batch 1"])
    lines += [f"## {part}, {found['rows']:,} rows, {rounds} rounds (load average {found['load_at_end']:.1f})", ""]
    lines += ["| Way | rows/s, median | rows/s, best |", "|---|---|---|"]
    lines += [f"| {way} | {statistics.median(rates):,.0f} | {max(rates):,.0f} |" for way, rates in per_second.items()]
    lines += ["", "| Ratio | Median | Smallest to largest | Required |", "|---|---|---|---|"]
    lines += [_ratio(per_second, *asked) for asked in ASKED[part]]
    lines += [f"| smallest share of a Ray actor | {min(found['ray_shares'], default=0):.2f} | | >= 0.4 |", ""]
  if found := {name: each for name, each in report.get("kills", {}).items() if name != "load_at_end"}:
    lines += [
      "## Kills",
      "",
      "In one run a process is killed (`kill -9`) during a write, in another one in the middle.",
      "",
      "| What | Rows | Killed | Lost | Duplicate | Same checksum | Temporary files left |",
      "|---|---|---|---|---|---|---|",
    ]
    for name, each in found.items():
      moments = [each[moment] for moment in pipeline_kills.MOMENTS]
      killed, left = sum(m["killed"] for m in moments), sum(len(m["temporary"]) for m in moments)
      if any(m["failed"] for m in moments):
        results = sum(m["files"] - len(m["temporary"]) for m in moments if m["failed"])
        lines.append(f"| {name} | {each['rows']:,} | {killed} | the run fails, with {results} result files | | | {left} |")
      else:
        lines.append(f"| {name} | {each['rows']:,} | {killed} | 0 | 0 | {'yes' if each['one_checksum'] else 'no'} | {left} |")
    lines.append("")
  if found := report.get("millions"):
    first, last = found["megabytes"]
    lines += [
      "## Many rows",
      "",
      f"{found['rows']:,} rows in {found['seconds']:.0f} s.",
      f"The rate of the last {found['window_seconds']:.0f} s is {found['last_by_first']:.2f} times that of the first.",
      f"The largest worker used {first:.0f} MB at the beginning and {last:.0f} MB at the end.",
      "",
    ]
  return "\n".join(lines)


if __name__ == "__main__":
  main()
