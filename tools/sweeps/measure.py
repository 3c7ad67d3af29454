"""What the reports measure with: times by turns, nodes of a graph, peak memory; and how a report is kept."""

from __future__ import annotations

import ctypes
import gc
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

DOCS = pathlib.Path("docs")

_STATUS = pathlib.Path("/proc/self/status")


def milliseconds(
  calls: Mapping[str, Callable[[], Any]],
  seconds: float,
  warmup: int = 3,
  least: int = 5,
  of: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[str, float]:
  """The median time of each call, run by turns, because the ratio of two times outlives a noisy machine.

  Args:
    calls: name -> a call that returns when its work is done.
    seconds: how long to measure all of them together.
    warmup: rounds that are not measured.
    least: rounds to measure, however long they take.
    of: the times of a call -> what stands for them.
  """
  times: dict[str, list[float]] = {name: [] for name in calls}
  for call in (*calls.values(),) * warmup:
    call()
  rounds, end = 0, time.perf_counter() + seconds
  while time.perf_counter() < end or rounds < least:
    rounds += 1
    for name, call in calls.items():
      start = time.perf_counter()
      call()
      times[name].append(time.perf_counter() - start)
  return {name: 1e3 * of(series) for name, series in times.items()}


def nodes(graph: Any) -> list[Any]:
  """The NodeDefs of a tf.Graph and of every function that it calls."""
  definition = graph.as_graph_def()
  return [node for part in (definition.node, *(f.node_def for f in definition.library.function)) for node in part]


def op_types(graph: Any) -> list[str]:
  """Their op types."""
  return [node.op for node in nodes(graph)]


def peak_megabytes(call: Callable[[], Any]) -> float:
  """By how much the resident memory of this process rises at its peak while `call` runs; Linux with glibc only."""
  gc.collect()
  ctypes.CDLL("libc.so.6").malloc_trim(0)  # what free() has kept would hide what `call` needs
  pathlib.Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak starts anew
  before = _resident("VmRSS")
  call()
  return _resident("VmHWM") - before


def growth_megabytes(call: Callable[[], Any]) -> float:
  """By how much the resident memory of this process has risen when `call` has returned and what it leaves is collected; as above."""
  before = _settled()
  call()
  return _settled() - before


def _settled() -> float:
  gc.collect()
  ctypes.CDLL("libc.so.6").malloc_trim(0)
  return _resident("VmRSS")


def _resident(field: str) -> float:
  (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
  return int(line.split()[1]) / 1024


def update(
  name: str, section: Mapping[str, Any], order: Sequence[str], markdown: Callable[[Any], str], picture: Callable[[Any], None]
) -> None:
  """Puts the rows of the installed JAX into docs/<name>.{json,md} and its picture, next to those of other versions.

  Args:
    name: of the report.
    section: row -> its numbers; rows that are not here keep theirs.
    order: all rows; those of the report that are not among them are dropped.
    markdown: {JAX version: section} -> the text.
    picture: draws it.
  """
  path = DOCS / f"{name}.json"
  report = json.loads(path.read_text()) if path.exists() else {}
  known = report.get(jax.__version__, {}) | section
  report[jax.__version__] = {row: known[row] for row in order if row in known}
  rounded = json.loads(json.dumps(report), parse_float=lambda text: float(f"{float(text):.4g}"))
  path.write_text(json.dumps(rounded, indent=1) + "\n")
  (DOCS / f"{name}.md").write_text(markdown(rounded))
  picture(rounded)


def pyplot() -> Any:
  """matplotlib's, without a display: an extra that only reports need."""
  import matplotlib  # noqa: PLC0415

  matplotlib.use("Agg")
  from matplotlib import pyplot  # noqa: PLC0415

  return pyplot
