"""Publication of files and folders: written under a temporary name beside their target, then
renamed, for good (`durable`).

At an `Address` in another file system they are written to a local folder, then copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from numbers import Integral
from pathlib import Path

from jax2tf.messages import Argument, ArgumentError, Message, Text

from . import durable, paths, versions
from .files import SAVED_MODEL

_PREFIX = ".saving-"
# The folder in a temporary place for a version that is moved aside where two paths cannot be
# exchanged; its name there is its own.
_REPLACED = "replaced"


@contextlib.contextmanager
def beside(directory: Path) -> Iterator[Path]:
  """A temporary place in `directory`, removed at the end. Servers do not take its name for a
  version. For an Address it is a local place.

  First clears places that killed processes left. If nothing was published, also removes the folders
  that this call made.
  """
  if isinstance(directory, paths.Address):
    with tempfile.TemporaryDirectory(prefix="jax2tf-") as local:
      yield Path(local) / "model"
    return
  new = durable.make_folder(directory)
  recover(directory, clear=True)
  while True:
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    lock = _lock(place, wait=True)
    if place.exists():  # otherwise another process removed it before it was locked
      break
  try:
    yield place / "model"
  finally:
    _clear(place)
    if lock is not None:
      os.close(lock)
    with contextlib.suppress(OSError):  # it holds a version
      for folder in new:
        folder.rmdir()


def recover(directory: Path, *, clear: bool) -> None:
  """What an ended process had moved aside, and not replaced, gets its name back. `clear`: also
  removes what such processes left."""
  for place in directory.glob(f"{_PREFIX}*"):
    if (clear or any(place.glob(f"{_REPLACED}/*"))) and (
      lock := _lock(place, wait=False)
    ) is not None:
      _clear(place) if clear else _give_back(place)
      os.close(lock)


def _clear(place: Path) -> None:
  if _give_back(place):
    shutil.rmtree(place, ignore_errors=True)


def _give_back(place: Path) -> bool:
  """What was moved aside, and not replaced, gets its name back. Returns whether nothing is left."""
  try:
    for aside in place.glob(f"{_REPLACED}/*"):
      if not (target := place.parent / aside.name).exists():
        aside.rename(target)
        durable.sync_names(target.parent)
  except OSError:  # another user's
    return False
  return True


def _lock(place: Path, *, wait: bool) -> int | None:
  """A lock on a directory, which the system releases when the process ends. None if it is taken, or
  not available here."""
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
  """Gives `written` the name of its version. A rename onto an existing version fails, so concurrent
  savers get different versions.

  Raises:
    FileExistsError: the version exists and `overwrite` is False.
  """
  while True:
    free = 1 + max(versions.numbered(directory), default=0)
    target = directory / str(free if version is None else version)
    if target.exists() and version is not None:
      if not overwrite:
        refuse_existing(target)
      replace_folder(written, target)
      return target
    try:
      move(written, target, last=SAVED_MODEL)  # what readers look for
      return target
    except OSError:
      if version is not None or not target.exists():
        refuse_existing(target)
        raise


def move(written: Path, target: Path, last: str = "") -> None:
  """Gives a file or a folder its name, or copies it to its Address, of a folder the file `last` at
  the end.

  Raises:
    OSError: it cannot be written. What was at `target` is still there.
  """
  if isinstance(target, paths.Address):
    target.put(written, last)
  else:
    durable.move(written, target)


def replace_folder(written: Path, target: Path) -> None:
  """Swaps the two folders. What `target` held is removed with the temporary place of `beside`, once
  the new one is on the disk."""
  check_replaceable(target)
  if durable.exchange(written, target):
    return
  aside = written.with_name(_REPLACED)
  durable.make_folder(aside)
  # until `target` is there again, `beside` or `recover` gives it back
  target.rename(aside / target.name)
  written.rename(target)
  durable.sync_names(target.parent)
  aside.rename(aside.with_name("removed"))


def saved_model_in(path: Path, argument: str = "") -> Path:
  """`path` if it is a SavedModel, or the newest version in it.

  Args:
    path: the directory of a version, or that of a model.
    argument: its name, for errors.

  Raises:
    FileNotFoundError: it is neither.
  """
  if not isinstance(path, paths.Address):
    for folder in (path, path.parent):
      recover(folder, clear=False)
  newest = versions.newest(path)
  if newest is not None:
    return newest
  if argument:
    raise FileNotFoundError(
      Message(
        Argument(argument, str(path)),
        problem="it holds neither saved_model.pb nor a numbered version",
        advice="save a model there first",
      )
    )
  raise FileNotFoundError(
    f"{path} is neither a SavedModel nor a directory of versions: there is no saved_model.pb"
  )


def check_version(directory: Path, version: int | None, overwrite: bool) -> None:
  """Checks the folder of a model, and the version to save there.

  Raises:
    ValueError: the version number is invalid, or an Address cannot be overwritten.
    FileExistsError: the version exists without `overwrite`, or `directory` is a version itself.
    OSError: the folder cannot be written.
  """
  if version is not None and (
    isinstance(version, bool) or not isinstance(version, Integral) or version < 0
  ):
    raise ArgumentError(
      "version", version, advice="give a nonnegative integer, which servers require"
    )
  refuse_version(directory)
  if version is not None and not overwrite:
    refuse_existing(directory / str(version))
  check_writable(directory)
  if version is not None and overwrite:
    check_replaceable(directory / str(version))


def refuse_version(directory: Path) -> None:
  """Raises FileExistsError for a folder that is, or would be, a version: servers find no version in
  a version."""
  would_be_one = directory.name.isdecimal() and not directory.exists()
  if versions.is_saved_model(directory) or (would_be_one and versions.served(directory.parent)):
    number = int(directory.name) if directory.name.isdecimal() else None
    version = () if number is None else (" with ", Argument("version", number))
    raise FileExistsError(
      Message(
        problem=f"{directory} is a version of a model, and not its folder",
        advice=Text(f"pass {directory.parent}", *version, ", or another folder"),
      )
    )


def check_file(path: Path, overwrite: bool, example: str) -> None:
  """Checks the path of a file to write; `example` is the name of one.

  Raises:
    IsADirectoryError: it is a folder.
    FileExistsError: it exists and `overwrite` is False.
    OSError: the folder of the file cannot be written.
  """
  if path.is_dir():
    raise IsADirectoryError(
      Message(
        Argument("path", str(path)),
        problem="it is a folder",
        advice=f"name a file in it, such as {str(path / example)!r}",
      )
    )
  if not overwrite:
    refuse_existing(path, "or another path")
  check_writable(path.parent)


def check_replaceable(folder: Path) -> None:
  """Raises ValueError for a folder that exists at an Address, where no file system replaces a
  folder at once."""
  if isinstance(folder, paths.Address) and folder.exists():
    raise ArgumentError(
      "overwrite",
      True,
      problem=f"{folder} cannot be replaced, because {folder.scheme}:// exchanges no folders",
      advice="choose another path or version",
    )


def check_writable(folder: Path) -> None:
  """Raises OSError if the folder cannot be made or written. Leaves no file behind."""
  if isinstance(folder, paths.Address):
    folder.check_writable()
    return
  there = next(existing for existing in (folder, *folder.absolute().parents) if existing.exists())
  try:
    # access(2) answers yes for the superuser even where writes fail
    with tempfile.TemporaryDirectory(prefix=".writable-", dir=there):
      pass
  except OSError as error:
    raise OSError(
      error.errno, f"cannot write there ({error.strerror}: {there})", str(folder)
    ) from error


def refuse_existing(
  target: Path, otherwise: str = "another version, or none to take the next free one"
) -> None:
  """Raises FileExistsError if the target exists. `otherwise` names the alternative to
  overwrite=True."""
  if target.exists():
    raise FileExistsError(
      Message(
        problem=f"{target} exists already",
        advice=Text("pass ", Argument("overwrite", True), f", {otherwise}"),
      )
    )
