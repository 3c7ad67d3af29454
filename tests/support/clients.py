"""Runs `jax2tf serve` in a process, with many concurrent clients that check every answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import grpc
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from jax2tf.converters import saved_model
from tests.support.ports import free_ports

COMMAND = (sys.executable, "-m", "jax2tf.tools.cli", "serve")
# How long a client repeats a request whose process died.
PATIENCE_SECONDS = 120.0
_LONGEST_PAUSE = 2.0
# The kinds of processes of the server: a part of the title of each.
KINDS = {
  "proxy": "jax2tf.tools.serving proxy",
  "replica": "ray::ServeReplica",
  "cluster": "jax2tf.tools.serving cluster",
  "controller": "ray::ServeController",
  "raylet": "/raylet/raylet ",
  "GCS": "/gcs/gcs_server ",
  "dashboard agent": "ray::DashboardAgent",
  "runtime environment agent": "ray::RuntimeEnvAgent",
}
_CLIENTS_OF_A_CHANNEL = 50


@dataclass(frozen=True)
class Server:
  """A running `jax2tf serve`, which writes its stderr to `errors`."""

  process: subprocess.Popen[str]
  grpc_port: int
  http_port: int
  start_seconds: float
  errors: IO[str]

  def said(self) -> str:
    """What the server has written to stderr so far."""
    return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

  def pids(self, kind: str) -> list[int]:
    """The process ids of one of `KINDS`."""
    return [pid for pid, title in self.processes.items() if KINDS[kind] in title]

  @property
  def ready(self) -> int:
    """The number of replicas that have loaded the model, from their sockets in /proc/net/unix."""
    names = {
      line.split()[-1]
      for line in pathlib.Path("/proc/net/unix").read_text().splitlines()
      if "/jax2tf-serve-" in line
    }
    return sum(any(name.endswith(f"/{pid}.sock") for name in names) for pid in self.pids("replica"))

  @property
  def cpu_seconds(self) -> dict[str, float]:
    """The CPU time of the proxies, of the replicas, and of Ray and the server."""
    times = self._of_each(lambda process: sum(process.cpu_times()[:2]))
    return {kind: sum(each) for kind, each in times.items()}

  @property
  def megabytes(self) -> dict[str, list[float]]:
    """The resident memory of each proxy, of each replica, and of Ray and the server, in MiB."""
    return self._of_each(lambda process: process.memory_info().rss / 2**20)

  def _of_each(self, measure: Callable[[psutil.Process], float]) -> dict[str, list[float]]:
    """{kind: the figures of its processes}, of one look at the server and its descendants."""
    found: dict[str, list[float]] = {"proxy": [], "replica": [], "Ray": []}
    for pid, title in self.processes.items():
      kind = next((kind for kind in ("proxy", "replica") if KINDS[kind] in title), "Ray")
      with contextlib.suppress(psutil.NoSuchProcess):
        found[kind].append(measure(psutil.Process(pid)))
    return found

  @property
  def processes(self) -> dict[int, str]:
    """{process id: title} of the server and its descendants."""
    children: dict[int, list[int]] = {}
    titles = {}
    for folder in pathlib.Path("/proc").iterdir():
      with contextlib.suppress(OSError):  # it may end meanwhile
        if folder.name.isdecimal():
          stat = (folder / "stat").read_text().rpartition(")")[2].split()
          children.setdefault(int(stat[1]), []).append(int(folder.name))
          titles[int(folder.name)] = (
            (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
          )
    found, queue = {}, [self.process.pid]
    while queue:
      pid = queue.pop()
      found[pid] = titles.get(pid, "")
      queue += children.get(pid, [])
    return found


@contextlib.contextmanager
def serving(
  model: pathlib.Path, *arguments: str, seconds: float = 240.0, ports: Sequence[int] = ()
) -> Iterator[Server]:
  """Starts the server, waits until it is ready, and ends it with SIGTERM.

  Args:
    model: the folder of versions, the folder of models, or a config file.
    arguments: more flags of the server.
    seconds: the time limit for the start.
    ports: for gRPC and REST; by default free ones.

  Raises:
    RuntimeError: the server did not become ready, or did not end after SIGTERM.
  """
  grpc_port, http_port = ports or free_ports(2)
  what = f"--model_config_file={model}" if model.is_file() else str(model)
  command = [*COMMAND, what, f"--grpc_port={grpc_port}", f"--http_port={http_port}", *arguments]
  start = time.perf_counter()
  with (
    tempfile.TemporaryFile("w+") as errors,
    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
  ):
    try:
      _wait_for_line(process, seconds, errors)
      yield Server(process, grpc_port, http_port, time.perf_counter() - start, errors)
    finally:
      process.send_signal(signal.SIGTERM)
      try:
        code = process.wait(60)
      except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError(f"{command} did not end within 60 s of SIGTERM") from None
    if code not in (0, -signal.SIGKILL):  # the caller killed it
      raise RuntimeError(f"{command} ended with exit code {code}")


def _wait_for_line(process: subprocess.Popen[str], seconds: float, errors: Any) -> None:
  assert process.stdout is not None
  ready, _, _ = select.select([process.stdout], [], [], seconds)
  line = process.stdout.readline() if ready else ""
  if not line.startswith("serving "):
    errors.seek(0)
    raise RuntimeError(
      f"{process.args!r} was not ready within {seconds} s: {line}{errors.read()[-4000:]}"
    )


@dataclass(frozen=True)
class Question:
  """A request and JAX's answer."""

  request: predict_pb2.PredictRequest
  output: str
  expected: np.ndarray

  def wrong(self, response: predict_pb2.PredictResponse) -> bool:
    """Whether outputs differ from the answer."""
    found = tf.make_ndarray(response.outputs[self.output])
    return found.shape != self.expected.shape or not np.allclose(
      found, self.expected, rtol=1e-4, atol=1e-5
    )


