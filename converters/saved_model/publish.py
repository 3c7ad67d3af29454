"""Atomic publication of directories: written under a temporary name beside their target, then renamed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from numbers import Integral
from pathlib import Path
from typing import Any

from google.protobuf import message
from tensorflow.core.protobuf import saved_model_pb2

# linux/fs.h: swap two paths atomically.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def beside(directory: Path) -> Iterator[Path]:
  """A temporary place in `directory`, removed at the end. Servers do not take its name for a version.

  First removes places that killed processes left. If nothing was published, also removes the folders that this call made.
  """
  new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
  directory.mkdir(parents=True, exist_ok=True)
  for place in directory.glob(f"{_PREFIX}*"):
    if (lock := _lock(place, wait=False)) is not None:  # its process has ended
      shutil.rmtree(place, ignore_errors=True)
      os.close(lock)
  while True:
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    lock = _lock(place, wait=True)
    if place.exists():  # otherwise another process removed it before it was locked
      break
  try:
    yield place / "model"
  finally:
    shutil.rmtree(place, ignore_errors=True)
    if lock is not None:
      os.close(lock)
    with contextlib.suppress(OSError):  # it holds a version
      for folder in new:
        folder.rmdir()


_PREFIX = ".saving-"


def _lock(place: Path, *, wait: bool) -> int | None:
  """A lock on a directory, which the system releases when the process ends. None if it is taken, or not available here."""
  try:
    import fcntl  # noqa: PLC0415  (Windows has none)

    descriptor = os.open(place, os.O_RDONLY)
  except (ImportError, OSError):
    return None
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    return descriptor
  except OSError:
    os.close(descriptor)
    return None


def publish(written: Path, directory: Path, version: int | None, overwrite: bool) -> Path:
  """Renames `written` to its version. A rename onto an existing version fails, so concurrent savers get different versions.

  Raises:
    FileExistsError: the version exists and `overwrite` is False.
  """
  while True:
    target = directory / str(next_version(directory) if version is None else version)
    if overwrite and version is not None and target.exists():
      exchange(written, target)
      return target
    try:
      written.rename(target)
      return target
    except OSError:
      if version is not None or not target.exists():
        refuse_existing(target)
        raise


def exchange(written: Path, target: Path) -> None:
  """Swaps the two paths, so that `target` always exists. What it held is removed with the temporary place of `beside`."""
  rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
  if rename is None or rename(_AT_FDCWD, os.fsencode(written), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE):
    target.rename(written.with_name("replaced"))  # the file system cannot exchange paths
    written.rename(target)


def next_version(directory: Path) -> int:
  """The number after the newest version."""
  return 1 + max(versions(directory), default=0)


def versions(directory: Path) -> list[int]:
  """The version numbers that a server would find, in order."""
  return sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal())


def saved_model_in(path: Path) -> Path | None:
  """`path` if it is a SavedModel, or the newest version in it; None if it is neither."""
  if (path / "saved_model.pb").exists():
    return path
  found = path.iterdir() if path.is_dir() else ()
  return max((p for p in found if p.name.isdecimal() and (p / "saved_model.pb").exists()), key=lambda p: int(p.name), default=None)


def meta_graph(directory: Path) -> Any:
  """The MetaGraphDef of a SavedModel.

  Raises:
    ValueError: the file is damaged.
  """
  file = directory / "saved_model.pb"
  try:
    (found,) = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
  except (message.DecodeError, ValueError) as error:
    raise ValueError(f"{file} is damaged: {error}; save the model again") from error
  return found


def check_version(directory: Path, version: int | None, overwrite: bool) -> None:
  """Raises ValueError for an invalid version number, and FileExistsError for a version that exists without `overwrite`."""
  if version is None:
    return
  if isinstance(version, bool) or not isinstance(version, Integral) or version < 0:
    raise ValueError(f"version = {version!r} is not a nonnegative integer, which servers require")
  if not overwrite:
    refuse_existing(directory / str(version))


def check_writable(folder: Path) -> None:
  """Raises OSError if the folder cannot be made or written. Leaves no file behind."""
  there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
  try:
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=there):  # access(2) answers yes for the superuser even where writes fail
      pass
  except OSError as error:
    raise OSError(error.errno, f"cannot write there ({error.strerror}: {there})", str(folder)) from error


def refuse_existing(target: Path, otherwise: str = "another version, or none to take the next free one") -> None:
  """Raises FileExistsError if the target exists. `otherwise` names the alternative to overwrite=True."""
  if target.exists():
    raise FileExistsError(f"{target} exists already; pass overwrite=True, {otherwise}")
