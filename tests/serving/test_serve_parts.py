"""The parts of `jax2tf serve` without its processes: requests that run together, versions that come
and go, slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.tools.cli import main as command
from jax2tf.tools.serving import child, config, deaths, place, server, signals, supervisor
from jax2tf.tools.serving.model import Call, Memory, Model, run
from tests.serving.serve_models import encode, inputs_of, options, params, save
from tests.support.ports import free_ports

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  path = tmp_path_factory.mktemp("models") / "encoder"
  save(path, 0)
  return path


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
  ids=[
    "one run",
    "other dimensions",
    "limit",
    "larger than the limit",
    "refused together",
    "no rows",
  ],
)
def test_which_requests_run_together(
  folder: Path, sizes: list[tuple[int, int]], max_rows: int, expected: list[int]
) -> None:
  model = Model(folder / "1")
  signature, rows = _counted(model.signature(""))
  inputs = [inputs_of(b, s) for b, s in sizes]
  outcomes = run([Call(signature, each) for each in inputs], max_rows)
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
  tmp_path: Path, inputs: dict[str, str], constraints: list[str], batched: bool
) -> None:
  path = saved_model.save(
    encode, params(0), tmp_path, inputs=inputs, polymorphic_constraints=constraints
  )
  assert Model(path).signature("").batched is batched


def test_a_port_is_of_one_server() -> None:
  with contextlib.closing(child.held("127.0.0.1", 0)) as first:
    port = first.getsockname()[1]
    with contextlib.closing(child.bound("127.0.0.1", port)) as own:
      for _ in ("held", "held and listening"):
        with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 cannot be used"):
          server._held("127.0.0.1", port, signals.Signals())
        own.listen()
      with socket.create_connection(("127.0.0.1", port)):
        own.accept()[0].close()
  # although a connection of before is in TIME_WAIT
  server._held("127.0.0.1", port, signals.Signals()).close()


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
  async def without_delay() -> int:
    found = asyncio.get_running_loop().create_future()
    with contextlib.closing(child.bound("127.0.0.1", 0)) as listener:

      async def asked(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.set_result(
          writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        )
        writer.close()

      async with await asyncio.start_server(asked, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        writer.close()
        return await asyncio.wait_for(found, 10)

  assert asyncio.run(without_delay()) == 1


def test_the_ports_of_a_killed_server_are_waited_for(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  ended = subprocess.Popen(["true"])
  ended.wait()
  run = tmp_path / "jax2tf-serve-x"
  run.mkdir()
  with contextlib.closing(child.bound("127.0.0.1", 0)) as proxy:
    proxy.listen()
    port = proxy.getsockname()[1]
    (run / f"{ended.pid}.server").write_text(f"[{port}, 1]")
    (run / f"{os.getpid()}.ready").touch()
    assert place.ports_of_killed() == {port, 1}
    for number, ends in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
      noted = signals.Signals()
      noted._note(number, None)
      with pytest.raises(ends):
        server._held("127.0.0.1", port, noted)
    closing = threading.Timer(0.3, proxy.close)
    closing.start()
    server._held("127.0.0.1", port, signals.Signals()).close()
    closing.join()
  (run / f"{os.getpid()}.ready").unlink()
  assert place.ports_of_killed() == {port, 1}
  assert not run.exists()


def test_a_start_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  (tmp_path / "7.failed").write_text("'m': version 1 in m cannot be loaded:\nDataLossError")
  with pytest.raises(
    ValueError, match="the server cannot start: 'm': version 1 in m cannot be loaded: DataLossError"
  ):
    supervisor._wait(options(tmp_path), [], signals.Signals(), deaths.Deaths(tmp_path))
  assert capsys.readouterr().err.startswith("starting 2 proxies, Ray and 1 replicas")


def _without_ray(_: child.Options) -> int:
  raise RuntimeError("no Ray:\n\n  no memory")


@pytest.mark.parametrize(
  ("module", "reason"),
  [
    (types.SimpleNamespace(main=_without_ray), "cluster: RuntimeError: no Ray: no memory"),
    (
      None,
      "cluster: ModuleNotFoundError: import of jax2tf.tools.serving.cluster halted; None in "
      "sys.modules",
    ),
  ],
  ids=["run", "import"],
)
def test_a_process_that_fails_says_why_in_one_line(
  module: Any,
  reason: str,
  tmp_path: Path,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
) -> None:
  """The reason of a replica comes before that of Ray, which has none."""
  process = importlib.import_module("jax2tf.tools.serving.__main__")
  monkeypatch.setattr(child, "options", lambda: options(tmp_path))
  monkeypatch.setitem(sys.modules, "jax2tf.tools.serving.cluster", module)
  assert process.main("cluster") == 1
  assert deaths.failures(tmp_path) == [(os.getpid(), reason)]
  (tmp_path / "7.failed").write_text("of a replica")
  assert process.main("cluster") == 1
  assert deaths.failures(tmp_path) == [(7, "of a replica")]
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("package", server._PACKAGES)
def test_a_package_that_is_missing_is_named(
  package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  monkeypatch.setitem(sys.modules, package, None)
  assert _serve(folder, capsys) == (
    2,
    "",
    f"jax2tf serve: the server needs {package}: pip install 'jax2tf[serving]'\n",
  )


def _serve(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
  with pytest.raises(SystemExit) as ended:
    command.main(["serve", str(folder), *flags])
  return int(ended.value.code or 0), *capsys.readouterr()


def test_where_the_versions_are(
  folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  shutil.copytree(folder / "1", tmp_path / "plain")
  name = os.path.relpath(folder)
  for given, words in (
    (
      folder / "1",
      "has no version to serve; it is version 1 itself; name the directory of the versions, "
      f"{name}\n",
    ),
    (
      tmp_path / "plain",
      "has no version to serve; it is a SavedModel itself; move its files to "
      f"{tmp_path / 'plain' / '1'}\n",
    ),
    (
      tmp_path / "plain" / "variables",
      "has no version to serve; `jax2tf convert --out DIR` writes DIR/1/\n",
    ),
  ):
    assert _serve(given, capsys) == (2, "", f"jax2tf serve: {given} {words}")


def test_an_address_of_another_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
  """192.0.2.0/24 is for documents, so no machine has an address of it."""
  words = (
    "jax2tf serve: --host 192.0.2.1 is not an address of this machine: Cannot assign "
    "requested address\n"
  )
  assert _serve(folder, capsys, "--host=192.0.2.1") == (2, "", words)


@pytest.mark.parametrize(
  ("number", "code", "words"),
  [
    (signal.SIGINT, 130, "jax2tf serve: interrupted"),
    (signal.SIGTERM, 0, "ending before the server is ready"),
  ],
  ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_before_the_server_is_ready(
  number: int,
  code: int,
  words: str,
  folder: Path,
  monkeypatch: pytest.MonkeyPatch,
  capsys: pytest.CaptureFixture[str],
) -> None:
  started: list[subprocess.Popen[bytes]] = []

  def start(kind: str, options: child.Options) -> subprocess.Popen[bytes]:
    """A process that is never ready, and ends when it is told to; the last one comes with the
    signal."""
    del kind, options
    started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
    if len(started) == 3:
      os.kill(os.getpid(), number)
    return started[-1]

  monkeypatch.setattr(supervisor, "start", start)
  before = signal.getsignal(number)
  ports = (
    f"--{name}_port={port}" for name, port in zip(("grpc", "http"), free_ports(2), strict=True)
  )
  found, out, error = _serve(folder, capsys, "--replicas=1", *ports)
  assert (found, out, error.splitlines()[-1][: len(words)]) == (code, "", words)
  assert [process.returncode for process in started] == [0, 0, 0]
  assert signal.getsignal(number) is before


def test_requests_that_become_large_wait_for_each_other() -> None:
  async def most_at_once() -> int:
    memory, most, now = Memory(100), 0, 0

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


def test_what_is_served_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  (tmp_path / "7.faults").write_text('{"bad": "version 1 cannot be loaded"}')
  config.write(tmp_path, {name: config.Source(tmp_path) for name in ("good", "bad")})
  line = "serving 'good': gRPC [::1]:8500, REST https://[::1]:8501/v1/models/good"
  served = options(tmp_path, host="::1", grpc_port=8500, http_port=8501, tls_cert="c")
  supervisor._report(served, as_json=False)
  assert capsys.readouterr() == (f"{line}\n", "not served: 'bad': version 1 cannot be loaded\n")
  supervisor._report(served, as_json=True)
  addresses = {"grpc": "[::1]:8500", "rest": "https://[::1]:8501"}
  faults = {"bad": "version 1 cannot be loaded"}
  assert json.loads(capsys.readouterr().out) == {
    "verdict": line,
    "models": ["good"],
    "not served": faults,
    **addresses,
  }


DYING = """
import os, subprocess, sys, time, types
from jax2tf.tools.serving import cluster

def start(*_):
  with open("raylet", "w") as file:  # a process of this name
    file.write("#!/bin/sh\\nsleep 0.5\\nkill -9 $$\\n")
  os.chmod("raylet", 0o700)
  subprocess.Popen([os.path.abspath("raylet")])
  time.sleep(0.3)

cluster._start_ray = start
cluster.serve.start = lambda **_: time.sleep(60)  # as Ray Serve waits for what died with the raylet
cluster.main(types.SimpleNamespace(replicas=1, gpus=[], run=sys.argv[1]))
"""


def test_a_cluster_ends_with_its_raylet_although_it_still_starts(tmp_path: Path) -> None:
  command = [sys.executable, "-c", DYING, str(tmp_path)]
  assert (
    subprocess.run(
      command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False, timeout=120
    ).returncode
    == 1
  )
  [(_, reason)] = deaths.failures(tmp_path)
  assert reason == "raylet of Ray was killed by SIGKILL"
