"""Loads `jax2tf serve` with many concurrent clients and checks every answer.

It serves a model with one, three and two replicas; the report compares the rates with those
predicted from the CPU time of a request. With two replicas it kills (kill -9) one process of each
kind in turn under load; the last is the server itself, which it restarts as a service manager
would. Then comes a long run, in which replicas are killed and versions replaced, and the memory is
measured. Requests have mixed batch sizes and use gRPC.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import pathlib
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

from jax2tf.tools.lab import bounds
from tests.support import clients

_PATIENCE_SECONDS = 120.0
_SECONDS, _CONCURRENCY, _MAX_ROWS = 15.0, 200, 32
_MINUTES, _EVENTS, _FEW_CLIENTS, _LOADED_SECONDS = 30.0, 60, 4, 15.0


class _Load:
  """A load of requests, and the report of what became of them."""

  def __init__(self, model: pathlib.Path):
    self.model = model
    self._questions = clients.save_mlp(model, _MAX_ROWS)
    self.report: dict[str, Any] = {}
    self.faults: list[str] = []

  def serving(
    self, replicas: int, **options: Any
  ) -> contextlib.AbstractContextManager[clients.Server]:
    return clients.serving(self.model, f"--replicas={replicas}", **options)

  def warm_up(self, server: clients.Server) -> None:
    """The first requests optimise the graph."""
    asyncio.run(clients.load(server.grpc_port, self._questions, _CONCURRENCY, 1.0))

  def run(
    self,
    name: str,
    server: clients.Server,
    seconds: float,
    attack: Callable[[], object] = lambda: None,
    concurrency: int = _CONCURRENCY,
  ) -> None:
    """Loads the server, and attacks it meanwhile."""

    async def loaded() -> clients.Tally:
      running = clients.load(server.grpc_port, self._questions, concurrency, seconds)
      tally, _ = await asyncio.gather(running, asyncio.to_thread(attack))
      return tally

    tally = asyncio.run(loaded())
    self.report[name] = tally.summary()
    self.faults += [*tally.errors, *["a wrong answer"] * tally.wrong]
    print(f"{name:34}", *(f"{key} {x}," for key, x in self.report[name].items()), flush=True)


def _kill(pid: int) -> None:
  os.kill(pid, signal.SIGKILL)


def _census(server: clients.Server) -> dict[str, int]:
  return {kind: len(server.pids(kind)) for kind in clients.KINDS} | {"ready": server.ready}


def _seconds_until_whole(server: clients.Server, whole: dict[str, int]) -> float:
  """Seconds until each kind has as many processes as before, and as many replicas answer."""
  start = time.monotonic()
  while _census(server) != whole:
    if time.monotonic() > start + _PATIENCE_SECONDS:
      raise SystemExit(f"after {_PATIENCE_SECONDS:g} s the server is not whole again")
    time.sleep(0.5)
  return time.monotonic() - start


def measure(folder: pathlib.Path, share: float) -> tuple[dict[str, Any], list[str]]:
  """The figures of each run, and lost and wrong answers and starts that took too long.

  Args:
    folder: where the model is saved.
    share: of the time of each run.
  """
  load, seconds = _Load(folder / "mlp"), share * _SECONDS
  about = {"seconds": seconds, "concurrency": _CONCURRENCY, "rows": [1, _MAX_ROWS]}
  for count in (1, 3, 2):
    with load.serving(count) as server:
      _cost(load, server, bounds.RUNS[count], seconds)
      if count == 2:
        _kill_each(load, server, seconds)
  starts = [load.report[name]["start s"] for name in bounds.RUNS.values()]
  return about | load.report, load.faults + bounds.late(starts)


def _cost(load: _Load, server: clients.Server, name: str, seconds: float) -> None:
  """A run without faults, and the CPU time that a request takes."""
  load.warm_up(server)
  before = server.cpu_seconds | {"client": time.process_time()}
  load.run(name, server, seconds)
  after = server.cpu_seconds | {"client": time.process_time()}
  run = load.report[name]
  costs = {kind: 1e3 * (after[kind] - before[kind]) / run["requests"] for kind in before}
  run |= {f"{kind} CPU ms": round(cost, 3) for kind, cost in costs.items()}
  run["start s"] = round(server.start_seconds, 1)


def _kill_each(load: _Load, server: clients.Server, seconds: float) -> None:
  """Kills one process of each kind, and at last the server, which is started again."""
  whole = _census(server)
  for kind in clients.KINDS:
    [victim, *_] = server.pids(kind)

    def attack() -> None:
      time.sleep(seconds / 3)
      _kill(victim)  # noqa: B023  (called at once)

    load.run(f"{kind} killed", server, seconds, attack)
    after = seconds * 2 / 3 + _seconds_until_whole(server, whole)
    load.report[f"{kind} killed"]["whole again s"] = round(after, 1)
  with contextlib.ExitStack() as stack:

    def restart() -> None:
      time.sleep(seconds / 3)
      _kill(server.process.pid)
      server.process.wait()
      stack.enter_context(load.serving(2, ports=(server.grpc_port, server.http_port)))

    load.run("server killed and started again", server, seconds, restart)
  runs = [run for name, run in load.report.items() if "killed" in name]
  load.report["with kills"] = {
    key: sum(run[key] for run in runs) for key in ("requests", "retries", "wrong", "errors")
  }


def soak(folder: pathlib.Path, share: float) -> tuple[dict[str, Any], list[str]]:
  """The figures of a long run, and lost and wrong answers, memory that grew, and a late start.

  Args:
    folder: where the model is saved.
    share: of the time and of the events.
  """
  load, seconds, events = _Load(folder / "mlp"), 60 * share * _MINUTES, int(share * _EVENTS)
  counts: collections.Counter[str] = collections.Counter()
  thirds: dict[str, list[list[float]]] = {name: [[], [], []] for name in _WEIGHED}

  def disturb() -> None:
    begin = time.monotonic()
    for i in range(events):
      time.sleep(max(0.0, begin + seconds * (i + 1) / (events + 1) - time.monotonic()))
      for name, weigh in _WEIGHED.items():
        thirds[name][3 * i // events].append(weigh(server.megabytes))
      event, happens = _SOAK_EVENTS[i % len(_SOAK_EVENTS)]
      happens(load.model, server)
      counts[event] += 1

  with load.serving(2) as server:
    load.warm_up(server)
    load.run("soak", server, seconds, disturb, _FEW_CLIENTS)
  memory = {
    f"{name} MB by thirds": [round(max(each, default=0)) for each in of]
    for name, of in thirds.items()
  }
  about = {"minutes": share * _MINUTES, "start s": round(server.start_seconds, 1)}
  report = about | load.report["soak"] | {"events": dict(counts)} | memory
  return report, load.faults + bounds.grown(report) + bounds.late([server.start_seconds])


_WEIGHED: dict[str, Callable[[dict[str, list[float]]], float]] = {
  "the largest replica": lambda sizes: max(sizes["replica"], default=0.0),
  "all processes": lambda sizes: sum(map(sum, sizes.values())),
}


def _replace(model: pathlib.Path, server: clients.Server) -> None:
  """Publishes the next version, of the same weights, by copy and rename, and removes the old."""
  old = max(int(path.name) for path in model.iterdir() if path.name.isdecimal())
  shutil.copytree(model / str(old), model / ".saving" / "1")
  (model / ".saving" / "1").rename(model / str(old + 1))
  time.sleep(_LOADED_SECONDS)  # both replicas load it
  shutil.rmtree(model / str(old))


def _kill_replica(model: pathlib.Path, server: clients.Server) -> None:
  _kill(server.pids("replica")[0])


_SOAK_EVENTS = (("versions replaced", _replace), ("replicas killed", _kill_replica))
