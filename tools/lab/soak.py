"""A long test of the server: a constant rate of requests while models are added, replaced, removed
and damaged and replicas killed.

A quarter of the requests uses REST. Each answer is compared with JAX's for the same version, a
removed model has to answer NOT_FOUND (404), and the server's memory is measured. A request without
an answer within two minutes is lost.
"""

from __future__ import annotations

import asyncio
import collections
import http.client
import itertools
import json
import os
import pathlib
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from rich.progress import track
from tensorflow_serving.apis import (
  get_model_status_pb2,
  model_service_pb2_grpc,
  predict_pb2,
  prediction_service_pb2_grpc,
)

from jax2tf.tools.lab import bounds
from tests.support import clients

_MINUTES, _REQUESTS, _EVENTS = 30.0, 20_000, 60
_VARIANTS = 4
_ROWS = 8
_REST_SHARE = 0.25
# Answers in a row that probably came from every replica.
_IN_A_ROW = 20
_PATIENCE_SECONDS = 60.0


class _LostError(Exception):
  """A request without an answer, because its process died."""


class _NotFoundError(Exception):
  """The answer that there is no such model."""


@dataclass
class _Model:
  """A model of the server.

  Attributes:
    folder: holds its versions.
    variants: version -> variant, of all versions so far.
    live: the versions that may answer.
    state: "asked"; "gone" after its removal; "" while it changes from one to the other.
    under_way: the number of requests in progress.
  """

  folder: pathlib.Path
  variants: dict[int, int] = field(default_factory=dict)
  live: set[int] = field(default_factory=set)
  state: str = ""
  under_way: int = 0

  async def leave(self) -> None:
    """Waits until no request is in progress; there will be no more."""
    self.state = ""
    while self.under_way:
      await asyncio.sleep(0.1)


