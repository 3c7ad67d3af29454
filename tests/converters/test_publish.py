"""What is published is on the disk before it has its name, and the name before the call returns."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from jax2tf.converters import onnx, saved_model, tflite
from jax2tf.converters.bundle import durable, publish
from jax2tf.converters.saved_model import manifest
from jax2tf.converters.verify.report import Report
from jax2tf.tools.batch import worker
from jax2tf.tools.cli import query

REPOSITORY = Path(__file__).resolve().parents[2]
W = np.eye(2, dtype=np.float32)
ONCE: dict[str, Any] = {"sizes": {"b": 1}, "samples": 1}


@pytest.fixture(scope="module")
def model() -> saved_model.Model:
  return saved_model.Model(W, trainable=False).add(
    lambda w, x: x @ w, inputs={"x": "f32[b,2]"}, outputs=["y"]
  )


class Calls:
  """The calls of the system, in order: ("sync", inode) and ("name", inodes of what gets a name,
  inode of the folder)."""

  def __init__(self) -> None:
    self.made: list[tuple[Any, ...]] = []

  @contextlib.contextmanager
  def watched(self) -> Iterator[None]:
    with (
      mock.patch.object(os, "fsync", self._sync(os.fsync)),
      mock.patch.object(os, "rename", self._name(os.rename)),
      mock.patch.object(os, "replace", self._name(os.replace)),
      mock.patch.object(durable, "_swapped", self._name(durable._swapped)),
    ):
      yield

  def _sync(self, original: Callable[[int], None]) -> Callable[[int], None]:
    def sync(descriptor: int) -> None:
      original(descriptor)
      self.made.append(("sync", os.fstat(descriptor).st_ino))

    return sync

  def _name(self, original: Callable[..., Any]) -> Callable[..., Any]:
    def name(source: Any, target: Any) -> Any:
      contents = [Path(source), *Path(source).rglob("*")]
      self.made.append(
        ("name", [each.stat().st_ino for each in contents], Path(target).parent.stat().st_ino)
      )
      return original(source, target)

    return name

  def check(self, *published: Path) -> None:
    """The files and folders were synced, then named; their folder was synced after that."""
    for each in published:
      inodes = {path.stat().st_ino for path in (each, *each.rglob("*"))}
      at, folder = [
        (i, call[2])
        for i, call in enumerate(self.made)
        if call[0] == "name" and {*call[1]} == inodes
      ][-1]
      assert inodes <= {call[1] for call in self.made[:at] if call[0] == "sync"}, (
        f"{each} has its name before it is on the disk"
      )
      assert ("sync", folder) in self.made[at:], f"the name of {each} is not on the disk"


def in_onnx(model: saved_model.Model, folder: Path) -> list[Path]:
  onnx.save_model(model, folder / "a.onnx", external_data_threshold=0, **ONCE)
  assert len([*folder.iterdir()]) == 2
  return [*folder.iterdir()]


def in_a_report(_: saved_model.Model, folder: Path) -> list[Path]:
  with mock.patch.multiple(Report, text=str, html=str):
    Report("a model", (), (), {}, {}).write(folder)
  return [*folder.iterdir()]


def in_a_query(_: saved_model.Model, folder: Path) -> list[Path]:
  with query._appearing(str(folder / "a.npz")) as written:
    assert written
    query._write(written, {"y": W})
  return [folder / "a.npz"]


def in_a_batch(_: saved_model.Model, folder: Path) -> list[Path]:
  (folder / "writing").write_text("{}")
  worker._publish(folder / "writing", folder / "a.jsonl")
  return [folder / "a.jsonl"]


WRITERS: dict[str, Callable[[saved_model.Model, Path], list[Path]]] = {
  "saved_model": lambda model, folder: [model.save(folder)],
  "onnx": in_onnx,
  "tflite": lambda model, folder: [tflite.save_model(model, folder / "a.tflite", **ONCE).path],
  "report": in_a_report,
  "query": in_a_query,
  "batch": in_a_batch,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_are_synced_then_named_then_their_folder_is(
  writer: str, model: saved_model.Model, tmp_path: Path
) -> None:
  calls = Calls()
  with calls.watched():
    published = WRITERS[writer](model, tmp_path)
  calls.check(*published)


def test_new_folders_above_are_synced(model: saved_model.Model, tmp_path: Path) -> None:
  calls = Calls()
  with calls.watched():
    model.save(tmp_path / "a" / "b")
  for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
    assert ("sync", folder.stat().st_ino) in calls.made


def cannot_exchange(*_: Any) -> bool:
  return False


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "moved aside"])
def test_a_version_is_replaced(exchanges: bool, model: saved_model.Model, tmp_path: Path) -> None:
  before = model.save(tmp_path, version=1)
  (before / "old").touch()
  calls = Calls()
  with (
    calls.watched(),
    contextlib.nullcontext()
    if exchanges
    else mock.patch.object(durable, "_swapped", cannot_exchange),
  ):
    assert model.save(tmp_path, version=1, overwrite=True) == before
  calls.check(before)
  assert [path.name for path in tmp_path.iterdir()] == ["1"]
  assert not (before / "old").exists()


@pytest.mark.parametrize(
  "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"]
)
def test_a_version_that_cannot_be_replaced_is_still_there(
  error: BaseException, model: saved_model.Model, tmp_path: Path
) -> None:
  before = model.save(tmp_path, version=1)
  (before / "old").touch()
  rename = Path.rename

  def fails(path: Path, target: Path) -> Path:
    if path.name == "model":
      raise error
    return rename(path, target)

  with (
    mock.patch.object(durable, "_swapped", cannot_exchange),
    mock.patch.object(Path, "rename", fails),
    pytest.raises(type(error)),
  ):
    model.save(tmp_path, version=1, overwrite=True)
  assert [path.name for path in tmp_path.iterdir()] == ["1"]
  assert (before / "old").exists()


@pytest.fixture
def cut_off(model: saved_model.Model, tmp_path: Path) -> Path:
  """The folder of a model whose saver ended between the two renames that replace version 1."""
  before = model.save(tmp_path, version=1)
  place = tmp_path / ".saving-ended"
  shutil.copytree(before, place / "model")
  (place / "replaced").mkdir()
  before.rename(place / "replaced" / "1")
  return tmp_path


def test_the_next_save_finds_the_old_version_again(cut_off: Path, model: saved_model.Model) -> None:
  assert model.save(cut_off) == cut_off / "2"
  assert sorted(path.name for path in cut_off.iterdir()) == ["1", "2"]
  assert manifest.read(cut_off / "1").weights


@pytest.mark.parametrize("asked", ["", "1"])
def test_a_reader_finds_the_old_version_again(cut_off: Path, asked: str) -> None:
  assert publish.saved_model_in(cut_off / asked) == cut_off / "1"
  assert manifest.read(cut_off / "1").weights


def test_the_old_version_does_not_replace_a_new_one(cut_off: Path) -> None:
  (cut_off / "1").mkdir()
  (cut_off / "1" / "saved_model.pb").touch()
  assert publish.saved_model_in(cut_off) == cut_off / "1"
  assert [path.name for path in (cut_off / "1").iterdir()] == ["saved_model.pb"]


def test_what_a_saver_at_work_moved_aside_is_left_to_it(cut_off: Path) -> None:
  lock = publish._lock(cut_off / ".saving-ended", wait=True)
  assert lock is not None
  with pytest.raises(FileNotFoundError, match="neither a SavedModel nor"):
    publish.saved_model_in(cut_off)
  os.close(lock)
  assert publish.saved_model_in(cut_off) == cut_off / "1"


# Names in the folder of a running server, and what `publish` moves aside.
_OTHER_NAMES = {"config.py", "child.py", "durable.py", "publish.py", "target.py"}


def test_files_get_their_names_at_one_address() -> None:
  """Any other rename could leave an empty file."""
  found = []
  for file in (
    path
    for folder in ("jax2tf", "converters", "tools")
    for path in (REPOSITORY / folder).rglob("*.py")
  ):
    text = file.read_text(encoding="utf-8")
    if (
      "lab" in file.parts
      or file.name in _OTHER_NAMES
      or not re.search(r"\.(rename|replace|move)\(", text)
    ):
      continue
    for node in ast.walk(ast.parse(text)):
      if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        continue
      called = ast.unparse(node.func)
      names = node.func.attr == "rename" or (
        node.func.attr == "replace" and len(node.args) == 1 and not node.keywords
      )
      if names or called in ("os.replace", "os.rename", "shutil.move"):
        found.append(f"{file.relative_to(REPOSITORY)}:{node.lineno}: {called}")
  assert found == []
