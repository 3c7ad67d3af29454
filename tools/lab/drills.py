"""Drills of the server: processes that hang, and floods of silent connections.

Each process is stopped (SIGSTOP) in turn under a load of requests, of which each answer is compared
with JAX's. A proxy or a replica has to be killed within 10 s, and nothing may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import math
import os
import pathlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jax2tf.tools.serving import place
from tests.support import clients

_CONCURRENCY = 8
_PATIENCE_SECONDS = 240.0
# A process that hangs has to be gone after so many seconds; a cluster, which has parts that hang,
# has more time.
_LIMITS = {"proxy": 10.0, "replica": 10.0}
# These are parts of a cluster, which ends with them and says why.
_IN_CLUSTER = ("controller", "GCS", "raylet")
_SILENT, _NEW = 2300, 100
_FILES = 1024
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


class _Drills:
  """The server's model, the report, and what went wrong."""

  def __init__(self, folder: pathlib.Path):
    self.model = folder / "mlp"
    self._questions = clients.save_mlp(self.model, 4)
    self.report: dict[str, Any] = {}
    self.faults: list[str] = []

  def _under_load(
    self, name: str, server: clients.Server, drill: Callable[[], Awaitable[dict[str, Any]]]
  ) -> dict[str, Any]:
    """The figures of a drill, with those of the requests that were sent until it ended."""

    async def load(ended: asyncio.Event) -> clients.Tally:
      found = clients.Tally()
      while not ended.is_set():
        found.add(await clients.load(server.grpc_port, self._questions, _CONCURRENCY, 2.0))
      return found

    async def run() -> tuple[clients.Tally, dict[str, Any]]:
      ended = asyncio.Event()
      loading = asyncio.create_task(load(ended))
      await asyncio.sleep(2)
      found = await drill()
      ended.set()
      return await loading, found

    tally, found = asyncio.run(run())
    summary = tally.summary()
    names = ("requests", "retries", "wrong", "errors", "longest outage s")
    self.report[name] = found | {each: summary[each] for each in names}
    print(f"{name:40}{self.report[name]}", flush=True)
    self.faults += [*tally.errors, *["a wrong answer"] * tally.wrong]
    return found

  def stop(self, server: clients.Server, kind: str) -> None:
    """Stops one process of a kind, until it is gone and as many are ready as before."""
    victim = server.pids(kind)[0]
    before = {each: len(server.pids(each)) for each in ("proxy", "replica", "cluster")}

    def is_whole() -> bool:
      return server.ready == 2 and before == {each: len(server.pids(each)) for each in before}

    async def drill() -> dict[str, Any]:
      os.kill(victim, signal.SIGSTOP)
      begin = time.monotonic()
      gone = await _seconds_until(lambda: not pathlib.Path("/proc", str(victim)).exists(), begin)
      whole = await _seconds_until(is_whole, begin)
      return {"gone after s": round(gone, 1), "whole again s": round(whole, 1)}

    gone = self._under_load(f"{kind} stopped", server, drill)["gone after s"]
    said = [line for line in server.said().splitlines() if f"(process {victim})" in line]
    if kind not in _IN_CLUSTER and "did not answer health calls" not in "".join(said[:1]):
      self.faults.append(f"the end of the {kind} has the reasons {said}")
    if gone > _LIMITS.get(kind, _PATIENCE_SECONDS):
      self.faults.append(f"a {kind} that hangs was killed after {gone:.0f} s")

  def flood(self, server: clients.Server, name: str, port: int, greeting: bytes) -> None:
    """Opens silent connections and leaves them open for a while, with one new connection after
    another by REST."""
    proxies = server.pids("proxy")

    async def drill() -> dict[str, Any]:
      with contextlib.ExitStack() as stack:
        opened = await asyncio.to_thread(_open, stack, port, greeting)
        answered = await asyncio.to_thread(_answered, server.http_port)
      return {"opened": opened, f"of {_NEW} new by REST answered": answered}

    found = self._under_load(f"{_SILENT} silent connections by {name}", server, drill)
    if server.pids("proxy") != proxies:
      self.faults.append(f"a proxy died of silent connections by {name}")
    if (answered := found[f"of {_NEW} new by REST answered"]) < _NEW:
      self.faults.append(f"{answered} of {_NEW} requests had an answer beside a flood by {name}")


def _left(pid: int) -> list[str]:
  """What is left of a server: its folder, which is removed after its processes have ended."""
  return [
    f"the server left {path.parent}"
    for parent in place.parents()
    for path in parent.glob(f"jax2tf-serve-*/{pid}.server")
  ]


async def _seconds_until(condition: Callable[[], bool], begin: float) -> float:
  while not condition() and time.monotonic() < begin + _PATIENCE_SECONDS:
    await asyncio.sleep(0.1)
  return time.monotonic() - begin


def _open(stack: contextlib.ExitStack, port: int, greeting: bytes) -> int:
  """How many silent connections were opened."""
  count = 0
  for _ in range(_SILENT):
    with contextlib.suppress(OSError):  # refused
      connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
      connection.sendall(greeting)
      count += 1
  return count


def _answered(port: int) -> int:
  """How many new connections by REST get an answer."""
  count = 0
  for _ in range(_NEW):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
      connection.request("GET", "/v1/models/mlp")
      count += connection.getresponse().status == 200
  return count


def measure(folder: pathlib.Path, share: float) -> tuple[dict[str, Any], list[str]]:
  """The figures, and lost and wrong answers and drills that failed.

  Args:
    folder: where the model is saved.
    share: of the kinds of processes that are stopped; each drill has its own time.
  """
  drills = _Drills(folder)
  kinds = ("replica", "proxy", "cluster", *_IN_CLUSTER)
  limit = ("prlimit", f"--nofile={_FILES}:{_FILES}")
  with clients.serving(drills.model, "--replicas=2", prefix=limit) as server:
    for kind in kinds[: math.ceil(share * len(kinds))]:
      drills.stop(server, kind)
    drills.flood(server, "REST", server.http_port, b"")
    drills.flood(server, "gRPC", server.grpc_port, _GREETING)
  return drills.report, drills.faults + _left(server.process.pid)
