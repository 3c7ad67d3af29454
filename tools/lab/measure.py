"""Times of interleaved calls, and how the reports show them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WARM_UP, _LEAST = 3, 5  # rounds before a measurement, and the fewest in it


def milliseconds(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
  """The median time of each call. The calls are interleaved, so that noise of the machine affects
  all and ratios stay valid.

  Args:
    calls: name -> a call that returns when its work is done.
    seconds: the duration of the measurement of all calls together, if its fewest rounds take less.
  """
  times: dict[str, list[float]] = {name: [] for name in calls}
  for call in (*calls.values(),) * _WARM_UP:
    call()
  rounds, end = 0, time.perf_counter() + seconds
  while time.perf_counter() < end or rounds < _LEAST:
    rounds += 1
    for name, call in calls.items():
      start = time.perf_counter()
      call()
      times[name].append(time.perf_counter() - start)
  return {name: 1e3 * statistics.median(series) for name, series in times.items()}


def runs(
  calls: Mapping[str, Callable[[], Any]], seconds: float, number: int = 5
) -> dict[str, list[float]]:
  """The median time of each call in each of several runs of `milliseconds`, which take `seconds`
  together."""
  found = [milliseconds(calls, seconds / number) for _ in range(number)]
  return {name: [run[name] for run in found] for name in calls}


def ratios(ms: Mapping[str, Sequence[float]], way: str, other: str) -> list[float]:
  """The ratios of the times of two calls in the runs of `runs`, in ascending order."""
  return sorted(a / b for a, b in zip(ms[way], ms[other], strict=True))


def spread(values: Sequence[float]) -> str:
  """`**median** (least to most)`."""
  return f"**{statistics.median(values):.2f}** ({min(values):.2f} to {max(values):.2f})"


def pyplot() -> Any:
  """matplotlib's pyplot without a display; only reports need this extra."""
  import matplotlib  # noqa: PLC0415

  matplotlib.use("Agg")
  from matplotlib import pyplot  # noqa: PLC0415

  return pyplot
