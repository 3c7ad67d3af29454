"""The parts of `jax2tf serve` without its processes: requests that run together, versions that come and go, slow clients."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import importlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import jax
import numpy as np
import pytest
import tensorflow as tf
import uvicorn

from jax2tf.converters import saved_model
from jax2tf.tools.serving import child, proxy
from jax2tf.tools.sweeps import clients
from tests.serve_models import encode, inputs_of, params, save

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  path = tmp_path_factory.mktemp("models") / "encoder"
  save(path, 0)
  return path


@pytest.fixture
def model_module(monkeypatch: pytest.MonkeyPatch) -> Any:
  """The replicas' module, which keeps JAX out of its process; not out of this one."""
  monkeypatch.setitem(sys.modules, "jax", jax)  # which puts it back afterwards
  return importlib.import_module("jax2tf.tools.serving.model")


def _counted(signature: Any) -> tuple[Any, list[int]]:
  """The signature, and the rows of each of its runs."""
  rows: list[int] = []

  def function(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
    rows.append(len(inputs["x"]))
    result: dict[str, tf.Tensor] = signature.function(**inputs)
    return result

  return dataclasses.replace(signature, function=function), rows


@pytest.mark.parametrize(
  ("sizes", "max_rows", "expected"),
  [
    ([(2, 3), (3, 3), (4, 3)], 256, [9]),
    ([(2, 3), (3, 5), (4, 3)], 256, [6, 3]),
    ([(2, 3), (3, 3), (4, 3)], 5, [5, 4]),
    ([(2, 3), (9, 3)], 5, [2, 9]),
    ([(60, 1), (60, 1)], 256, [120, 60, 60]),
    ([(2, 3), (0, 3)], 256, [2, 0]),
  ],
  ids=["one run", "other dimensions", "limit", "larger than the limit", "refused together", "no rows"],
)
def test_which_requests_run_together(
  folder: Path, model_module: Any, sizes: list[tuple[int, int]], max_rows: int, expected: list[int]
) -> None:
  model = model_module.Model(folder / "1")
  signature, rows = _counted(model.signature(""))
  inputs = [inputs_of(b, s) for b, s in sizes]
  outcomes = model_module.run([model_module.Call(signature, each) for each in inputs], max_rows)
  assert rows == expected
  for each, outcome in zip(inputs, outcomes, strict=True):
    if len(each["x"]):
      np.testing.assert_allclose(outcome["y"], encode(params(0), **each)["y"], rtol=1e-5, atol=1e-6)
    else:
      assert outcome.code == INVALID


@pytest.mark.parametrize(
  ("inputs", "constraints", "batched"),
  [
    ({"x": "f32[b,8]", "ids": "i32[b,s]"}, ["b <= 9", "s >= 2"], True),
    ({"x": "f32[b,8]", "ids": "i32[b,s]"}, ["b >= 2"], False),
    ({"x": "f32[b,8]", "ids": "i32[b,b]"}, [], False),
    ({"x": "f32[4,8]", "ids": "i32[4,s]"}, [], False),
  ],
  ids=["bounded", "at least", "twice", "fixed"],
)
def test_which_signatures_are_batched(
  tmp_path: Path, model_module: Any, inputs: dict[str, str], constraints: list[str], batched: bool
) -> None:
  path = saved_model.save(encode, params(0), tmp_path, inputs=inputs, polymorphic_constraints=constraints)
  assert model_module.Model(path).signature("").batched is batched


@pytest.fixture
def versions_module(model_module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
  """The replicas' module of versions, which looks when it is told."""
  module = importlib.import_module("jax2tf.tools.serving.versions")
  monkeypatch.setattr(module, "POLL_SECONDS", 1e9)
  return module


def _looks(versions: Any, count: int = 2) -> int:
  for _ in range(count):
    versions._refresh()
  return int(versions.get("encoder", None).version)


def test_a_copy_that_takes_long_is_served_when_it_is_whole(folder: Path, tmp_path: Path, versions_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  versions = versions_module.Versions(tmp_path / "encoder", "encoder")
  (tmp_path / "encoder" / "2").mkdir()
  shutil.copy2(folder / "1" / "saved_model.pb", tmp_path / "encoder" / "2")
  assert _looks(versions, 6) == 1
  assert [state["version"] for state in versions.status("encoder", None)] == ["2", "1"]
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2", dirs_exist_ok=True)
  assert _looks(versions) == 2
  assert [state["state"] for state in versions.status("encoder", None)] == ["AVAILABLE"]


def test_a_version_is_not_loaded_while_it_changes(folder: Path, tmp_path: Path, versions_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  versions = versions_module.Versions(tmp_path / "encoder", "encoder")
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2")
  words = tmp_path / "encoder" / "2" / "assets" / "words.txt"
  words.parent.mkdir(exist_ok=True)
  for i in range(4):  # a vocabulary that has half of its lines would load, and be wrong
    with words.open("a") as file:
      file.write(f"word {i}\n")
    assert _looks(versions, 1) == 1
  assert _looks(versions, 1) == 2
  served = versions.get("encoder", None)
  words.write_text("other words\n")
  _looks(versions)
  assert versions.get("encoder", None) is not served


def test_a_replica_starts_with_the_newest_version_that_loads(folder: Path, tmp_path: Path, versions_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  (tmp_path / "encoder" / "2").mkdir()
  (tmp_path / "encoder" / "2" / "saved_model.pb").write_bytes(b"broken")
  versions = versions_module.Versions(tmp_path / "encoder", "encoder")
  assert _looks(versions) == 1
  assert [state["version"] for state in versions.status("encoder", None)] == ["2", "1"]
  shutil.rmtree(tmp_path / "encoder" / "1")
  assert _looks(versions) == 1
  with pytest.raises(RuntimeError, match=r"of version 2: .*parse"):
    versions_module.Versions(tmp_path / "encoder", "encoder")


def test_a_state_is_served_by_one_replica(tmp_path: Path, model_module: Any, versions_module: Any) -> None:
  model = saved_model.Model({}, state=np.int32(0)).add(lambda _, n, x: (n + 1, x), inputs={"x": "f32[b]"}, stateful=True)
  path = model.save(tmp_path)
  signature = model_module.Model(path).signature("")
  assert signature.stateful
  assert not signature.batched
  assert versions_module.Versions(tmp_path, "encoder").get("encoder", None).version == 1
  with pytest.raises(RuntimeError, match="each of 2 replicas would have its own; serve with --replicas=1"):
    versions_module.Versions(tmp_path, "encoder", 2)


def test_requests_that_become_large_wait_for_each_other(model_module: Any) -> None:
  async def most_at_once() -> int:
    memory, most, now = model_module.Memory(100), 0, 0

    async def hold() -> None:
      nonlocal most, now
      async with memory.hold(40):
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    await asyncio.gather(*(hold() for _ in range(9)))
    return most

  assert asyncio.run(most_at_once()) == 2


def test_a_client_that_does_not_take_its_answer_is_cut() -> None:
  asked = asyncio.Event()

  async def application(scope: Any, receive: Any, send: Any) -> None:
    asked.set()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(64 << 20)})

  async def connections() -> int:
    server = proxy._Server(uvicorn.Config(application, http=proxy._protocol(0.2), lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listener]))
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.wait_for(asked.wait(), 10)
    await asyncio.sleep(1)
    left = len(server.server_state.connections)
    writer.transport.abort()
    server.should_exit = True
    await serving
    return left

  assert asyncio.run(connections()) == 0


def test_a_proxy_that_ends_cancels_no_call(tmp_path: Path) -> None:
  grpc_port, http_port = clients.free_ports(2)
  limits = {"max_batch_size": 1, "batch_wait_ms": 0.0, "max_request_mb": 1, "max_queued_requests": 1000, "client_seconds": 30.0}
  options = child.Options(folder="", name="", replicas=1, grpc_port=grpc_port, http_port=http_port, run=str(tmp_path), **limits)
  codes: collections.Counter[str] = collections.Counter()

  async def echo(data: bytes, context: Any) -> bytes:
    del context
    await asyncio.sleep(0.01)
    return data

  async def ask(call: Any) -> None:
    while True:
      try:
        await call(b"x", timeout=30)
        codes["OK"] += 1
      except grpc.aio.AioRpcError as error:
        codes[error.code().name] += 1
        return

  async def run(process: subprocess.Popen[bytes]) -> None:
    replica = grpc.aio.server()
    predict = grpc.unary_unary_rpc_method_handler(echo)
    replica.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(proxy.SERVICE, {"Predict": predict}),))
    replica.add_insecure_port(f"unix:{tmp_path}/{os.getpid()}.sock")
    await replica.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
      await asyncio.wait_for(channel.channel_ready(), 60)
      asking = [asyncio.create_task(ask(channel.unary_unary(f"/{proxy.SERVICE}/Predict"))) for _ in range(200)]
      await asyncio.sleep(1)
      assert process.stdin is not None
      process.stdin.close()
      await asyncio.gather(*asking)
    await replica.stop(None)

  with child.start("proxy", options) as process:
    asyncio.run(run(process))
  assert codes["OK"] > 200
  assert codes.keys() <= {"OK", "UNAVAILABLE"}, codes
  assert codes["UNAVAILABLE"] == 200
