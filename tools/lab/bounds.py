"""What the measurements of the server have to show, and what they miss."""

from __future__ import annotations

import os
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
