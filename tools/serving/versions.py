"""The served versions of one model. A version is served once it is loaded and warm, until its
successor is.

As in TF Serving, a version is a folder with a number as its name. Folders that are still being
written (`.saving-*`) do not count. A folder is loaded when it has not changed between two checks,
and again whenever a file in it changes. Each model has a thread for this, so that a file system
that does not answer stops no other model.
"""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import grpc

from jax2tf.converters.bundle import versions
from jax2tf.tools.serving import protobuf
from jax2tf.tools.serving.config import Source
from jax2tf.tools.serving.model import Model, RefusedError, invalid, run

_LONGEST_PAUSE = 60.0
_LOG = logging.getLogger("ray.serve")

# Path, inode, size and modification time of each file of a version. Any difference means another
# version.
Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Failure:
  """A version that did not load.

  Attributes:
    stamp: the stamp of its files at that time.
    reason: the error.
    tries: the number of attempts.
    again: when to try again even if no file changed, since the disk or the memory may have caused
      the error.
  """

  stamp: Stamp
  reason: str
  tries: int
  again: float


def _stamps(folder: Path) -> dict[Path, Stamp]:
  """The stamps of the versions that have a saved_model.pb, newest first."""
  return {directory: _stamp(directory) for directory in reversed(versions.served(folder))}


def _number(directory: Path) -> int:
  return int(directory.name)


def _stamp(directory: Path) -> Stamp:
  stamps = []
  for file in sorted(directory.rglob("*")):
    try:
      status = file.stat()
    except OSError:  # removed meanwhile
      continue
    stamps.append(
      (str(file.relative_to(directory)), status.st_ino, status.st_size, status.st_mtime_ns)
    )
  return tuple(stamps)


