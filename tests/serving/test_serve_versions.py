"""What `jax2tf serve` serves: versions that come and go, models of a config file, and files that
stop whoever opens them."""

from __future__ import annotations

import functools
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jax2tf.converters import saved_model
from jax2tf.converters.bundle import versions as on_disk
from jax2tf.tools.serving import config, versions
from jax2tf.tools.serving import models as served_models
from jax2tf.tools.serving.follower import Follower
from jax2tf.tools.serving.model import Model
from tests.serving.serve_models import options, save

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  path = tmp_path_factory.mktemp("models") / "encoder"
  save(path, 0)
  return path


@pytest.fixture
def models_module(monkeypatch: pytest.MonkeyPatch) -> Any:
  """The replicas' module of models, which looks when it is told."""
  monkeypatch.setattr(served_models, "POLL_SECONDS", 1e9)
  monkeypatch.setattr(served_models, "_PATIENCE_SECONDS", 120.0)
  return served_models


def _encoder(models_module: Any, folder: Path, replicas: int = 1) -> Any:
  return models_module.Models(lambda: {"encoder": config.Source(folder / "encoder")}, replicas)


def _looks(models: Any, count: int = 2) -> int:
  for _ in range(count):
    models.refresh()
  return int(models.get("encoder", None).version)


def test_a_copy_that_takes_long_is_served_when_it_is_whole(
  folder: Path, tmp_path: Path, models_module: Any
) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  models = _encoder(models_module, tmp_path)
  (tmp_path / "encoder" / "2").mkdir()
  shutil.copy2(folder / "1" / "saved_model.pb", tmp_path / "encoder" / "2")
  assert _looks(models, 6) == 1
  assert [state["version"] for state in models.status("encoder", None)] == ["2", "1"]
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2", dirs_exist_ok=True)
  assert _looks(models) == 2
  assert [state["state"] for state in models.status("encoder", None)] == ["AVAILABLE"]


def test_a_version_is_not_loaded_while_it_changes(
  folder: Path, tmp_path: Path, models_module: Any
) -> None:
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


def test_a_replica_starts_with_the_newest_version_that_loads(
  folder: Path, tmp_path: Path, models_module: Any
) -> None:
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
  [
    ({}, {4, 1}),
    ({"latest": 2}, {4, 2, 1}),
    ({"latest": 9}, {4, 2, 1}),
    ({"latest": 9, "only": frozenset([1, 2])}, {2, 1}),
  ],
  ids=["newest", "two", "all", "specific"],
)
def test_which_versions_are_served(
  folder: Path, tmp_path: Path, models_module: Any, source: Any, served: set[int]
) -> None:
  for version in (1, 2, 4):
    os.symlink(folder / "1", tmp_path / str(version))
  (tmp_path / "5").mkdir()
  (tmp_path / "5" / "saved_model.pb").write_bytes(b"broken")
  found = {"encoder": config.Source(tmp_path, labels={"old": 1, "gone": 9}, **source)}
  models = models_module.Models(lambda: found)
  codes = {
    version: _code(functools.partial(models.get, "encoder", version)) for version in range(9)
  }
  assert {version for version, code in codes.items() if code == grpc.StatusCode.OK} == served
  assert models.get("encoder", None).version == max(served)
  # the policy would not serve it, but a client may ask for it
  assert models.get("encoder", None, "old").version == 1
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
  assert (_code(lambda: models.get("broken", None)), _code(lambda: models.get("b", None))) == (
    NOT_FOUND,
    NOT_FOUND,
  )
  (tmp_path / "a").rename(tmp_path / "b")
  for _ in range(2):
    models.refresh()
  assert models.get("b", None).version == 1
  assert _code(lambda: models.get("a", None)) == NOT_FOUND


def test_a_state_is_served_by_one_replica(tmp_path: Path, models_module: Any) -> None:
  model = saved_model.Model({}, state=np.int32(0)).add(
    lambda _, n, x: (n + 1, x), inputs={"x": "f32[b]"}, stateful=True
  )
  path = model.save(tmp_path / "encoder")
  signature = Model(path).signature("")
  assert signature.stateful
  assert not signature.batched
  assert _encoder(models_module, tmp_path).get("encoder", None).version == 1
  with pytest.raises(
    RuntimeError, match="each of 2 replicas would have its own; serve with --replicas=1"
  ):
    _encoder(models_module, tmp_path, 2)


