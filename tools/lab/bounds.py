"""What the measurements of the server and of batches have to show, and what they miss."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

RUNS = {1: "one replica", 2: "two replicas", 3: "three replicas"}
# The CPU time of a request, by the processes that take it.
COSTS = {
  "proxy CPU ms": "a proxy",
  "replica CPU ms": "the replica",
  "Ray CPU ms": "Ray",
  "client CPU ms": "the client",
}
# Seconds until the server is ready, on two idle cores.
START_SECONDS = 30.0
# The largest growth of the memory, from the second to the last third of a long run.
GROWTH = 1.05
_FROM_MINUTES = 10.0
# (a way to run batches, another way, smallest accepted ratio of their rates)
RATIOS: dict[str, list[tuple[str, str, float]]] = {
  "mlp": [("ray", "bare 2", 0.6), ("beam tables", "bare 1", 0.8)],
  "encoder": [
    ("batch 2", "batch 1", 1.8),
    ("batch 2", "bare 2", 0.95),
    ("ray", "bare 2", 0.95),
    ("beam tables", "bare 1", 0.8),
  ],
}
SHARE = 0.4  # of the rows, for each of two Ray actors
_LAST_BY_FIRST, _GROWTH_OF_WORKERS, _WINDOW = 0.9, 1.1, 60.0


def machine() -> dict[str, float]:
  """What the numbers of a report depend on: cores, and how many of them other programs use before
  it starts."""
  return {"cores": len(os.sched_getaffinity(0)), "load before": round(os.getloadavg()[0], 1)}


def predicted(one: Mapping[str, float], replicas: int, cores: int) -> float:
  """Requests per second by the run of one replica: each replica answers as many, until all cores
  are busy."""
  return min(replicas * one["requests per second"], 1e3 * cores / sum(one[name] for name in COSTS))


def late(starts: Sequence[float]) -> list[str]:
  """Starts that take too long."""
  return [
    f"the server was ready after {each:.0f} s; at most {START_SECONDS:.0f} s are allowed"
    for each in starts
    if each > START_SECONDS
  ]


def grown(soak: Mapping[str, Any]) -> list[str]:
  """Memory that grows after the first third; a short run is still warming up."""
  if soak["minutes"] < _FROM_MINUTES:
    return []
  thirds = {name: megabytes for name, megabytes in soak.items() if name.endswith("MB by thirds")}
  return [
    f"{name}: {each}, a growth by more than {GROWTH - 1:.0%}"
    for name, each in thirds.items()
    if each[2] > GROWTH * each[1]
  ]


def of_requests(report: Mapping[str, Any]) -> Iterator[str]:
  """What random requests have shown that must not be."""
  for interface in ("REST", "gRPC"):
    for kind, numbers in report[interface].items():
      if numbers["wrong"] or numbers["lost"]:
        yield f"{interface}, {kind}: {numbers['wrong']} wrong, {numbers['lost']} lost"


def ratios(per_second: Mapping[str, Sequence[float]], way: str, other: str) -> list[float]:
  """The ratios of the rates of two ways in each round."""
  return [a / b for a, b in zip(per_second.get(way, []), per_second.get(other, []), strict=False)]


def missed(part: str, found: Mapping[str, Any]) -> Iterator[str]:
  """What a part of the measurements of batches failed to do, and the bounds that it misses."""
  yield from found.get("faults", ())
  for way, other, least in RATIOS.get(part, ()):
    each = ratios(found["rows_per_second"], way, other)
    if not each or statistics.median(each) < least:
      median = f"{statistics.median(each):.2f}" if each else "not run"
      yield f"{part}, {way} / {other}: {median}, required >= {least}"
  share = min(found.get("ray_shares", ()), default=0)
  if part in RATIOS and share < SHARE:
    yield f"{part}, smallest share of a Ray actor: {share:.2f}, required >= {SHARE}"
  if part == "millions":
    first, last = found["megabytes"]
    ratio, window = found["last_by_first"], found["window_seconds"]
    if ratio < _LAST_BY_FIRST:
      yield f"millions: the last rate is {ratio:.2f} of the first, required >= {_LAST_BY_FIRST}"
    if last > _GROWTH_OF_WORKERS * first:
      yield f"millions: memory grew from {first:.0f} to {last:.0f} MB"
    if window < _WINDOW:
      yield (f"millions: the rates are of {window:.0f} s, required >= {_WINDOW:.0f}")
