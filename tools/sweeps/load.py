"""Loads `jax2tf serve` with many concurrent clients and checks every answer: docs/reports/data/serving-load.json.

Usage: python -m jax2tf.tools.sweeps.load [--seconds=15] [--concurrency=200]. It serves a model with one, three and two replicas. With two
it kills (kill -9) one process of each kind in turn under load; the last is the server itself, which it restarts as a service manager
would. Requests have mixed batch sizes and use gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
from absl import logging

from jax2tf.tools.sweeps import clients, reports

_REPLICAS = "--replicas=2"
_PATIENCE_SECONDS = 120.0


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


@click.command
@click.option("--seconds", type=click.FloatRange(1.0), default=15.0, help="How long each run sends requests, in seconds.")
@click.option("--concurrency", type=click.IntRange(1), default=200, help="The number of requests in progress at any time.")
@click.option("--max_rows", type=click.IntRange(1), default=32, help="The largest number of rows in a request.")
@click.option("--report", "report_file", default=str(reports.data("serving-load")), help="The file for the figures.")
def main(seconds: float, concurrency: int, max_rows: int, report_file: str) -> None:
  """Prints and writes the figures of each run. Raises SystemExit if an answer was lost or wrong."""
  logging.set_verbosity(logging.WARNING)
  report: dict[str, Any] = {"seconds": seconds, "concurrency": concurrency, "rows": [1, max_rows], "cores": os.cpu_count()}
  faults = []

  async def load(port: int, attack: Callable[[], object] = lambda: None) -> clients.Tally:
    running = asyncio.create_task(clients.load(port, questions, concurrency, seconds, progress=True))
    await asyncio.sleep(seconds / 3)
    await asyncio.to_thread(attack)
    return await running

  def add(name: str, tally: clients.Tally) -> None:
    report[name] = tally.summary()
    faults.extend(tally.errors + ["a wrong answer"] * tally.wrong)
    print(f"{name:34}" + ", ".join(f"{key} {value}" for key, value in report[name].items()), flush=True)

  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    model = pathlib.Path(folder, "mlp")
    questions = clients.save_mlp(model, max_rows)
    for count, name in ((1, "one replica"), (3, "three replicas")):
      with clients.serving(model, f"--replicas={count}") as server:
        asyncio.run(clients.load(server.grpc_port, questions, concurrency, 1.0))  # the first requests optimise the graph
        add(name, asyncio.run(load(server.grpc_port)))
    with clients.serving(model, _REPLICAS) as server:
      asyncio.run(clients.load(server.grpc_port, questions, concurrency, 1.0))
      add("two replicas", asyncio.run(load(server.grpc_port)))
      whole = _census(server)
      for kind in clients.KINDS:
        [victim, *_] = server.pids(kind)
        add(f"{kind} killed", asyncio.run(load(server.grpc_port, lambda: _kill(victim))))  # noqa: B023  (called at once)
        report[f"{kind} killed"]["whole again s"] = round(seconds * 2 / 3 + _wait_until_whole(server, whole), 1)

      def restart() -> None:
        _kill(server.process.pid)
        server.process.wait()
        stack.enter_context(clients.serving(model, _REPLICAS, ports=(server.grpc_port, server.http_port)))

      add("server killed and started again", asyncio.run(load(server.grpc_port, restart)))
  runs = [run for name, run in report.items() if isinstance(run, dict) and "killed" in name]
  report["with kills"] = {
    "requests": sum(run["requests"] for run in runs),
    "retries": sum(run["retries"] for run in runs),
    "wrong": sum(run["wrong"] for run in runs),
    "errors": sum(run["errors"] for run in runs),
  }
  pathlib.Path(report_file).write_text(reports.lines(report) + "\n", encoding="utf-8")
  if faults:
    raise SystemExit(f"{len(faults)} requests were lost or answered wrongly, such as: {faults[0]}")


if __name__ == "__main__":
  main()
