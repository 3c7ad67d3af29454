"""The parts of `jax2tf serve` without its processes: requests that run together, versions that come and go, slow clients."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.tools.cli import main as command
from jax2tf.tools.serving import child, config, deaths, place, server, signals, supervisor
from jax2tf.tools.serving.follower import Follower
from jax2tf.tools.sweeps import clients, reports, serving_report
from tests.serve_models import encode, inputs_of, options, params, save

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


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
def models_module(model_module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
  """The replicas' module of models, which looks when it is told."""
  module = importlib.import_module("jax2tf.tools.serving.models")
  monkeypatch.setattr(module, "POLL_SECONDS", 1e9)
  return module


def _encoder(models_module: Any, folder: Path, replicas: int = 1) -> Any:
  return models_module.Models(lambda: {"encoder": config.Source(folder / "encoder")}, replicas)


def _looks(models: Any, count: int = 2) -> int:
  for _ in range(count):
    models.refresh()
  return int(models.get("encoder", None).version)


def test_a_copy_that_takes_long_is_served_when_it_is_whole(folder: Path, tmp_path: Path, models_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  models = _encoder(models_module, tmp_path)
  (tmp_path / "encoder" / "2").mkdir()
  shutil.copy2(folder / "1" / "saved_model.pb", tmp_path / "encoder" / "2")
  assert _looks(models, 6) == 1
  assert [state["version"] for state in models.status("encoder", None)] == ["2", "1"]
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2", dirs_exist_ok=True)
  assert _looks(models) == 2
  assert [state["state"] for state in models.status("encoder", None)] == ["AVAILABLE"]


def test_a_version_is_not_loaded_while_it_changes(folder: Path, tmp_path: Path, models_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  models = _encoder(models_module, tmp_path)
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2")
  words = tmp_path / "encoder" / "2" / "assets" / "words.txt"
  words.parent.mkdir(exist_ok=True)
  for i in range(4):  # a vocabulary that has half of its lines would load, and be wrong
    with words.open("a") as file:
      file.write(f"word {i}\n")
    assert _looks(models, 1) == 1
  assert _looks(models, 1) == 2
  served = models.get("encoder", None)
  words.write_text("other words\n")
  _looks(models)
  assert models.get("encoder", None) is not served


def test_a_replica_starts_with_the_newest_version_that_loads(folder: Path, tmp_path: Path, models_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  (tmp_path / "encoder" / "2").mkdir()
  (tmp_path / "encoder" / "2" / "saved_model.pb").write_bytes(b"broken")
  models = _encoder(models_module, tmp_path)
  assert _looks(models) == 1
  assert [state["version"] for state in models.status("encoder", None)] == ["2", "1"]
  shutil.rmtree(tmp_path / "encoder" / "1")
  assert _looks(models) == 1
  with pytest.raises(RuntimeError, match=r"'encoder': version 2 in .* cannot be loaded: .*parse"):
    _encoder(models_module, tmp_path)


def _code(call: Callable[[], Any]) -> grpc.StatusCode:
  try:
    call()
  except Exception as refusal:
    assert type(refusal).__name__ == "RefusedError"  # of a module that is imported anew
    return refusal.code  # type: ignore[attr-defined, no-any-return]
  return grpc.StatusCode.OK


@pytest.mark.parametrize(
  ("source", "served"),
  [({}, {4}), ({"latest": 2}, {4, 2}), ({"latest": 9}, {4, 2, 1}), ({"latest": 9, "only": frozenset([1, 2])}, {2, 1})],
  ids=["newest", "two", "all", "specific"],
)
def test_which_versions_are_served(folder: Path, tmp_path: Path, models_module: Any, source: Any, served: set[int]) -> None:
  for version in (1, 2, 4):
    os.symlink(folder / "1", tmp_path / str(version))
  (tmp_path / "5").mkdir()
  (tmp_path / "5" / "saved_model.pb").write_bytes(b"broken")
  found = {"encoder": config.Source(tmp_path, labels={"old": 1, "gone": 9}, **source)}
  models = models_module.Models(lambda: found)
  assert {version for version in range(9) if _code(lambda: models.get("encoder", version)) == grpc.StatusCode.OK} == served  # noqa: B023
  assert models.get("encoder", None).version == max(served)
  assert (_code(lambda: models.get("encoder", None, "old")) == grpc.StatusCode.OK) == (1 in served)
  assert _code(lambda: models.get("encoder", None, "gone")) == NOT_FOUND
  assert _code(lambda: models.get("encoder", None, "new")) == INVALID


def test_models_come_and_go(folder: Path, tmp_path: Path, models_module: Any) -> None:
  many = options(tmp_path, folder=str(tmp_path))
  shutil.copytree(folder / "1", tmp_path / "a" / "1")
  (tmp_path / "broken" / "1").mkdir(parents=True)
  (tmp_path / "broken" / "1" / "saved_model.pb").write_bytes(b"broken")
  models = models_module.Models(lambda: config.sources(many))
  [(name, fault)] = models.faults.items()
  assert (name, fault.startswith("version 1 in ")) == ("broken", True)
  assert (_code(lambda: models.get("broken", None)), _code(lambda: models.get("b", None))) == (NOT_FOUND, NOT_FOUND)
  (tmp_path / "a").rename(tmp_path / "b")
  for _ in range(2):
    models.refresh()
  assert models.get("b", None).version == 1
  assert _code(lambda: models.get("a", None)) == NOT_FOUND


MODEL = 'name: "m" base_path: "folder" '


def _listed(*models: str) -> str:
  return f"model_config_list {{ {' '.join(f'config {{ {model} }}' for model in models)} }}"


def test_a_config_file_of_tf_serving(tmp_path: Path) -> None:
  file = tmp_path / "models.config"
  policies = ["", "model_version_policy { latest { num_versions: 2 } }", "model_version_policy { all {} }"]
  policies += ['model_platform: "tensorflow" model_version_policy { specific { versions: 3 } } version_labels { key: "stable" value: 3 }']
  file.write_text(_listed(*(f'name: "{i}" base_path: "{"/" * i}m" {policy}' for i, policy in enumerate(policies))))
  found = config.sources(options(tmp_path, model_config_file=str(file)))
  assert [source.latest for source in found.values()] == [1, 2, float("inf"), float("inf")]
  assert (found["0"].folder, found["1"].folder) == (tmp_path / "m", Path("/m"))
  assert (found["3"].only, found["3"].labels) == (frozenset([3]), {"stable": 3})
  config.write(tmp_path, found)
  assert config.read(tmp_path) == found


def test_a_config_file_that_is_wrong_for_a_while(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  file = tmp_path / "models.config"
  follower = Follower(options(tmp_path, model_config_file=str(file)))
  config.write(tmp_path, {})
  for text, said in ((_listed(MODEL), 0), ("no proto", 1), ("no proto", 0)):
    file.write_text(text)
    follower.look()
    assert config.read(tmp_path) == {"m": config.Source(tmp_path / "folder")}
    assert capsys.readouterr().err.count("still serving the earlier models: ") == said


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("model_config_list { config { nam", "is not a text proto of tensorflow.serving.ModelServerConfig"),
    ("", "names no model"),
    ("custom_model_config {}", "names no model"),
    (_listed('name: "m"'), "a name and a base_path"),
    (_listed(MODEL, MODEL), "model 'm' twice"),
    (_listed('name: "m" base_path: "gs://bucket"'), "only folders of this machine"),
    (_listed(MODEL + 'model_platform: "caffe"'), "only 'tensorflow'"),
    (_listed(MODEL + "model_version_policy { specific {} }"), "names no version"),
    (_listed(MODEL + "logging_config {}"), "no requests are logged"),
  ],
)
def test_what_a_config_file_may_not_say(tmp_path: Path, text: str, words: str) -> None:
  (tmp_path / "models.config").write_text(text)
  with pytest.raises(ValueError, match=words):
    config.sources(options(tmp_path, model_config_file=str(tmp_path / "models.config")))


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
  server._held("127.0.0.1", port, signals.Signals()).close()  # although a connection of before is in TIME_WAIT


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
  async def without_delay() -> int:
    found = asyncio.get_running_loop().create_future()
    with contextlib.closing(child.bound("127.0.0.1", 0)) as listener:

      async def asked(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

      async with await asyncio.start_server(asked, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        writer.close()
        return await asyncio.wait_for(found, 10)

  assert asyncio.run(without_delay()) == 1


def test_the_ports_of_a_killed_server_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
  with pytest.raises(ValueError, match="the server cannot start: 'm': version 1 in m cannot be loaded: DataLossError"):
    supervisor._wait(options(tmp_path), [], signals.Signals(), deaths.Deaths(tmp_path))
  assert capsys.readouterr().err.startswith("starting 2 proxies, Ray and 1 replicas")


def _without_ray(_: child.Options) -> int:
  raise RuntimeError("no Ray:\n\n  no memory")


@pytest.mark.parametrize(
  ("module", "reason"),
  [
    (types.SimpleNamespace(main=_without_ray), "cluster: RuntimeError: no Ray: no memory"),
    (None, "cluster: ModuleNotFoundError: import of jax2tf.tools.serving.cluster halted; None in sys.modules"),
  ],
  ids=["run", "import"],
)
def test_a_process_that_fails_says_why_in_one_line(
  module: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
  assert _serve(folder, capsys) == (2, "", f"jax2tf serve: the server needs {package}: pip install 'jax2tf[serving]'\n")


def _serve(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
  with pytest.raises(SystemExit) as ended:
    command.main(["serve", str(folder), *flags])
  return int(ended.value.code or 0), *capsys.readouterr()


def test_where_the_versions_are(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  shutil.copytree(folder / "1", tmp_path / "plain")
  name = os.path.relpath(folder)
  for given, words in (
    (folder / "1", f"has no version to serve; it is version 1 itself; name the directory of the versions, {name}\n"),
    (tmp_path / "plain", f"has no version to serve; it is a SavedModel itself; move its files to {tmp_path / 'plain' / '1'}\n"),
    (tmp_path / "plain" / "variables", "has no version to serve; `jax2tf convert --out DIR` writes DIR/1/\n"),
  ):
    assert _serve(given, capsys) == (2, "", f"jax2tf serve: {given} {words}")


def test_an_address_of_another_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
  """192.0.2.0/24 is for documents, so no machine has an address of it."""
  words = "jax2tf serve: --host 192.0.2.1 is not an address of this machine: Cannot assign requested address\n"
  assert _serve(folder, capsys, "--host=192.0.2.1") == (2, "", words)


@pytest.mark.parametrize(
  ("number", "code", "words"),
  [(signal.SIGINT, 130, "jax2tf serve: interrupted"), (signal.SIGTERM, 0, "ending before the server is ready")],
  ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_before_the_server_is_ready(
  number: int, code: int, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  started: list[subprocess.Popen[bytes]] = []

  def start(kind: str, options: child.Options) -> subprocess.Popen[bytes]:
    """A process that is never ready, and ends when it is told to; the last one comes with the signal."""
    del kind, options
    started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
    if len(started) == 3:
      os.kill(os.getpid(), number)
    return started[-1]

  monkeypatch.setattr(supervisor, "start", start)
  before = signal.getsignal(number)
  ports = (f"--{name}_port={port}" for name, port in zip(("grpc", "http"), clients.free_ports(2), strict=True))
  found, out, error = _serve(folder, capsys, "--replicas=1", *ports)
  assert (found, out, error.splitlines()[-1][: len(words)]) == (code, "", words)
  assert [process.returncode for process in started] == [0, 0, 0]
  assert signal.getsignal(number) is before


def test_a_state_is_served_by_one_replica(tmp_path: Path, model_module: Any, models_module: Any) -> None:
  model = saved_model.Model({}, state=np.int32(0)).add(lambda _, n, x: (n + 1, x), inputs={"x": "f32[b]"}, stateful=True)
  path = model.save(tmp_path / "encoder")
  signature = model_module.Model(path).signature("")
  assert signature.stateful
  assert not signature.batched
  assert _encoder(models_module, tmp_path).get("encoder", None).version == 1
  with pytest.raises(RuntimeError, match="each of 2 replicas would have its own; serve with --replicas=1"):
    _encoder(models_module, tmp_path, 2)


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
  assert json.loads(capsys.readouterr().out) == {"verdict": line, "models": ["good"], "not served": faults, **addresses}


DYING = """
import os, subprocess, sys, time, types
from jax2tf.tools.serving import cluster

def start(_):
  with open("raylet", "w") as file:  # a process of this name
    file.write("#!/bin/sh\\nsleep 0.5\\nkill -9 $$\\n")
  os.chmod("raylet", 0o700)
  subprocess.Popen([os.path.abspath("raylet")])
  time.sleep(0.3)

cluster._start_ray = start
cluster.serve.start = lambda **_: time.sleep(60)  # as Ray Serve waits for what died with the raylet
cluster.main(types.SimpleNamespace(replicas=1, run=sys.argv[1]))
"""


def test_a_cluster_ends_with_its_raylet_although_it_still_starts(tmp_path: Path) -> None:
  command = [sys.executable, "-c", DYING, str(tmp_path)]
  assert subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False, timeout=30).returncode == 1
  [(_, reason)] = deaths.failures(tmp_path)
  assert reason == "raylet of Ray was killed by SIGKILL"


def test_what_a_load_is_expected_to_show() -> None:
  """Replicas add up until all cores are busy, and memory and starts have bounds."""
  one = {"requests per second": 400.0} | dict.fromkeys(serving_report.COSTS, 0.5)  # 2 ms of CPU time for each request
  assert [serving_report.predicted(one, count, cores=2) for count in (1, 2, 3)] == [400, 800, 1000]
  assert [len(serving_report.late(starts)) for starts in ([29.9, 8.0], [31.0, 8.0])] == [0, 1]
  soak = {"minutes": 30, "all processes MB by thirds": [1000, 2000, 2099]}
  assert serving_report.grown(soak) == []
  assert serving_report.grown(soak | {"all processes MB by thirds": [1000, 2000, 2101]}) == [
    "all processes MB by thirds: [1000, 2000, 2101], a growth by more than 5%"
  ]


def test_the_page_of_the_load_has_its_numbers() -> None:
  page = serving_report.markdown(reports.read(serving_report.LOAD), reports.read(serving_report.SOAK))
  assert reports.page("serving").read_text(encoding="utf-8") == page
