"""Drills of the server: processes that hang, floods of silent connections, the memory monitor of
Ray, and what is left of a server.

Each process is stopped (SIGSTOP) in turn under a load of requests, of which each answer is compared
with JAX's. A proxy or a replica has to be killed within 10 s, and nothing may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.converters import saved_model
from jax2tf.tools.serving import place
from tests.support import clients

_CONCURRENCY = 8
_PATIENCE_SECONDS = 240.0
# A process that hangs has to be gone after so many seconds; a cluster, which has parts that hang,
# has more time.
_LIMITS = {"proxy": 10.0, "replica": 10.0}
_SILENT = 2300
_FILES = 1024
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_MONITOR = ("env", "RAY_memory_usage_threshold=0.05")


class _Drills:
  """The server's model, the report, and what went wrong."""

  def __init__(self, folder: pathlib.Path):
    self._model = folder / "mlp"
    self._questions = clients.save_mlp(self._model, 4)
    self.report: dict[str, Any] = {}
    self.faults: list[str] = []

  def keep(self, name: str, figures: dict[str, Any]) -> None:
    self.report[name] = figures
    print(f"{name:40}{figures}", flush=True)

  def stop(self, server: clients.Server, kind: str) -> None:
    """Stops one process of a kind under load, until it is gone and as many are ready as before."""
    victim = server.pids(kind)[0]
    owner = "cluster" if kind in ("GCS", "raylet", "controller") else kind
    before = {each: len(server.pids(each)) for each in ("proxy", "replica", "cluster")}

    async def run() -> tuple[clients.Tally, float, float]:
      stop = asyncio.Event()
      running = asyncio.create_task(self._load_until(server.grpc_port, stop))
      await asyncio.sleep(2)
      os.kill(victim, signal.SIGSTOP)
      begin = time.monotonic()
      gone = await _seconds_until(lambda: not pathlib.Path("/proc", str(victim)).exists(), begin)
      whole = await _seconds_until(
        lambda: {each: len(server.pids(each)) for each in before} == before and server.ready == 2,
        begin,
      )
      stop.set()
      return await running, gone, whole

    tally, gone, whole = asyncio.run(run())
    summary = tally.summary()
    figures = {
      name: summary[name] for name in ("requests", "retries", "wrong", "errors", "longest outage s")
    }
    reason = next(
      (line for line in server.said().splitlines() if f"(process {victim})" in line), ""
    )
    self.keep(
      f"{kind} stopped",
      {"gone after s": round(gone, 1), "whole again s": round(whole, 1), **figures},
    )
    self.faults += [*tally.errors, *["a wrong answer"] * tally.wrong]
    if owner == kind and "did not answer health calls" not in reason:
      self.faults.append(f"the end of the {kind} has the reason {reason!r}")
    if gone > _LIMITS.get(kind, _PATIENCE_SECONDS):
      self.faults.append(f"a {kind} that hangs was killed after {gone:.0f} s")

  async def _load_until(self, port: int, stop: asyncio.Event) -> clients.Tally:
    """Keeps requests in progress until the event."""
    found = clients.Tally()
    while not stop.is_set():
      found.add(await clients.load(port, self._questions, _CONCURRENCY, 2.0))
    return found

  def flood(self, server: clients.Server, name: str, port: int, greeting: bytes) -> None:
    """Opens silent connections and leaves them open for a while, under load by gRPC and with one
    new connection after another by REST."""
    proxies = server.pids("proxy")

    async def run() -> tuple[clients.Tally, int, int]:
      stop = asyncio.Event()
      running = asyncio.create_task(self._load_until(server.grpc_port, stop))
      await asyncio.sleep(2)
      with contextlib.ExitStack() as stack:
        silent = await asyncio.to_thread(_open, stack, port, greeting)
        answered = await asyncio.to_thread(_healthy, server.http_port, 100)
      stop.set()
      return await running, silent, answered

    tally, silent, answered = asyncio.run(run())
    summary = tally.summary()
    figures = {
      each: summary[each] for each in ("requests", "retries", "wrong", "errors", "longest outage s")
    }
    self.keep(
      f"{_SILENT} silent connections by {name}",
      {"opened": silent, "of 100 new by REST answered": answered, **figures},
    )
    self.faults += [*tally.errors, *["a wrong answer"] * tally.wrong]
    if server.pids("proxy") != proxies:
      self.faults.append(f"a proxy died of silent connections by {name}")
    if answered < 100:
      self.faults.append(
        f"{100 - answered} of 100 requests by REST had no answer beside silent connections by "
        f"{name}"
      )

  def in_one_server(self) -> None:
    with clients.serving(
      self._model, "--replicas=2", prefix=("prlimit", f"--nofile={_FILES}:{_FILES}")
    ) as server:
      for kind in ("replica", "proxy", "cluster", "controller", "GCS", "raylet"):
        self.stop(server, kind)
      self.flood(server, "REST", server.http_port, b"")
      self.flood(server, "gRPC", server.grpc_port, _GREETING)
    self.faults += _left("an end", server.process.pid)

  def slow(self, folder: pathlib.Path) -> None:
    """A predict that takes long and keeps all cores busy: its replica is not taken for one that
    hangs."""
    count = _save_slow(folder / "slow")
    with clients.serving(folder / "slow", "--replicas=1") as server:
      replicas, begin = server.pids("replica"), time.monotonic()
      body = f'{{"inputs": {{"x": {np.zeros((256, 1024)).tolist()}, "n": {count}}}}}'
      status = _post(server.http_port, "/v1/models/slow:predict", body)
      seconds = time.monotonic() - begin
      self.keep(
        "a slow predict",
        {
          "seconds": round(seconds, 1),
          "status": status,
          "replica lives": server.pids("replica") == replicas,
        },
      )
      if status != 200 or server.pids("replica") != replicas or seconds < 5:
        self.faults.append(f"a predict of {seconds:.0f} s got {status}")

  def monitored(self) -> None:
    """Other processes use more memory than the monitor of Ray allows."""
    with clients.serving(self._model, "--replicas=1", prefix=_MONITOR) as server:
      time.sleep(10)
      self.keep(
        "memory above Ray's threshold, as delivered",
        {"replicas": server.ready, "start s": round(server.start_seconds, 1)},
      )
      if server.ready != 1:
        self.faults.append("Ray's memory monitor killed a replica")
    code, said = _start(self._model, (*_MONITOR, "RAY_memory_monitor_refresh_ms=250"))
    self.keep(
      "memory above Ray's threshold, monitor on",
      {"exit code": code, "stderr ends with": said[:200]},
    )
    if code != 2:
      self.faults.append(f"a start that cannot succeed has exit code {code}")

  def ended(self) -> None:
    """Signals at several moments of the start leave nothing."""
    for number, expected in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
      for seconds in (0.5, 3.0, 6.0, 9.0):
        name = f"{signal.Signals(number).name} after {seconds:g} s"
        code, _ = _start(self._model, (), number, seconds)
        self.keep(name, {"exit code": code})
        self.faults += [] if code in (expected, -number) else [f"{name}: exit code {code}"]