def test_a_name_gets_another_folder(folder: Path, tmp_path: Path, models_module: Any) -> None:
  """The earlier version answers until one of the new folder is loaded."""
  shutil.copytree(folder / "1", tmp_path / "a" / "1")
  found = {"encoder": config.Source(tmp_path / "a")}
  models = models_module.Models(lambda: found)
  found["encoder"] = config.Source(tmp_path / "b")
  assert _looks(models) == 1
  shutil.copytree(folder / "1", tmp_path / "b" / "2")
  assert _looks(models) == 2


@pytest.mark.parametrize("where", ["saved_model.pb", "assets/pipe", "assets.extra/jax2tf.json"])
def test_a_version_with_a_named_pipe_is_refused(
  where: str, folder: Path, tmp_path: Path, models_module: Any
) -> None:
  """Whoever opens it would wait for a writer."""
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  models = _encoder(models_module, tmp_path)
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2")
  pipe = tmp_path / "encoder" / "2" / where
  pipe.parent.mkdir(exist_ok=True)
  pipe.unlink(missing_ok=True)
  os.mkfifo(pipe)
  assert _looks(models) == 1
  [newest, _] = models.status("encoder", None)
  assert (
    newest["status"]["error_message"]
    == f"ValueError: {where} is a named pipe; a version has files and folders only"
  )


def test_a_model_that_is_read_for_ever_stops_no_other(
  folder: Path, tmp_path: Path, models_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
  """As on a file system that does not answer."""
  monkeypatch.setattr(models_module, "_PATIENCE_SECONDS", 0.2)
  release = threading.Event()
  warm = versions._warm

  def load(directory: Path, replicas: int, allow_ops: frozenset[str]) -> Any:
    if directory.parent.name == "a_stuck":
      release.wait(60)
    return warm(directory, replicas, allow_ops)

  many = options(tmp_path, folder=str(tmp_path))
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  models = models_module.Models(lambda: config.sources(many))
  monkeypatch.setattr(versions, "_warm", load)
  shutil.copytree(folder / "1", tmp_path / "a_stuck" / "1")
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2")
  end = time.monotonic() + 60
  while models.get("encoder", None).version != 2:
    assert time.monotonic() < end
    models.refresh()
  assert models.faults == {"a_stuck": f"{tmp_path / 'a_stuck'} is still being read"}
  monkeypatch.setattr(models_module, "_PATIENCE_SECONDS", 60.0)
  release.set()
  models._known["a_stuck", tmp_path / "a_stuck"]._thread.join(30)
  models.refresh()
  assert models.get("a_stuck", None).version == 1


def test_a_version_is_an_int64_and_has_one_folder(
  folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  largest, names = str(2**63 - 1), ("1", "01", str(2**63), "9" * 20, "\u0661")
  for name in (*names, largest):
    os.symlink(folder / "1", tmp_path / name)
  assert {path.name for path in on_disk.served(tmp_path)} == {"1", largest}
  follower = Follower(options(tmp_path, folder=str(tmp_path), name="m"))
  config.write(tmp_path, {})
  for _ in range(2):  # it is said once
    follower.look()
  rule = f"a version is at most {largest}; give the folder a smaller number"
  assert capsys.readouterr().err.splitlines() == [
    f"not served: {tmp_path / '01'}: 1 is the same version; remove one of the folders",
    f"not served: {tmp_path / str(2**63)}: {rule}",
    f"not served: {tmp_path / ('9' * 20)}: {rule}",
  ]


MODEL = 'name: "m" base_path: "folder" '


def _listed(*models: str) -> str:
  return f"model_config_list {{ {' '.join(f'config {{ {model} }}' for model in models)} }}"


def test_a_config_file_of_tf_serving(tmp_path: Path) -> None:
  file = tmp_path / "models.config"
  policies = [
    "",
    "model_version_policy { latest { num_versions: 2 } }",
    "model_version_policy { all {} }",
  ]
  policies += [
    'model_platform: "tensorflow" model_version_policy { specific { versions: 3 } } '
    'version_labels { key: "stable" value: 3 }'
  ]
  file.write_text(
    _listed(*(f'name: "{i}" base_path: "{"/" * i}m" {policy}' for i, policy in enumerate(policies)))
  )
  found = config.sources(options(tmp_path, model_config_file=str(file)))
  assert [source.latest for source in found.values()] == [1, 2, float("inf"), float("inf")]
  assert (found["0"].folder, found["1"].folder) == (tmp_path / "m", Path("/m"))
  assert (found["3"].only, found["3"].labels) == (frozenset([3]), {"stable": 3})
  config.write(tmp_path, found)
  assert config.read(tmp_path) == found


def test_a_config_file_that_is_wrong_for_a_while(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    (
      "model_config_list { config { nam",
      "is not a text proto of tensorflow.serving.ModelServerConfig",
    ),
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
