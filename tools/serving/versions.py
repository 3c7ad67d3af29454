"""The version of a model that is served: the newest in its folder that loads, and its successor as soon as that is loaded and warm.

A version is a folder with a number for a name, as TF Serving has it; what is still being written (`.saving-*`) is none. A folder that
is copied into place is loaded once it holds still from one look to the next, and again whenever a file in it changes.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from jax2tf.tools.serving import protobuf
from jax2tf.tools.serving.model import Model, RefusedError, run

POLL_SECONDS = 1.0
_LONGEST_PAUSE = 60.0
_LOG = logging.getLogger("ray.serve")

# Path, file, size and time of change of each file of a version: any other file, or part of one, is another version.
Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Failure:
  """A version that did not load.

  Attributes:
    stamp: of its files then.
    reason: why.
    tries: how often that was tried.
    again: when to try again although nothing changed; a disk or the memory may have been at fault.
  """

  stamp: Stamp
  reason: str
  tries: int
  again: float


def stamps(folder: Path) -> dict[Path, Stamp]:
  """The versions that have a saved_model.pb, newest first."""
  directories = [directory for directory in folder.iterdir() if directory.name.isdecimal() and (directory / "saved_model.pb").exists()]
  return {directory: _stamp(directory) for directory in sorted(directories, key=_number, reverse=True)}


def _number(directory: Path) -> int:
  return int(directory.name)


def _stamp(directory: Path) -> Stamp:
  found = []
  for file in sorted(directory.rglob("*")):
    try:
      stat = file.stat()
    except OSError:  # removed at this moment
      continue
    found.append((str(file.relative_to(directory)), stat.st_ino, stat.st_size, stat.st_mtime_ns))
  return tuple(found)


class Versions:
  """Serves `folder` under `name`, and looks for newer versions every `POLL_SECONDS` in a thread of its own."""

  _served: tuple[Stamp, Model] | None = None

  def __init__(self, folder: Path, name: str, replicas: int = 1):
    """Loads the newest version that can be loaded; of `replicas` that serve the folder this is one.

    Raises:
      FileNotFoundError: there is none.
      RuntimeError: none can be loaded.
    """
    self.name = name
    self._folder, self._replicas = folder, replicas
    self._failed: dict[Path, Failure] = {}
    self._seen = stamps(folder)
    if not self._seen:
      raise FileNotFoundError(f"{folder} has no version to serve: put a SavedModel into {folder}/1/")
    self._refresh()
    if self._served is None:
      newest, failure = next(iter(self._failed.items()))
      raise RuntimeError(f"no version in {folder} can be loaded; of version {newest.name}: {failure.reason}")
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
    assert self._served is not None
    model = self._served[1]
    if version not in (None, model.version):
      raise RefusedError(grpc.StatusCode.NOT_FOUND, f"version {version} of {name!r} is not served; version {model.version} is")
    return model

  def status(self, name: str, version: int | None) -> list[dict[str, object]]:
    """The states of the versions, newest first, in the words of TF Serving's REST API; raises as `get` does."""
    found = []
    if name == self.name:
      failed = [(_number(directory), failure.reason) for directory, failure in list(self._failed.items())]
      found = [_state(number, "END", "UNKNOWN", reason) for number, reason in failed if version in (None, number)]
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
    """Serves the newest version that holds still and loads, and no older one than now unless that is gone."""
    found = stamps(self._folder)
    before, self._seen = self._seen, found
    self._failed = {directory: failure for directory, failure in self._failed.items() if found.get(directory) == failure.stamp}
    for directory, stamp in found.items():
      served = self._served if self._served and self._served[1].version == _number(directory) else None
      if served and served[0] == stamp:
        return
      if (before.get(directory) == stamp and self._load(directory, stamp)) or served:
        return

  def _load(self, directory: Path, stamp: Stamp) -> bool:
    failure = self._failed.get(directory)
    if failure and time.monotonic() < failure.again:
      return False
    try:
      model = _warm(directory, self._replicas)
      if _stamp(directory) != stamp:
        raise RuntimeError("it changed while it was loaded")
    except Exception as error:
      _LOG.exception("cannot load %s", directory)
      tries = failure.tries + 1 if failure else 1
      again = time.monotonic() + min(2.0**tries, _LONGEST_PAUSE)
      self._failed[directory] = Failure(stamp, f"{type(error).__name__}: {error}"[:500], tries, again)
      return False
    self._served = (stamp, model)
    self._failed.pop(directory, None)
    return True


def _warm(directory: Path, replicas: int) -> Model:
  """The model, after it has answered the warm-up requests that are stored with it; ValueError for a state that would not be one."""
  model = Model(directory)
  if replicas > 1 and (stateful := [name for name, signature in model.signatures.items() if signature.stateful]):
    raise ValueError(
      f"signature {stateful[0]!r} keeps a state, and each of {replicas} replicas would have its own; serve with --replicas=1"
    )
  calls = protobuf.warm_up_calls(model, directory)
  for outcome in run(calls, max_rows=1):
    if isinstance(outcome, RefusedError):
      raise outcome
  return model


def _state(version: int, state: str, code: str, message: str) -> dict[str, object]:
  return {"version": str(version), "state": state, "status": {"error_code": code, "error_message": message}}
