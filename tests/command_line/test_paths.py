"""Paths that users give: addresses of TensorFlow's file systems are written and read there, or
refused before any work."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import onnx, saved_model, tfjs, tflite
from jax2tf.converters.bundle import paths, versions
from jax2tf.converters.saved_model import manifest
from jax2tf.converters.verify import verify
from jax2tf.converters.verify.report import Report
from jax2tf.tools.batch import contract
from jax2tf.tools.cli import _loading
from jax2tf.tools.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
W = np.eye(2, dtype=np.float32)
INPUTS = {"x": "f32[b,2]"}
GIVEN: dict[str, Any] = {"inputs": INPUTS, "outputs": ["y"]}
ONCE: dict[str, Any] = {"sizes": {"b": 1}, "samples": 1}
NAMES = (f"ram://test{i}" for i in itertools.count())


def f(w: Any, x: Any) -> Any:
  return x @ w


@pytest.fixture
def place() -> Iterator[str]:
  """An empty folder in memory."""
  folder = next(NAMES)
  tf.io.gfile.makedirs(folder)
  yield folder
  tf.io.gfile.rmtree(folder)


def files(folder: str) -> list[str]:
  return sorted(
    str(Path(where[len(folder) :], name)).lstrip("/")
    for where, _, names in tf.io.gfile.walk(folder)
    for name in names
  )


@pytest.fixture(scope="module")
def model() -> saved_model.Model:
  return saved_model.Model(W, trainable=False).add(f, **GIVEN)


def test_versions_at_an_address(
  place: str, model: saved_model.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  first, second = model.save(f"{place}/net"), saved_model.save(f, 2 * W, f"{place}/net", **GIVEN)
  assert (str(first), str(second), second.name) == (f"{place}/net/1", f"{place}/net/2", "2")
  assert len([name for name in files(place) if name.startswith("net/2/")]) == 5
  np.testing.assert_array_equal(
    tf.saved_model.load(str(second)).signatures["serving_default"](x=W)["y"], 2 * W
  )
  assert manifest.read(second).parameters == manifest.read(f"{place}/net/1").parameters
  assert [*tmp_path.iterdir()] == []


def test_the_file_that_readers_look_for_is_copied_last(
  place: str, model: saved_model.Model
) -> None:
  with mock.patch.object(tf.io.gfile, "copy", wraps=tf.io.gfile.copy) as copy:
    model.save(place)
  assert copy.call_count == 5
  assert copy.call_args.args[1] == f"{place}/1/saved_model.pb"


def test_a_copy_that_fails_leaves_nothing(place: str, model: saved_model.Model) -> None:
  original = tf.io.gfile.copy

  def fails(written: str, target: str, **options: Any) -> None:
    if target.endswith("saved_model.pb"):
      raise tf.errors.UnavailableError(None, None, "the network is gone")
    original(written, target, **options)

  with (
    mock.patch.object(tf.io.gfile, "copy", fails),
    pytest.raises(OSError, match=r"does not answer as it should \(the network is gone"),
  ):
    model.save(place)
  assert files(place) == []


def test_a_copy_that_is_cut_is_seen(place: str, model: saved_model.Model) -> None:
  def cut(written: str, target: str, **_: Any) -> None:
    with tf.io.gfile.GFile(target, "wb") as file:
      file.write(Path(written).read_bytes()[:-1])

  with (
    mock.patch.object(tf.io.gfile, "copy", cut),
    pytest.raises(OSError, match=r"has \d+ of \d+ bytes after it was copied"),
  ):
    model.save(place)
  assert files(place) == []


def test_what_is_at_an_address_is_not_overwritten(place: str, model: saved_model.Model) -> None:
  model.save(place, version=3)
  before = files(place)
  with pytest.raises(FileExistsError, match="exists already"):
    model.save(place, version=3)
  with pytest.raises(
    ValueError,
    match=r"overwrite = True: ram://.* cannot be replaced, because ram:// exchanges no "
    r"folders",
  ):
    model.save(place, version=3, overwrite=True)
  with pytest.raises(FileExistsError, match="is a version of a model, and not its folder"):
    model.save(f"{place}/3")
  assert files(place) == before


def test_reports_at_an_address(place: str) -> None:
  with mock.patch.multiple(Report, text=str, html=str):  # seconds
    assert str(Report("a model", (), (), {}, {}).write(f"{place}/report")) == f"{place}/report"
  assert files(place) == [f"report/verification.{kind}" for kind in ("html", "json", "txt")]


def test_models_and_parameters_at_an_address_are_read(
  place: str, model: saved_model.Model, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
  model.save(place)
  np.savez(tmp_path / "w.npz", w=2 * W)
  tf.io.gfile.copy(str(tmp_path / "w.npz"), f"{place}/w.npz")
  np.testing.assert_array_equal(_loading.parameters(f"{place}/w.npz")["w"], 2 * W)
  for command in (["inspect", place], ["diff", place, f"{place}/1"]):
    with pytest.raises(SystemExit) as ended:
      main(command)
    assert ended.value.code == 0
  said = capsys.readouterr().out
  assert f"{place}/1: 0.0 MB" in said
  assert "no difference" in said


def test_onnx_files_at_an_address(place: str, model: saved_model.Model) -> None:
  made = onnx.save_model(model, f"{place}/a.onnx", external_data_threshold=0, **ONCE)
  assert (str(made.path), made.size) == (
    f"{place}/a.onnx",
    sum(tf.io.gfile.stat(f"{place}/{name}").length for name in files(place)),
  )
  assert len(files(place)) == 2
  np.testing.assert_array_equal(onnx.run(f"{place}/a.onnx", {"x": W})["y"], W)
  with pytest.raises(FileExistsError, match=r"a\.onnx exists already"):
    onnx.save_model(model, f"{place}/a.onnx")
  onnx.save_model(model, f"{place}/a.onnx", overwrite=True, **ONCE)
  assert files(place) == ["a.onnx"]  # the data of the old one is gone


def test_litert_files_at_an_address(place: str, model: saved_model.Model) -> None:
  model.save(f"{place}/net")
  made = tflite.save_model(f"{place}/net", f"{place}/a.tflite", **ONCE)
  assert made.size == tf.io.gfile.stat(f"{place}/a.tflite").length
  assert [name for name in files(place) if not name.startswith("net/")] == ["a.tflite"]
  np.testing.assert_array_equal(tflite.run(f"{place}/a.tflite", {"x": W})["y"], W)


CALLS: dict[str, Callable[[Any], Any]] = {
  "saved_model.save": lambda path: saved_model.save(f, W, path, **GIVEN),
  "onnx.save": lambda path: onnx.save(f, W, path, **GIVEN),
  "onnx.save_model": lambda path: onnx.save_model(path, "x.onnx"),
  "onnx.quantization_report": lambda path: onnx.quantization_report("missing", path),
  "onnx.run": lambda path: onnx.run(path, {}),
  "tflite.save": lambda path: tflite.save(f, W, path, **GIVEN),
  "tflite.run": lambda path: tflite.run(path, {}),
  "tflite.save_training": lambda path: tflite.save_training(
    f, f, W, path, batch={}, inputs={}, learning_rate=1.0
  ),
  "tflite.quantization_report": lambda path: tflite.quantization_report("missing", path),
  "tfjs.save": lambda path: tfjs.save(f, W, path, **GIVEN),
  "tfjs.run": lambda path: tfjs.run(path, {}),
  "verify": lambda path: verify(path, f),
  "verify, report": lambda path: verify("missing", f, report=path),
  "batch": lambda path: contract.read(path),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_file_system_is_refused_before_the_work(
  name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  with (
    mock.patch.object(saved_model.Model, "add", side_effect=AssertionError("the work began")),
    pytest.raises(
      ValueError,
      match=r"= 's3://bucket/x(/.*)?': "
      r"(TensorFlow has no file system for s3://|it is not on this machine)",
    ),
  ):
    CALLS[name]("s3://bucket/x")
  with pytest.raises(ValueError, match="has lost a slash"):
    CALLS[name](Path("s3://bucket/x"))
  assert [*tmp_path.iterdir()] == []


def test_a_file_system_that_does_not_answer(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  error = tf.errors.FailedPreconditionError(None, None, "Could not resolve host")
  with (
    mock.patch.object(tf.io.gfile, "exists", side_effect=error),
    pytest.raises(OSError, match=r"gs://b/m: its .*Could not resolve host"),
  ):
    saved_model.save(f, W, "gs://b/m", **GIVEN)
  assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
  ("given", "words"),
  [
    ("ram://", "it names no host or bucket"),
    ("ram:///x", "it names no host or bucket; write ram://NAME/folder"),
    ("file://x", "is not absolute"),
    ("gs:/b/m", "has lost a slash, as pathlib joins them; pass the text 'gs://b/m'"),
  ],
)
def test_addresses_that_are_none(given: str, words: str) -> None:
  with pytest.raises(ValueError, match=words):
    paths.of(given)


@pytest.mark.parametrize(
  ("given", "local"),
  [
    ("a/b", "a/b"),
    ("file:///a/b", "/a/b"),
    ("C:/a", "C:/a"),
    ("./gs:/a", "gs:/a"),
    ("aa://b c", None),
  ],
)
def test_what_is_local(given: str, local: str | None) -> None:
  if local is None:
    with pytest.raises(ValueError, match="no file system for aa://"):
      paths.of(given)
  else:
    assert paths.of(given) == paths.local(given) == Path(local)


def test_an_address_has_the_names_of_a_path() -> None:
  address = paths.Address("gs://bucket/models/net.onnx")
  assert str(address) == address.as_posix() == address.__fspath__() == "gs://bucket/models/net.onnx"
  assert (address.name, address.stem, address.suffix, str(address.parent)) == (
    "net.onnx",
    "net",
    ".onnx",
    "gs://bucket/models",
  )
  assert str(address.parent / "1") == "gs://bucket/models/1"
  assert address == paths.Address("gs://bucket/models") / "net.onnx"
  assert len({address, paths.Address(str(address))}) == 1


@pytest.mark.parametrize(
  "save", [CALLS["onnx.save"], CALLS["tflite.save"], CALLS["tflite.save_training"]]
)
def test_a_folder_is_no_file(save: Callable[[Any], Any], tmp_path: Path) -> None:
  with (
    mock.patch.object(saved_model.Model, "add", side_effect=AssertionError("the work began")),
    pytest.raises(
      IsADirectoryError, match=r"is a folder; name a file in it, such as '.*/model\.(onnx|tflite)'"
    ),
  ):
    save(tmp_path)


@pytest.mark.parametrize("run", [CALLS["onnx.run"], CALLS["tflite.run"]])
def test_what_is_read_is_a_file(run: Callable[[Any], Any], tmp_path: Path) -> None:
  with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
    run(tmp_path)
  with pytest.raises(FileNotFoundError, match="there is no such file"):
    run(tmp_path / "missing")


@pytest.mark.parametrize("name", ["1", "2"])
def test_a_version_holds_no_versions(name: str, model: saved_model.Model, tmp_path: Path) -> None:
  model.save(tmp_path / "net")
  with pytest.raises(
    FileExistsError,
    match=f"net/{name} is a version of a model, and not its folder; pass .*/net with "
    f"version={name}",
  ):
    saved_model.save(f, W, tmp_path / "net" / name, **GIVEN)
  assert [path.name for path in (tmp_path / "net").iterdir()] == ["1"]


def test_a_model_may_be_named_by_a_number(model: saved_model.Model, tmp_path: Path) -> None:
  for name in ("2024", "2025", "2025"):
    model.save(tmp_path / name)
  assert versions.numbered(tmp_path / "2025") == [1, 2]


def test_paths_of_users_are_known_at_one_address() -> None:
  """`Path(path)` of what a user gave would take `gs://bucket` for a local folder."""
  found = []
  for file in (REPOSITORY / "converters").rglob("*.py"):
    text = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "PathLike" in text else ():
      if not isinstance(node, ast.FunctionDef):
        continue
      args = [*node.args.args, *node.args.kwonlyargs]
      given = {
        arg.arg for arg in args if arg.annotation and "PathLike" in ast.unparse(arg.annotation)
      }
      calls = [
        call
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Path"
      ]
      found += [
        f"{file.name}:{call.lineno}"
        for call in calls
        if any(ast.unparse(arg) in given for arg in call.args)
      ]
  assert found == []
