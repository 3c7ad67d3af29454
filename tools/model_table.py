"""The zoo (tests/models) on every target: docs/model-table.md and its picture docs/model-table.svg; run from a checkout.

Usage: python -m jax2tf.tools.model_table [--models=regular expression] [--targets=onnx,tflite] [--again=missed]

Each model is exported to each target, run there and compared with jax.jit at two sizes of each of its dimensions, one after the other in a
process of its own with a time limit, so that a crash is one row. Rows are appended to build/model-table/jax-<version>.jsonl; a run goes
on where the last one stopped.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import jax
import tqdm
from absl import app, flags

from jax2tf.converters import _export, verify
from jax2tf.tools import measure, runtimes

_MODELS = flags.DEFINE_string("models", "", "Only models whose name matches this regular expression; the others keep their rows.")
_TARGETS = flags.DEFINE_list("targets", [], "Only these targets; the others keep their rows.")
_AGAIN = flags.DEFINE_enum("again", "none", ["none", "missed", "all"], "Which rows to make anew of those that are there already.")
_SECONDS = flags.DEFINE_integer("seconds", 300, "The time limit of one model on one target.", lower_bound=1)


@dataclass(frozen=True)
class Row:
  """A model on a target.

  Attributes:
    reason: why it is missed; empty if it agrees with JAX.
    error: the largest difference from jax.jit, over all outputs and sizes.
    of_tolerance: the largest difference as a share of what is allowed.
    size: of what was written, in bytes.
    latency: of a call over that of jax.jit in the process that compared them, both sizes together.
    seconds: what exporting, running and comparing took.
  """

  model: str
  target: str
  reason: str = ""
  error: float | None = None
  of_tolerance: float | None = None
  size: int | None = None
  latency: float | None = None
  seconds: float = 0.0


# ------------------------------------------------------------------------------------------ processes


def row(case: runtimes.Case, target: str) -> Row:
  """A model on a target; what goes wrong there is the reason in its row."""
  start = time.perf_counter()
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      exported = runtimes.TARGETS[target][1](case)
  except Exception as error:
    text = str(error) if isinstance(error, _export.ExportError | verify.VerificationError) else f"{type(error).__name__}: {error}"
    return Row(case.entry.name, target, text.replace(f"{runtimes.REPOSITORY}/", "")[:8000], seconds=time.perf_counter() - start)
  rows, latencies = exported.report.rows, exported.report.latencies
  ratio = sum(x.model for x in latencies) / sum(x.reference for x in latencies) if latencies else None
  worst, share = (max((x for r in rows if (x := getattr(r, key)) is not None), default=None) for key in ("max_abs", "of_tolerance"))
  return Row(case.entry.name, target, "", worst, share, exported.size, ratio, time.perf_counter() - start)


def work(model: str, connection: Connection, log: pathlib.Path) -> None:
  """The worker: takes names of targets and answers with rows. Whatever runtimes print goes into the log."""
  with log.open("wb") as stream:
    os.dup2(stream.fileno(), sys.stdout.fileno())
    os.dup2(stream.fileno(), sys.stderr.fileno())
  # Each target compares with the same compiled function.
  jax.config.update("jax_compilation_cache_dir", str(runtimes.CACHE / "compiled"))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
  with tempfile.TemporaryDirectory(prefix="jax2tf-zoo-") as folder:
    case = runtimes.Case(model, pathlib.Path(folder))
    while target := connection.recv():
      connection.send(row(case, target))


class Worker:
  """A process for one model; a new one takes the place of one that crashed or took too long."""

  def __init__(self, model: str, log: pathlib.Path):
    self._model, self._log = model, log
    self._start()

  def _start(self) -> None:
    context = multiprocessing.get_context("spawn")
    self._connection, other = context.Pipe()
    self._process = context.Process(target=work, args=(self._model, other, self._log), daemon=False)
    self._process.start()
    other.close()

  def row(self, target: str, seconds: float) -> Row:
    start = time.perf_counter()
    self._connection.send(target)
    reason = f"not done after {seconds:g} s"
    try:
      if self._connection.poll(seconds):
        return self._connection.recv()
    except EOFError:
      self._process.join()
      said = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
      reason = f"its process ended with {self._process.exitcode}; it said last: {said[0][:300]}"
    self._process.kill()
    self._process.join()
    self._start()
    return Row(self._model, target, reason, seconds=time.perf_counter() - start)

  def end(self) -> None:
    with contextlib.suppress(OSError):
      self._connection.send("")
    self._process.join()


# ------------------------------------------------------------------------------------------ the report


def known_rows(file: pathlib.Path) -> dict[tuple[str, str], Row]:
  """The last row of each model and target."""
  lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
  rows = [Row(**json.loads(line)) for line in lines]
  return {(row.model, row.target): row for row in rows}


def markdown(pairs: Mapping[str, Mapping[tuple[str, str], Row]], names: Sequence[str]) -> str:
  """The report of all JAX versions that there are rows of."""
  lines = [
    "# The zoo on every target",
    "",
    "Generated by `python -m jax2tf.tools.model_table`; do not edit. Each model of `tests/models`, exported to each target, run there, and",
    "compared with `jax.jit` at two sizes of each of its dimensions. A cell: the largest difference from JAX over all outputs, the size",
    "of what was written, and the time of a call over that of `jax.jit`, both sizes together (of small models that is the fixed cost of a",
    "call; the C loader is not timed, for each of its calls reads and writes files). **no** is a miss; its reason stands below the table,",
    "as the exporter gave it.",
    "",
  ]
  for version, rows in sorted(pairs.items()):
    lines += [f"## {version}", "", *_table(rows, names), "", *_misses(rows, names)]
  return "\n".join([*lines, "![Errors and latencies](model-table.svg)", ""])


def _table(rows: Mapping[tuple[str, str], Row], names: Sequence[str]) -> Iterator[str]:
  titles = [title for title, _ in runtimes.TARGETS.values()]
  yield "| model | library | " + " | ".join(titles) + " |"
  yield "|---" * (2 + len(titles)) + "|"
  for name in names:
    entry = importlib.import_module("tests.models").load(name)
    cells = [_cell(rows.get((name, target))) for target in runtimes.TARGETS]
    yield f"| {name} | {entry.library} | " + " | ".join(cells) + " |"
  totals = []
  for target in runtimes.TARGETS:
    found = [row for (name, at), row in rows.items() if at == target and name in names]
    totals.append(f"**{sum(not row.reason for row in found)} of {len(found)}**")
  yield "| **agree with JAX** | | " + " | ".join(totals) + " |"


def _cell(row: Row | None) -> str:
  if row is None:
    return "not run"
  if row.reason:
    return "**no**"
  kilobytes = (row.size or 0) / 1e3
  size = f"{kilobytes / 1e3:.1f} MB" if kilobytes >= 1e3 else f"{kilobytes:.0f} kB"
  parts = [f"{row.error:.0e}" if row.error else "0", size]
  return "<br>".join([*parts, *([f"{row.latency:.2g}x"] if row.latency else [])])


def _misses(rows: Mapping[tuple[str, str], Row], names: Sequence[str]) -> Iterator[str]:
  for name in names:
    missed: dict[str, list[str]] = {}
    for target, (title, _) in runtimes.TARGETS.items():
      if (row := rows.get((name, target))) and row.reason:
        missed.setdefault("\n".join(_brief(row.reason)), []).append(title)
    for reason, titles in missed.items():
      yield from (f"**{name}** on {', '.join(titles)}:", "", "```", reason, "```", "")


def _brief(reason: str) -> Iterator[str]:
  """The lines of a reason; of those that name an op the first."""
  seen: set[str] = set()
  more = 0
  for line in reason.splitlines():
    op = re.match(r"  (\S+) \(of '", line)
    if op and op[1] in seen:
      more += 1
      continue
    seen.update([op[1]] if op else [])
    yield line[:300]
  if more:
    yield f"  and {more} more uses of the same ops"


def picture(pairs: Mapping[str, Mapping[tuple[str, str], Row]], names: Sequence[str]) -> None:
  """Errors as shares of the tolerance, and latencies, a point for each model, of the newest JAX."""
  pyplot = measure.pyplot()
  version, rows = max(pairs.items())
  with pyplot.rc_context({"svg.hashsalt": "model-table", "svg.fonttype": "none"}):
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 1.5 + 0.26 * len(names)), layout="constrained", sharey=True)
    for shift, (target, (title, _)) in enumerate(runtimes.TARGETS.items()):
      found = [(i + (shift - len(runtimes.TARGETS) / 2) / 10, row) for i, name in enumerate(names) if (row := rows.get((name, target)))]
      colour = f"C{shift}"
      errors = [(max(row.of_tolerance or 0, 1e-5), y) for y, row in found if not row.reason and math.isfinite(row.of_tolerance or 0)]
      panels[0].plot(*(zip(*errors, strict=True) if errors else ([], [])), "o", color=colour, markersize=4, label=title)
      missed = [(3.0, y) for y, row in found if row.reason]
      panels[0].plot(*(zip(*missed, strict=True) if missed else ([], [])), "x", color=colour, markersize=5)
      times = [(row.latency, y) for y, row in found if row.latency]
      panels[1].plot(*(zip(*times, strict=True) if times else ([], [])), "o", color=colour, markersize=4)
    panels[0].set(xscale="log", xlabel="largest error, as a share of the tolerance; crosses are misses", title=version)
    panels[1].set(xscale="log", xlabel="time of a call / jax.jit's", title=version)
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].invert_yaxis()
    for axes in panels:
      axes.axvline(1, color="gray", linewidth=1)
      axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(measure.DOCS / "model-table.svg", metadata={"Date": None})
  pyplot.close(figure)


def main(_: Sequence[str]) -> None:
  """Makes the rows that are not there yet, and the report of all."""
  sys.path.insert(0, str(runtimes.REPOSITORY / "examples"))  # some models are those of examples; workers inherit the path
  names = importlib.import_module("tests.models").NAMES
  targets = _TARGETS.value or list(runtimes.TARGETS)
  if unknown := [target for target in targets if target not in runtimes.TARGETS]:
    raise app.UsageError(f"--targets={','.join(targets)}: {unknown[0]!r} is none of {', '.join(runtimes.TARGETS)}")
  runtimes.CACHE.mkdir(parents=True, exist_ok=True)
  version = f"jax-{'.'.join(jax.__version__.split('.')[:2])}"
  file = runtimes.CACHE / f"{version}.jsonl"
  kept = {"none": lambda row: True, "missed": lambda row: not row.reason, "all": lambda row: False}[_AGAIN.value]
  known = {key for key, row in known_rows(file).items() if kept(row)}
  wanted = {name: [t for t in targets if (name, t) not in known] for name in names if re.search(_MODELS.value, name)}
  with tqdm.tqdm(total=sum(map(len, wanted.values())), unit="row") as progress:
    for name, missing in wanted.items():
      worker = Worker(name, runtimes.CACHE / f"{version}.log") if missing else None
      for target in missing:
        assert worker is not None
        progress.set_postfix_str(f"{name}, {target}")
        found = worker.row(target, _SECONDS.value)
        with file.open("a", encoding="utf-8") as stream:
          stream.write(json.dumps(asdict(found)) + "\n")
        progress.update()
      if worker:
        worker.end()
  pairs = {file.stem.replace("-", " ").replace("jax", "JAX"): known_rows(file) for file in sorted(runtimes.CACHE.glob("jax-*.jsonl"))}
  (measure.DOCS / "model-table.md").write_text(markdown(pairs, names), encoding="utf-8")
  picture(pairs, names)


if __name__ == "__main__":
  app.run(main)
