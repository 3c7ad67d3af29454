"""Directories that appear all at once: written beside their place, then renamed into it."""

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

# linux/fs.h: swap two paths in one step.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def beside(directory: Path) -> Iterator[Path]:
  """A place in `directory` under a name that no server takes for a version; gone at the end. Those of killed processes go first.

  Where nothing was written, a `directory` that was not there is gone too, and so are the folders above it.
  """
  new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
  directory.mkdir(parents=True, exist_ok=True)
  for place in directory.glob(f"{_PREFIX}*"):
    if (lock := _lock(place, wait=False)) is not None:  # nobody writes there any more
      shutil.rmtree(place, ignore_errors=True)
      os.close(lock)
  while True:
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    lock = _lock(place, wait=True)
    if place.exists():  # else somebody took it for left behind before it was locked
      break
  try:
    yield place / "model"
  finally:
    shutil.rmtree(place, ignore_errors=True)
    if lock is not None:
      os.close(lock)
    with contextlib.suppress(OSError):  # there is a version in it
      for folder in new:
        folder.rmdir()


_PREFIX = ".saving-"


def _lock(place: Path, *, wait: bool) -> int | None:
  """A lock on a directory, which the system takes back when the process dies; None where another has it, or there are none."""
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
  """Renames `written` to its version. Renaming onto a version of somebody else fails, so two savers get two.

  Raises:
    FileExistsError: the version is there already and `overwrite` is False.
  """
  while True:
    target = directory / str(next_version(directory) if version is None else version)
    if overwrite and version is not None and target.exists():
      _exchange(written, target)
      return target
    try:
      written.rename(target)
      return target
    except OSError:
      if version is not None or not target.exists():
        refuse_existing(target)
        raise


def _exchange(written: Path, target: Path) -> None:
  """Swaps the two, so that there is one of them at every moment; what was there goes with the place beside."""
  rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
  if rename is None or rename(_AT_FDCWD, os.fsencode(written), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE):
    target.rename(written.with_name("replaced"))  # a file system without exchange
    written.rename(target)


def next_version(directory: Path) -> int:
  """One more than the newest version."""
  return 1 + max(versions(directory), default=0)


def versions(directory: Path) -> list[int]:
  """The versions that a server would see, in order."""
  return sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal())


def saved_model_in(path: Path) -> Path | None:
  """The SavedModel that `path` is, or the newest of a folder of versions; None for neither."""
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
  """Raises ValueError for a number that no server looks for, FileExistsError for a version that is there and shall stay."""
  if version is None:
    return
  if isinstance(version, bool) or not isinstance(version, Integral) or version < 0:
    raise ValueError(f"version = {version!r} is no whole number from 0 on, which servers look for")
  if not overwrite:
    refuse_existing(directory / str(version))


def check_writable(folder: Path) -> None:
  """Raises OSError for a folder in which nothing can be written, or that cannot be made; leaves nothing behind."""
  there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
  try:
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=there):  # access(2) says yes to the superuser, also where the system says no
      pass
  except OSError as error:
    raise OSError(error.errno, f"nothing can be written there ({error.strerror}: {there})", str(folder)) from error


def refuse_existing(target: Path, otherwise: str = "another version, or none to take the next free one") -> None:
  """Raises FileExistsError for what is there already; `otherwise` says what to pass instead of overwrite=True."""
  if target.exists():
    raise FileExistsError(f"{target} exists already; pass overwrite=True, {otherwise}")