class Versions:
  """The versions of the model `name`.

  Attributes:
    source: which versions to serve; may be replaced by one with the same folder.
  """

  def __init__(self, name: str, source: Source, replicas: int, complete: bool):
    """`replicas` serve the model. `complete`: the versions that are there at the first check are
    taken for complete."""
    self.name = name
    self.source = source
    self._seen: Mapping[Path, Stamp] | None = None if complete else {}
    self._replicas = replicas
    self._thread: threading.Thread | None = None
    # The versions that are served, and the one that answers for each label. Replaced together, so
    # that no label misses.
    self._state: tuple[Mapping[int, tuple[Stamp, Model]], Mapping[str, int]] = {}, {}
    self._failed: dict[Path, Failure] = {}

  def get(self, version: int | None, label: str) -> Model:
    """The model of a version or a label; without either, the newest.

    Raises:
      RefusedError: the version is not served, or the label does not exist.
    """
    served, labels = self._state
    if label:
      version = self._labelled(label, labels)
    if not served:
      raise RefusedError(
        grpc.StatusCode.NOT_FOUND, f"no version of {self.name!r} is served; {self.fault}"
      )
    if version is not None and version not in served:
      others = (
        f"versions {', '.join(map(str, sorted(served)))} are"
        if len(served) > 1
        else f"version {next(iter(served))} is"
      )
      raise RefusedError(
        grpc.StatusCode.NOT_FOUND, f"version {version} of {self.name!r} is not served; {others}"
      )
    return served[max(served) if version is None else version][1]

  def _labelled(self, label: str, labels: Mapping[str, int]) -> int:
    """The version of a label: of the last one that is served, until the one that it names now
    is."""
    named = self.source.labels
    if label not in named:
      raise invalid(
        f"{self.name!r} has no version_label {label!r}; it has {sorted(named) or 'none'}"
      )
    return labels.get(label, named[label])

  def status(self, version: int | None, label: str) -> list[dict[str, object]]:
    """The states of the versions, newest first, as in TF Serving's REST API. Raises the errors of
    `get`."""
    failed = {
      _number(directory): failure.reason for directory, failure in list(self._failed.items())
    }
    served, labels = self._state
    numbers = served.keys() | failed.keys()
    if label or version is not None:
      numbers &= {self._labelled(label, labels) if label else version}
    if not numbers:
      self.get(version, label)  # it raises RefusedError
    return [
      _state(number, "AVAILABLE", "OK", failed.get(number, ""))
      if number in served
      else _state(number, "END", "UNKNOWN", failed[number])
      for number in sorted(numbers, reverse=True)
    ]

  @property
  def served(self) -> bool:
    return bool(self._state[0])

  @property
  def fault(self) -> str:
    """Why no version, or no newer one, is served."""
    for directory, failure in list(self._failed.items()):
      return f"version {directory.name} in {self.source.folder} cannot be loaded: {failure.reason}"
    if self._is_busy:
      return f"{self.source.folder} is still being read"
    return (
      f"{self.source.folder} has no version to serve: put a SavedModel into {self.source.folder}/1/"
    )

  @property
  def _is_busy(self) -> bool:
    return self._thread is not None and self._thread.is_alive()

  def refresh(self, seconds: float) -> None:
    """Serves the newest versions that are unchanged and load. If there are none, it keeps the
    previous ones.

    It works in a thread and waits for it, for at most `seconds`. While that thread works on,
    another call does nothing.
    """
    if self._is_busy:
      return
    self._thread = threading.Thread(
      target=self._refresh, name=f"versions of {self.name}", daemon=True
    )
    self._thread.start()
    self._thread.join(seconds)

  def _refresh(self) -> None:
    try:
      self._serve_newest()
    except Exception:  # such as a removed folder; an error now may be gone in a second
      _LOG.exception("cannot look for versions in %s", self.source.folder)

  def _serve_newest(self) -> None:
    source, (served_before, labels_before) = self.source, self._state
    only, labelled = source.only, {*source.labels.values()}
    stamps = {
      directory: stamp
      for directory, stamp in _stamps(source.folder).items()
      if only is None or _number(directory) in only
    }
    before, self._seen = stamps if self._seen is None else self._seen, stamps
    self._failed = {
      directory: failure
      for directory, failure in self._failed.items()
      if stamps.get(directory) == failure.stamp
    }
    to_serve: dict[int, tuple[Stamp, Model]] = {}
    for directory, stamp in stamps.items():
      number = _number(directory)
      if len(to_serve) >= source.latest and number not in labelled:
        continue
      served = served_before.get(number)
      if not (served and served[0] == stamp) and before.get(directory) == stamp:
        served = self._load(directory, stamp) or served
      if served:
        to_serve[number] = served
    labels: dict[str, int] = {}
    for label, named in source.labels.items():
      old = labels_before.get(label)
      if old is not None and old in served_before and old != named and named not in to_serve:
        # The label has moved, and its new version is not loaded yet.
        to_serve[old] = served_before[old]
        labels[label] = old
      elif named in to_serve:
        labels[label] = named
    self._state = to_serve or served_before, labels

  def _load(self, directory: Path, stamp: Stamp) -> tuple[Stamp, Model] | None:
    failure = self._failed.get(directory)
    if failure and time.monotonic() < failure.again:
      return None
    try:
      model = _warm(directory, self._replicas, self.source.allow_ops)
      if _stamp(directory) != stamp:
        raise RuntimeError("it changed while it was loaded")
    except Exception as error:
      _LOG.exception("cannot load %s", directory)
      tries = failure.tries + 1 if failure else 1
      again = time.monotonic() + min(2.0**tries, _LONGEST_PAUSE)
      self._failed[directory] = Failure(
        stamp, f"{type(error).__name__}: {error}"[:500], tries, again
      )
      return None
    self._failed.pop(directory, None)
    return stamp, model


def _warm(directory: Path, replicas: int, allow_ops: frozenset[str]) -> Model:
  """Loads a model and runs its stored warm-up requests.

  Raises:
    ValueError: the folder has a file that may block whoever opens it, the model reaches outside, or
      several replicas would each have a state of their own.
  """
  _check_files(directory)
  model = Model(directory, allow_ops)
  if replicas > 1 and (
    stateful := [name for name, signature in model.signatures.items() if signature.stateful]
  ):
    raise ValueError(
      f"signature {stateful[0]!r} keeps a state, and each of {replicas} replicas would have its "
      "own; serve with --replicas=1"
    )
  calls = protobuf.warm_up_calls(model, directory)
  for outcome in run(calls, max_rows=1):
    if isinstance(outcome, RefusedError):
      raise outcome
  if model.writer:
    model.writer.warm_up()
  return model


def _check_files(directory: Path) -> None:
  for file in directory.rglob("*"):
    mode = file.stat().st_mode if file.exists() else stat.S_IFREG  # removed meanwhile
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
      kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
      raise ValueError(
        f"{file.relative_to(directory)} is {kind}; a version has files and folders only"
      )


def _state(version: int, state: str, code: str, message: str) -> dict[str, object]:
  return {
    "version": str(version),
    "state": state,
    "status": {"error_code": code, "error_message": message},
  }
