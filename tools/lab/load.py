"""Loads `jax2tf serve` with many concurrent clients and checks every answer.

It serves a model with one, three and two replicas; the report compares the rates with those
predicted from the CPU time of a request. With two replicas it kills (kill -9) one process of each
kind in turn under load; the last is the server itself, which it restarts as a service manager
would. Requests have mixed batch sizes and use gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

from jax2tf.tools.lab import bounds
from tests.support import clients

_PATIENCE_SECONDS = 120.0
_SECONDS, _CONCURRENCY, _MAX_ROWS = 15.0, 200, 32


class _Load:
  """A load of requests, and the report of what became of them."""

  def __init__(self, model: pathlib.Path, seconds: float, concurrency: int, max_rows: int):
    self._model, self._seconds, self._concurrency = model, seconds, concurrency
    self._questions = clients.save_mlp(model, max_rows)
    self.report: dict[str, Any]
    self.report = {"seconds": seconds, "concurrency": concurrency, "rows": [1, max_rows]}
    self.faults: list[str] = []

  def serving(
    self, replicas: int, **options: Any
  ) -> contextlib.AbstractContextManager[clients.Server]:
    return clients.serving(self._model, f"--replicas={replicas}", **options)

  def measure(self, name: str, server: clients.Server) -> None:
    """Measures a run without faults, and the CPU time that a request takes."""
    # the first requests optimise the graph
    asyncio.run(clients.load(server.grpc_port, self._questions, self._concurrency, 1.0))
    before = server.cpu_seconds | {"client": time.process_time()}
    self.run(name, server)
    after = server.cpu_seconds | {"client": time.process_time()}
    count = self.report[name]["requests"]
    costs = {
      f"{kind} CPU ms": round(1e3 * (after[kind] - before[kind]) / count, 3) for kind in before
    }
    self.report[name] |= {"start s": round(server.start_seconds, 1), **costs}

  def run(
    self, name: str, server: clients.Server, attack: Callable[[], object] = lambda: None
  ) -> None:
    """Loads the server; the attack comes after a third of the time."""
    tally = asyncio.run(self._run(server.grpc_port, attack))
    self.report[name] = tally.summary()
    self.faults += [*tally.errors, *["a wrong answer"] * tally.wrong]
    print(
      f"{name:34}" + ", ".join(f"{key} {value}" for key, value in self.report[name].items()),
      flush=True,
    )

  async def _run(self, port: int, attack: Callable[[], object]) -> clients.Tally:
    running = asyncio.create_task(
      clients.load(port, self._questions, self._concurrency, self._seconds)
    )
    await asyncio.sleep(self._seconds / 3)
    await asyncio.to_thread(attack)
    return await running

  def kill_each(self, server: clients.Server) -> None:
    """Kills one process of each kind, and at last the server, which is started again."""
    whole = _census(server)
    for kind in clients.KINDS:
      [victim, *_] = server.pids(kind)
      self.run(f"{kind} killed", server, lambda: _kill(victim))  # noqa: B023  (called at once)
      self.report[f"{kind} killed"]["whole again s"] = round(
        self._seconds * 2 / 3 + _wait_until_whole(server, whole), 1
      )
    with contextlib.ExitStack() as stack:

      def restart() -> None:
        _kill(server.process.pid)
        server.process.wait()
        stack.enter_context(self.serving(2, ports=(server.grpc_port, server.http_port)))

      self.run("server killed and started again", server, restart)
    runs = [run for name, run in self.report.items() if isinstance(run, dict) and "killed" in name]
    self.report["with kills"] = {
      key: sum(run[key] for run in runs) for key in ("requests", "retries", "wrong", "errors")
    }


def _kill(pid: int) -> None:
  os.kill(pid, signal.SIGKILL)


def _census(server: clients.Server) -> dict[str, int]:
  return {kind: len(server.pids(kind)) for kind in clients.KINDS} | {"ready": server.ready}


def _wait_until_whole(server: clients.Server, whole: dict[str, int]) -> float:
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
  load = _Load(folder / "mlp", share * _SECONDS, _CONCURRENCY, _MAX_ROWS)
  for count in (1, 3, 2):
    with load.serving(count) as server:
      load.measure(bounds.RUNS[count], server)
      if count == 2:
        load.kill_each(server)
  starts = [load.report[name]["start s"] for name in bounds.RUNS.values()]
  return load.report, load.faults + bounds.late(starts)
