"""What graphs hold, and the memory that a call takes."""

from __future__ import annotations

import gc
import pathlib
from collections.abc import Callable
from typing import Any

from jax2tf.converters.bundle import children, graphs

_STATUS = pathlib.Path("/proc/self/status")


def nodes(graph: Any) -> list[Any]:
  """The NodeDefs of a tf.Graph and of all functions that it calls."""
  return graphs.nodes(graph.as_graph_def())


def op_types(graph: Any) -> list[str]:
  """The op types of these nodes."""
  return [node.op for node in nodes(graph)]


def peak_megabytes(call: Callable[[], Any]) -> float:
  """The peak increase of the resident memory of this process during `call`; Linux with glibc
  only."""
  before = _settled()
  pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak, proc(5)
  call()
  return _resident("VmHWM") - before


def growth_megabytes(call: Callable[[], Any]) -> float:
  """The increase of the resident memory of this process after `call` and garbage collection; Linux
  with glibc only."""
  before = _settled()
  call()
  return _settled() - before


def _settled() -> float:
  gc.collect()
  children.give_back()  # memory that free() kept would hide what a call needs
  return _resident("VmRSS")


def _resident(field: str) -> float:
  (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
  return int(line.split()[1]) / 1024