class _Soak:
  """The served models, the requests, and the results."""

  def __init__(self, folder: pathlib.Path):
    random = np.random.default_rng(0)
    self._x = random.normal(size=(_ROWS, 784)).astype(np.float32)
    self._store, self.models_folder = folder / "store", folder / "models"
    self._expected = []
    for variant in range(_VARIANTS):
      params = clients.save_drawn_mlp(self._store / str(variant), random)
      self._expected.append(np.asarray(clients.mlp(params, jnp.asarray(self._x))))
    self.models = {
      name: _Model(self.models_folder / name) for name in ("steady", "replaced", "guest")
    }
    self.tally = clients.Tally()
    self.events: collections.Counter[str] = collections.Counter()
    self.asked: collections.Counter[str] = collections.Counter()
    self._body = json.dumps({"inputs": self._x.tolist()})

  def publish(self, name: str) -> int:
    """Adds the next version, of another variant, by copy and rename."""
    model = self.models[name]
    version = max(model.variants, default=0) + 1
    model.variants[version] = (version + len(name)) % _VARIANTS
    model.live.add(version)
    model.folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(
      self._store / str(model.variants[version]) / "1", model.folder / ".saving" / "1"
    )
    (model.folder / ".saving" / "1").rename(model.folder / str(version))
    return version

  async def ask(self, stub: Any, http_port: int) -> None:
    """Sends one request to one of the models, and again while processes die."""
    names = [name for name, model in self.models.items() if model.state]
    name = names[np.random.randint(len(names))]
    by_rest = np.random.random() < _REST_SHARE
    model, start, pause = self.models[name], time.perf_counter(), 0.1
    gone, live = model.state == "gone", {*model.live}
    self.asked["by REST" if by_rest else "by gRPC"] += 1
    self.asked["of a removed model"] += gone
    model.under_way += 1
    try:
      while True:
        try:
          version, y = await (
            asyncio.to_thread(self._by_rest, name, http_port)
            if by_rest
            else self._by_grpc(name, stub)
          )
        except _NotFoundError as error:
          if not gone:
            self.tally.errors.append(f"{name}: {error}")
          break
        except _LostError as error:
          if time.perf_counter() > start + clients.PATIENCE_SECONDS:
            self.tally.errors.append(f"{name}: {error}")
            return
          self.tally.retries += 1
          await asyncio.sleep(pause)
          pause = min(2 * pause, 2.0)
          continue
        expected = {model.variants[each] for each in ({version} if version else live | model.live)}
        right = any(
          np.allclose(y, self._expected[variant], rtol=1e-4, atol=1e-5) for variant in expected
        )
        self.tally.wrong += gone or not right
        break
      self.tally.answered.append(time.perf_counter())
      self.tally.milliseconds.append(1e3 * (self.tally.answered[-1] - start))
    except Exception as error:  # any other answer is a fault
      self.tally.errors.append(f"{name}: {type(error).__name__}: {error}")
    finally:
      model.under_way -= 1

  async def _by_grpc(self, name: str, stub: Any) -> tuple[int, np.ndarray]:
    """The version that answers, and its answer."""
    request = predict_pb2.PredictRequest(inputs={"x": tf.make_tensor_proto(self._x)})
    request.model_spec.name = name
    try:
      response = await stub.Predict(request, timeout=clients.PATIENCE_SECONDS)
    except grpc.aio.AioRpcError as error:
      kinds = {grpc.StatusCode.UNAVAILABLE: _LostError, grpc.StatusCode.NOT_FOUND: _NotFoundError}
      raise kinds.get(error.code(), RuntimeError)(
        f"{error.code().name}: {error.details()}"
      ) from error
    return response.model_spec.version.value, tf.make_ndarray(response.outputs["y"])

  def _by_rest(self, name: str, port: int) -> tuple[int, np.ndarray]:
    """0, because the REST API does not say the version, and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=clients.PATIENCE_SECONDS)
    try:
      connection.request("POST", f"/v1/models/{name}:predict", self._body)
      response = connection.getresponse()
      body = json.load(response)
    except (OSError, http.client.HTTPException) as error:  # a proxy died
      raise _LostError(f"{type(error).__name__}: {error}") from error
    finally:
      connection.close()
    if response.status != 200:
      raise {503: _LostError, 404: _NotFoundError}.get(response.status, RuntimeError)(
        f"{response.status}: {body}"
      )
    return 0, np.array(body["outputs"], np.float32)

  async def until(
    self, channel: grpc.aio.Channel, name: str, version: int, expected: Callable[[str, str], bool]
  ) -> None:
    """Waits until every replica reports a state and a message of this version that are as expected;
    NOT_FOUND is a state too."""
    status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus
    request = get_model_status_pb2.GetModelStatusRequest(
      model_spec={"name": name, "version": {"value": version}}
    )
    end, seen, last = time.monotonic() + _PATIENCE_SECONDS, 0, ("", "")
    while seen < _IN_A_ROW:
      try:
        [found] = (await status(request, timeout=10)).model_version_status
        last = (
          get_model_status_pb2.ModelVersionStatus.State.Name(found.state),
          found.status.error_message,
        )
      except grpc.aio.AioRpcError as error:
        last = error.code().name, error.details() or ""
      seen = seen + 1 if expected(*last) else 0
      if time.monotonic() > end:
        raise SystemExit(
          f"version {version} of {name!r} is still {last} after {_PATIENCE_SECONDS:g} s"
        )
      await asyncio.sleep(0.05)

  async def served(self, channel: grpc.aio.Channel, name: str, version: int) -> None:
    await self.until(
      channel, name, version, lambda state, message: (state, message) == ("AVAILABLE", "")
    )


def _events(
  soak: _Soak, server: clients.Server, channel: grpc.aio.Channel
) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
  """The events, in turn and without end."""

  async def replace() -> None:
    model = soak.models["replaced"]
    old = max(model.variants)
    await soak.served(channel, "replaced", soak.publish("replaced"))
    model.live.discard(old)
    shutil.rmtree(model.folder / str(old))

  async def corrupt() -> None:
    """Adds versions that cannot be loaded."""
    for name, model in soak.models.items():
      if model.state == "asked":
        broken = model.folder / str(10**6)
        broken.mkdir()
        (broken / "saved_model.pb").write_bytes(os.urandom(1000))
        await soak.until(
          channel, name, 10**6, lambda state, message: state == "END" and bool(message)
        )
        shutil.rmtree(broken)
        soak.events[f"broken versions of {name}"] += 1

  async def damage() -> None:
    """Overwrites a file of each served version in place, and then writes it as it was: the loaded
    version has to stay."""
    for name, model in soak.models.items():
      if model.state == "asked":
        version = max(model.live)
        file = model.folder / str(version) / next(damaged)
        good = file.read_bytes()
        file.write_bytes(os.urandom(len(good)))
        await soak.until(
          channel, name, version, lambda state, message: state == "AVAILABLE" and bool(message)
        )
        file.write_bytes(good)
        await soak.served(channel, name, version)
        soak.events[f"served files of {name} damaged"] += 1

  async def kill() -> None:
    pids = server.pids("replica")
    os.kill(pids[np.random.randint(len(pids))], signal.SIGKILL)
    end = time.monotonic() + _PATIENCE_SECONDS
    while server.ready < 2 and time.monotonic() < end:
      await asyncio.sleep(0.5)

  async def add() -> None:
    model = soak.models["guest"]
    await model.leave()
    await soak.served(channel, "guest", soak.publish("guest"))
    model.state = "asked"

  async def remove() -> None:
    model = soak.models["guest"]
    await model.leave()
    shutil.rmtree(model.folder)
    model.live.clear()
    await soak.until(
      channel, "guest", max(model.variants), lambda state, message: state == "NOT_FOUND"
    )
    model.state = "gone"

  damaged = itertools.cycle(
    ("saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index")
  )
  yield from itertools.cycle(
    [
      ("models added", add),
      ("versions replaced", replace),
      ("", corrupt),  # these two count their models
      ("", damage),
      ("replicas killed", kill),
      ("versions replaced", replace),
      ("models removed", remove),
    ]
  )


def _megabytes(server: clients.Server) -> tuple[float, float]:
  """The resident memory of the largest replica, and of all processes together."""
  sizes = server.megabytes
  return max(sizes["replica"], default=0.0), sum(map(sum, sizes.values()))


async def _run(
  soak: _Soak, server: clients.Server, seconds: float, requests: int, events: int
) -> dict[str, Any]:
  begin = time.monotonic()
  memory: list[tuple[float, float, float]] = []
  async with grpc.aio.insecure_channel(
    f"127.0.0.1:{server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
  ) as channel:
    for name in ("steady", "replaced"):
      await soak.served(channel, name, 1)
      soak.models[name].state = "asked"

    async def disturb() -> None:
      for i, (name, event) in zip(range(events), _events(soak, server, channel), strict=False):
        await asyncio.sleep(max(0.0, begin + seconds * (i + 1) / (events + 1) - time.monotonic()))
        await event()
        if name:
          soak.events[name] += 1

    async def weigh() -> None:
      while True:
        memory.append((time.monotonic() - begin, *await asyncio.to_thread(_megabytes, server)))
        await asyncio.sleep(seconds / 100)

    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    weighing, disturbing = asyncio.create_task(weigh()), asyncio.create_task(disturb())
    asking = set()
    for i in track(range(requests), "requests"):
      await asyncio.sleep(max(0.0, begin + seconds * i / requests - time.monotonic()))
      asking.add(task := asyncio.create_task(soak.ask(stub, server.http_port)))
      task.add_done_callback(asking.discard)
    await asyncio.gather(*asking, disturbing)
    weighing.cancel()
  soak.tally.seconds = time.monotonic() - begin

  thirds: dict[str, list[float]] = {"the largest replica MB": [], "all processes MB": []}
  for third in range(3):
    # the last one has what came after the end of the time, too
    of_third = [sizes for when, *sizes in memory if min(int(3 * when / seconds), 2) == third]
    for name, sizes in zip(thirds, zip(*of_third, strict=True), strict=False):
      thirds[name].append(round(max(sizes)))
  return {f"{name} by thirds": sizes for name, sizes in thirds.items()}


def measure(folder: pathlib.Path, share: float) -> tuple[dict[str, Any], list[str]]:
  """The figures, and lost and wrong answers, memory that grew, and a start that took too long.

  Args:
    folder: where the models are saved.
    share: of the time, of the requests and of the events.
  """
  minutes, requests, events = share * _MINUTES, int(share * _REQUESTS), int(share * _EVENTS)
  soak = _Soak(folder)
  for name in ("steady", "replaced"):
    soak.publish(name)
  with clients.serving(soak.models_folder, "--replicas=2") as server:
    memory = asyncio.run(_run(soak, server, 60 * minutes, requests, events))
  about = {"minutes": minutes, "start s": round(server.start_seconds, 1)}
  counts = {"asked": dict(soak.asked), "events": dict(soak.events)}
  report = about | soak.tally.summary() | counts | memory
  faults = soak.tally.errors + ["a wrong answer"] * soak.tally.wrong
  return report, faults + bounds.grown(report) + bounds.late([server.start_seconds])