@dataclass
class Tally:
  """The results of one run.

  Attributes:
    milliseconds: the latency of each answered request, including retries.
    answered: the time of each answer.
    retries: the number of requests that were repeated because a process died.
    wrong: the number of answers that differ from JAX's.
    errors: status and text of each request without an answer.
    seconds: from the first request to the last answer.
  """

  milliseconds: list[float] = field(default_factory=list)
  answered: list[float] = field(default_factory=list)
  retries: int = 0
  wrong: int = 0
  errors: list[str] = field(default_factory=list)
  seconds: float = 0.0

  def summary(self) -> dict[str, float | int]:
    """The figures for the report."""
    p50, p90, p99 = map(float, np.percentile(self.milliseconds, [50, 90, 99]))
    return {
      "requests": len(self.milliseconds),
      "requests per second": round(len(self.milliseconds) / self.seconds, 1),
      "p50 ms": round(p50, 1),
      "p90 ms": round(p90, 1),
      "p99 ms": round(p99, 1),
      "longest outage s": round(float(np.max(np.diff(self.answered))), 2),
      "retries": self.retries,
      "wrong": self.wrong,
      "errors": len(self.errors),
    }


async def load(port: int, questions: Sequence[Question], concurrency: int, seconds: float) -> Tally:
  """Keeps `concurrency` requests in progress for `seconds`, in random order, and waits for the last
  answers."""
  tally, start = Tally(), time.perf_counter()
  end = start + seconds
  async with contextlib.AsyncExitStack() as stack:
    # Each channel has its own connection, because a connection carries about 100 concurrent
    # requests at most.
    options = [("grpc.use_local_subchannel_pool", 1)]
    address, count = f"127.0.0.1:{port}", -(-concurrency // _CLIENTS_OF_A_CHANNEL)
    channels = [
      await stack.enter_async_context(grpc.aio.insecure_channel(address, options))
      for _ in range(count)
    ]

    async def client(number: int) -> None:
      predict = prediction_service_pb2_grpc.PredictionServiceStub(channels[number % count]).Predict
      random = np.random.default_rng(number)
      while time.perf_counter() < end:
        await _ask(predict, questions[int(random.integers(len(questions)))], tally)

    await asyncio.gather(*map(client, range(concurrency)))
  tally.seconds = time.perf_counter() - start
  return tally


async def _ask(predict: Any, question: Question, tally: Tally) -> None:
  start = time.perf_counter()
  pause = 0.1
  while True:
    try:
      response = await predict(question.request, timeout=PATIENCE_SECONDS)
    except grpc.aio.AioRpcError as error:
      if (
        error.code() != grpc.StatusCode.UNAVAILABLE
        or time.perf_counter() > start + PATIENCE_SECONDS
      ):
        tally.errors.append(f"{error.code().name}: {error.details()}")
        return
      tally.retries += 1
      await asyncio.sleep(pause)
      pause = min(2 * pause, _LONGEST_PAUSE)
    else:
      tally.answered.append(time.perf_counter())
      tally.milliseconds.append(1e3 * (tally.answered[-1] - start))
      tally.wrong += question.wrong(response)
      return


def mlp(params: Any, x: jax.Array) -> jax.Array:
  """f32[b,784] -> f32[b,10] through a hidden layer of 512."""
  return jax.nn.softmax(jax.nn.relu(x @ params["hidden"]) @ params["out"])


def save_mlp(folder: pathlib.Path, max_rows: int) -> list[Question]:
  """Saves the model and computes JAX's answers: two questions for each number of rows from 1 to
  `max_rows`."""
  random = np.random.default_rng(0)
  params = {
    name: random.normal(0, 0.05, shape).astype(np.float32)
    for name, shape in (("hidden", (784, 512)), ("out", (512, 10)))
  }
  saved_model.save(mlp, params, folder, inputs={"x": "f32[b,784]"}, outputs=["y"])
  return [
    _question(folder.name, params, random.normal(size=(rows, 784)).astype(np.float32))
    for rows in range(1, max_rows + 1)
    for _ in "12"
  ]


def _question(name: str, params: Any, x: np.ndarray) -> Question:
  request = predict_pb2.PredictRequest(inputs={"x": tf.make_tensor_proto(x)})
  request.model_spec.name = name
  return Question(request, "y", np.asarray(mlp(params, jnp.asarray(x))))
