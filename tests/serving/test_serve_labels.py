"""Rolling versions of `jax2tf serve`: a label that moves from a version to another one never
misses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from jax2tf.converters import saved_model
from jax2tf.tools.serving import config, models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  path = tmp_path_factory.mktemp("models")
  saved_model.save(lambda w, x: w * x, np.float32(2), path, inputs={"x": "f32[b]"}, outputs=["y"])
  return path


class _Roll:
  """A model whose config and versions change, with a client that asks for a label all the time."""

  def __init__(self, saved: Path, folder: Path):
    self._saved, self._folder = saved, folder
    self.publish(1)
    self.set({1}, 1)
    self.models = models.Models(lambda: {"m": self._source})
    self.refusals: list[str] = []
    self.answers: set[int] = set()

  def publish(self, version: int) -> None:
    os.symlink(self._saved / "1", self._folder / str(version))

  def publish_broken(self, version: int) -> None:
    (self._folder / str(version)).mkdir()
    (self._folder / str(version) / "saved_model.pb").write_bytes(b"broken")

  def set(self, only: set[int] | None, stable: int) -> None:
    latest = 1 if only is None else float("inf")
    self._source = config.Source(
      self._folder, latest, None if only is None else frozenset(only), {"stable": stable}
    )

  def refresh(self, count: int = 3) -> int:
    """The version of the label afterwards."""
    for _ in range(count):
      self.models.refresh()
    return int(self.models.get("m", None, "stable").version)

  def ask(self, until: threading.Event) -> None:
    while not until.wait(0.0005):
      try:
        self.answers.add(self.models.get("m", None, "stable").version)
      except Exception as refusal:
        self.refusals.append(str(refusal))


@pytest.fixture
def roll(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Roll]:
  monkeypatch.setattr(models, "POLL_SECONDS", 1e9)
  made, ended = _Roll(folder, tmp_path), threading.Event()
  client = threading.Thread(target=made.ask, args=[ended])
  client.start()
  yield made
  ended.set()
  client.join()
  assert made.refusals == []


def _in_steps(roll: _Roll) -> None:
  """The recipe of docs/guide/operate-a-server.md."""
  roll.publish(2)
  roll.set({1, 2}, 1)
  assert roll.refresh() == 1
  assert [state["version"] for state in roll.models.status("m", 2)] == ["2"]
  roll.set({1, 2}, 2)
  assert roll.refresh(1) == 2
  assert [state["version"] for state in roll.models.status("m", None, "stable")] == ["2"]
  roll.set({2}, 2)
  assert roll.refresh(1) == 2
  with pytest.raises(Exception, match="version 1 of 'm' is not served; version 2 is") as refused:
    roll.models.get("m", 1)
  assert refused.value.code == grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def _at_once(roll: _Roll) -> None:
  """In one edit, before the version is there."""
  roll.set({2}, 2)
  assert roll.refresh() == 1
  roll.publish(2)
  assert roll.refresh() == 2


def _newest(roll: _Roll) -> None:
  """By the default policy: a version with a label stays when a newer one comes."""
  roll.set(None, 1)
  roll.publish(2)
  assert roll.refresh() == 1
  assert roll.models.get("m", None).version == 2
  roll.set(None, 2)
  assert roll.refresh() == 2
  assert [state["version"] for state in roll.models.status("m", None)] == ["2"]


def _to_a_broken_version(roll: _Roll) -> None:
  roll.publish(2)
  roll.publish_broken(3)
  roll.set({2, 3}, 3)
  assert roll.refresh() == 1
  assert roll.models.get("m", None).version == 2
  assert [(state["version"], state["state"]) for state in roll.models.status("m", 3)] == [
    ("3", "END")
  ]
  roll.set({2}, 2)
  assert roll.refresh(1) == 2


def _back(roll: _Roll) -> None:
  roll.publish(2)
  roll.set({2}, 2)
  assert roll.refresh() == 2
  roll.set({1}, 1)
  assert roll.refresh(1) == 2
  assert roll.refresh() == 1


@pytest.mark.parametrize("change", [_in_steps, _at_once, _newest, _to_a_broken_version, _back])
def test_no_label_misses(roll: _Roll, change: Callable[[_Roll], None]) -> None:
  change(roll)
