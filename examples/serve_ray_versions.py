"""Which version of a model is served? The newest in its folder, and its successor as soon as that is loaded and warm.

A version is a folder with a number for a name, as TF Serving has it; what is still being written (`.saving-*`) is none.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import grpc

import serve_ray_model
import serve_ray_protobuf
from serve_ray_model import Model, RefusedError

POLL_SECONDS = 1.0
_LOG = logging.getLogger("ray.serve")

# A version and the file behind it, so that a version that was written anew is another one.
Stamp = tuple[int, int, int]


def newest(folder: Path) -> tuple[Stamp, Path] | None:
  """The directory with the highest number that has a saved_model.pb; None if there is none."""
  found = []
  for directory in folder.iterdir():
    if directory.name.isdecimal():
      try:
        stat = (directory / "saved_model.pb").stat()
      except OSError:  # not a SavedModel, or removed at this moment
        continue
      found.append(((int(directory.name), stat.st_ino, stat.st_mtime_ns), directory))
  return max(found, default=None)


class Versions:
  """Serves `folder` under `name`, and looks for newer versions every `POLL_SECONDS` in a thread of its own."""

  def __init__(self, folder: Path, name: str):
    """Loads the newest version.

    Raises:
      FileNotFoundError: there is none.
      Exception: whatever TensorFlow raises for a SavedModel that it cannot load.
    """
    found = newest(folder)
    if found is None:
      raise FileNotFoundError(f"{folder} has no version to serve: put a SavedModel into {folder}/1/")
    self.name = name
    self._folder = folder
    self._served = (found[0], _load(found[1]))
    # The newest version that could not be loaded, why, and how often that was tried.
    self._failed: tuple[Stamp, str, int] | None = None
    self._watcher = threading.Thread(target=self._watch, name="versions", daemon=True)
    self._watcher.start()

  @property
  def healthy(self) -> bool:
    return self._watcher.is_alive()

  def get(self, name: str, version: int | None) -> Model:
    """The model that answers.

    Raises:
      RefusedError: another name, or a version that is not served.
    """
    if name != self.name:
      raise RefusedError(grpc.StatusCode.NOT_FOUND, f"no model {name!r} here; this server has {self.name!r}")
    model = self._served[1]
    if version not in (None, model.version):
      raise RefusedError(grpc.StatusCode.NOT_FOUND, f"version {version} of {name!r} is not served; version {model.version} is")
    return model

  def status(self, name: str, version: int | None) -> list[dict[str, object]]:
    """The states of the versions, newest first, in the words of TF Serving's REST API; raises as `get` does."""
    failed = self._failed
    found = []
    if failed and (name, version) in ((self.name, None), (self.name, failed[0][0])):
      found.append(_state(failed[0][0], "END", "UNKNOWN", failed[1]))
    if not found or version is None:
      found.append(_state(self.get(name, version).version, "AVAILABLE", "OK", ""))
    return found

  def _watch(self) -> None:
    polls = threading.Event()
    while not polls.wait(POLL_SECONDS):
      try:
        self._refresh()
      except Exception:  # a folder that cannot be read now may be readable in a second
        _LOG.exception("cannot look for versions in %s", self._folder)

  def _refresh(self) -> None:
    found = newest(self._folder)
    if found is None or found[0] == self._served[0]:
      self._failed = None
      return
    stamp, directory = found
    tries = self._failed[2] if self._failed and self._failed[0] == stamp else 0
    if tries >= 3:  # a copy that takes long may fail at first; a broken model stays broken
      return
    try:
      self._served = (stamp, _load(directory))
      self._failed = None
    except Exception as error:
      _LOG.exception("cannot load %s; version %d goes on", directory, self._served[0][0])
      self._failed = (stamp, f"{type(error).__name__}: {error}"[:500], tries + 1)


def _load(directory: Path) -> Model:
  """The model, after it has answered the warm-up requests that are stored with it."""
  model = Model(directory)
  calls = serve_ray_protobuf.warm_up_calls(model, directory)
  for outcome in serve_ray_model.run(calls, max_rows=1):
    if isinstance(outcome, RefusedError):
      raise outcome
  return model


def _state(version: int, state: str, code: str, message: str) -> dict[str, object]:
  return {"version": str(version), "state": state, "status": {"error_code": code, "error_message": message}}