def _start(
  model: pathlib.Path, prefix: tuple[str, ...], number: int = 0, seconds: float = 0.0
) -> tuple[int, str]:
  """Starts a server, which gets a signal unless `number` is 0. Returns its exit code and its last
  line; raises if anything is left."""
  ports = clients.free_ports(2)
  command = [
    *prefix,
    *clients.COMMAND,
    str(model),
    "--replicas=1",
    f"--grpc_port={ports[0]}",
    f"--http_port={ports[1]}",
  ]
  with subprocess.Popen(
    command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
  ) as process:
    if number:
      time.sleep(seconds)
      process.send_signal(number)
    _, said = process.communicate(timeout=_PATIENCE_SECONDS)
  if left := _left("a start", process.pid):
    raise SystemExit(left[0])
  return process.returncode, said.strip().rpartition("\n")[2]


def _left(what: str, pid: int) -> list[str]:
  """What is left of a server: its folder, which is removed after its processes have ended."""
  folders = [
    str(path.parent)
    for parent in place.parents()
    for path in parent.glob(f"jax2tf-serve-*/{pid}.server")
  ]
  return [f"{what} left {folders}"] if folders else []


async def _seconds_until(condition: Callable[[], bool], begin: float) -> float:
  while not condition() and time.monotonic() < begin + _PATIENCE_SECONDS:
    await asyncio.sleep(0.1)
  return time.monotonic() - begin


def _open(stack: contextlib.ExitStack, port: int, greeting: bytes) -> int:
  count = 0
  for _ in range(_SILENT):
    with contextlib.suppress(OSError):  # refused
      connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
      connection.sendall(greeting)
      count += 1
  return count


def _healthy(port: int, count: int) -> int:
  """How many of so many new connections get an answer."""
  return sum(_post(port, "/v1/models/mlp", None) == 200 for _ in range(count))


def _post(port: int, path: str, body: str | None) -> int:
  connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)
  try:
    connection.request("POST" if body else "GET", path, body)
    return connection.getresponse().status
  except (OSError, http.client.HTTPException):
    return 0
  finally:
    connection.close()


def _save_slow(folder: pathlib.Path) -> int:
  """Saves a function of a loop. Returns the count of its steps for about 15 s here."""
  params = {"m": np.random.default_rng(0).normal(0, 0.03, (1024, 1024)).astype(np.float32)}

  def slow(params: Any, x: jax.Array, n: jax.Array) -> jax.Array:
    """x f32[b,1024], n i32 -> f32[b,1024]."""
    return jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ params["m"]), x)

  saved_model.save(slow, params, folder, inputs={"x": "f32[b,1024]", "n": "i32[]"}, outputs=["y"])
  step = jax.jit(slow)
  x = np.zeros((256, 1024), np.float32)
  step(params, x, 1).block_until_ready()
  begin = time.perf_counter()
  step(params, x, 20).block_until_ready()
  return int(15 / ((time.perf_counter() - begin) / 20))


def measure(folder: pathlib.Path, share: float) -> tuple[dict[str, Any], list[str]]:
  """The figures, and lost and wrong answers and drills that failed.

  Args:
    folder: where the models are saved.
    share: does not matter here; drills have their own time.
  """
  del share
  drills = _Drills(folder)
  drills.in_one_server()
  drills.slow(folder)
  drills.monitored()
  drills.ended()
  return drills.report, drills.faults
