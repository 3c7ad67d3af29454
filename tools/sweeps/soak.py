"""A long test of the server: a constant rate of requests while models are added, replaced, removed and corrupted and replicas killed.

  python -m jax2tf.tools.sweeps.soak [--minutes=30] [--requests=20000] [--events=60]. It compares each answer with JAX's for the same
version and measures the server's memory. It fails if a request has no answer within two minutes, or a wrong one.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import pathlib
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click
import grpc
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow_serving.apis import get_model_status_pb2, model_service_pb2_grpc, predict_pb2, prediction_service_pb2_grpc
from tqdm import tqdm

from jax2tf.converters import saved_model
from jax2tf.tools.sweeps import clients, reports

_VARIANTS = 4
_ROWS = 8
_PATIENCE_SECONDS = 60.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Model:
  """A model of the server: the variant of each version that may answer, and the number of requests in progress."""

  folder: pathlib.Path
  variants: dict[int, int] = field(default_factory=dict)
  asked: bool = False
  under_way: int = 0


class _Soak:
  """The served models, the requests, and the results."""

  def __init__(self, folder: pathlib.Path):
    random = np.random.default_rng(0)
    self._x = random.normal(size=(_ROWS, 784)).astype(np.float32)
    self._store, self.models_folder = folder / "store", folder / "models"
    self._expected = []
    for variant in range(_VARIANTS):
      shapes = {"hidden": (784, 512), "out": (512, 10)}
      params = {name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
      saved_model.save(clients.mlp, params, self._store / str(variant), inputs={"x": "f32[b,784]"}, outputs=["y"])
      self._expected.append(np.asarray(clients.mlp(params, jnp.asarray(self._x))))
    self.models = {name: _Model(self.models_folder / name) for name in ("steady", "replaced", "guest")}
    self.tally = clients.Tally()
    self.events: collections.Counter[str] = collections.Counter()

  def publish(self, name: str) -> int:
    """Adds the next version, of another variant, by copy and rename."""
    model = self.models[name]
    version = max(model.variants, default=0) + 1
    model.variants[version] = (version + len(name)) % _VARIANTS
    model.folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(self._store / str(model.variants[version]) / "1", model.folder / ".saving" / "1")
    (model.folder / ".saving" / "1").rename(model.folder / str(version))
    return version

  async def ask(self, stub: Any) -> None:
    """Sends one request to one of the current models."""
    names = [name for name, model in self.models.items() if model.asked]
    name = names[np.random.randint(len(names))]
    request = predict_pb2.PredictRequest(inputs={"x": tf.make_tensor_proto(self._x)})
    request.model_spec.name = name
    model, start, pause = self.models[name], time.perf_counter(), 0.1
    model.under_way += 1
    try:
      while True:
        try:
          response = await stub.Predict(request, timeout=clients.PATIENCE_SECONDS)
        except grpc.aio.AioRpcError as error:
          if error.code() != grpc.StatusCode.UNAVAILABLE or time.perf_counter() > start + clients.PATIENCE_SECONDS:
            self.tally.errors.append(f"{name}: {error.code().name}: {error.details()}")
            return
          self.tally.retries += 1
          await asyncio.sleep(pause)
          pause = min(2 * pause, 2.0)
          continue
        self.tally.answered.append(time.perf_counter())
        self.tally.milliseconds.append(1e3 * (self.tally.answered[-1] - start))
        expected = self._expected[model.variants[response.model_spec.version.value]]
        self.tally.wrong += not np.allclose(tf.make_ndarray(response.outputs["y"]), expected, rtol=1e-4, atol=1e-5)
        return
    finally:
      model.under_way -= 1

  async def served(self, channel: grpc.aio.Channel, name: str, version: int) -> None:
    """Waits until every replica serves this version: until enough consecutive answers probably came from all of them."""
    status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus
    request = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": name, "version": {"value": version}})
    end, seen = time.monotonic() + _PATIENCE_SECONDS, 0
    while seen < 20:
      try:
        [state] = (await status(request, timeout=10)).model_version_status
        seen = seen + 1 if state.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE else 0
      except grpc.aio.AioRpcError:
        seen = 0
      if time.monotonic() > end:
        raise SystemExit(f"version {version} of {name!r} is not served within {_PATIENCE_SECONDS:g} s")
      await asyncio.sleep(0.05)


def _events(soak: _Soak, server: clients.Server, channel: grpc.aio.Channel) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
  """The events, in turn and without end."""

  async def replace() -> None:
    model = soak.models["replaced"]
    old = max(model.variants)
    await soak.served(channel, "replaced", soak.publish("replaced"))
    shutil.rmtree(model.folder / str(old))

  async def corrupt() -> None:
    for name, model in soak.models.items():
      if model.asked:
        broken = model.folder / str(10**6)
        broken.mkdir()
        (broken / "saved_model.pb").write_bytes(os.urandom(1000))
        await asyncio.sleep(4)
        shutil.rmtree(broken)
        soak.events[f"corrupted {name}"] += 1

  async def kill() -> None:
    pids = server.pids("replica")
    os.kill(pids[np.random.randint(len(pids))], signal.SIGKILL)
    end = time.monotonic() + _PATIENCE_SECONDS
    while server.ready < 2 and time.monotonic() < end:
      await asyncio.sleep(0.5)

  async def add() -> None:
    await soak.served(channel, "guest", soak.publish("guest"))
    soak.models["guest"].asked = True

  async def remove() -> None:
    model = soak.models["guest"]
    model.asked = False
    while model.under_way:
      await asyncio.sleep(0.1)
    shutil.rmtree(model.folder)

  yield from itertools.cycle(
    (("added", add), ("replaced", replace), ("corrupted", corrupt), ("killed", kill), ("replaced", replace), ("removed", remove))
  )


def _megabytes(server: clients.Server) -> tuple[float, float]:
  """The resident memory of the largest replica, and of all processes together."""
  pages = {}
  for pid, title in server.processes.items():
    try:
      pages[pid, clients.KINDS["replica"] in title] = int(pathlib.Path("/proc", str(pid), "statm").read_text().split()[1])
    except OSError:  # it ended
      continue
  scale = _PAGE / 2**20
  return scale * max((n for (_, is_replica), n in pages.items() if is_replica), default=0), scale * sum(pages.values())


async def _run(soak: _Soak, server: clients.Server, seconds: float, requests: int, events: int) -> dict[str, Any]:
  begin = time.monotonic()
  memory: list[tuple[float, float, float]] = []
  async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
    for name in ("steady", "replaced"):
      await soak.served(channel, name, 1)
      soak.models[name].asked = True

    async def disturb() -> None:
      for i, (name, event) in zip(range(events), _events(soak, server, channel), strict=False):
        await asyncio.sleep(max(0.0, begin + seconds * (i + 1) / (events + 1) - time.monotonic()))
        await event()
        soak.events[name] += 1

    async def weigh() -> None:
      while True:
        memory.append((time.monotonic() - begin, *await asyncio.to_thread(_megabytes, server)))
        await asyncio.sleep(seconds / 100)

    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    weighing, disturbing = asyncio.create_task(weigh()), asyncio.create_task(disturb())
    asking = set()
    for i in tqdm(range(requests), unit=" requests", leave=False, mininterval=5):
      await asyncio.sleep(max(0.0, begin + seconds * i / requests - time.monotonic()))
      asking.add(task := asyncio.create_task(soak.ask(stub)))
      task.add_done_callback(asking.discard)
    await asyncio.gather(*asking, disturbing)
    weighing.cancel()
  soak.tally.seconds = time.monotonic() - begin

  def most(column: int, begins: float, ends: float) -> float:
    return round(max((row[column] for row in memory if begins * seconds <= row[0] < ends * seconds), default=0.0))

  thirds = ((0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 2.0))
  return {
    "largest replica MB by thirds": [most(1, *third) for third in thirds],
    "all processes MB by thirds": [most(2, *third) for third in thirds],
  }


@click.command
@click.option("--minutes", type=click.FloatRange(0.1), default=30.0, help="The duration of the test.")
@click.option("--requests", type=click.IntRange(100), default=20_000, help="The number of requests, at a constant rate.")
@click.option(
  "--events", type=click.IntRange(0), default=60, help="The number of additions, replacements, corruptions, kills and removals."
)
@click.option("--report", "report_file", default=str(reports.data("serving-soak")), help="The file for the figures.")
def main(minutes: float, requests: int, events: int, report_file: str) -> None:
  """Prints and writes the figures. Raises SystemExit if an answer was lost or wrong."""
  logging.set_verbosity(logging.WARNING)
  with tempfile.TemporaryDirectory() as folder:
    soak = _Soak(pathlib.Path(folder))
    for name in ("steady", "replaced"):
      soak.publish(name)
    with clients.serving(soak.models_folder, "--replicas=2") as server:
      memory = asyncio.run(_run(soak, server, 60 * minutes, requests, events))
  report = {"minutes": minutes, "cores": os.cpu_count(), **soak.tally.summary(), "events": dict(soak.events), **memory}
  pathlib.Path(report_file).write_text(reports.lines(report) + "\n", encoding="utf-8")
  print(reports.lines(report))
  if soak.tally.wrong or soak.tally.errors:
    raise SystemExit(f"{soak.tally.wrong} answers were wrong, {len(soak.tally.errors)} requests lost, such as: {soak.tally.errors[:1]}")


if __name__ == "__main__":
  main()
