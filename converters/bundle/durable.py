"""Renames that a power cut cannot halve: the contents are on the disk before the new name is, and
the name is before the call returns.

Without this a file system may keep the rename and lose the data: ext4 writes names after 5 s, and
data up to 30 s later.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path

# linux/fs.h: swap two paths atomically.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# fsync(2) of a folder, on file systems that keep no folders of their own.
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def move(written: Path, target: Path) -> None:
  """Gives a file, or a folder with all in it, the name `target`. A file replaces a file, a folder
  only an empty folder.

  Raises:
    OSError: it cannot be written or renamed. What was at `target` is still there.
  """
  sync(written)
  written.replace(target)
  sync_names(target.parent)


def exchange(written: Path, target: Path) -> bool:
  """Swaps two paths at once, after `written` is on the disk. False where the file system cannot,
  which changes nothing.

  Raises:
    OSError: `written` cannot be written.
  """
  sync(written)
  if not _swapped(written, target):
    return False
  sync_names(target.parent)
  sync_names(written.parent)
  return True


def _swapped(one: Path, other: Path) -> bool:
  if os.name == "nt":  # where CDLL(None) is an error
    return False
  rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
  return (
    rename is not None
    and rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
  )


def make_folder(folder: Path) -> list[Path]:
  """Makes a folder and those above it, for good. Returns the new ones, the innermost first."""
  new = [each for each in (folder, *folder.parents) if not each.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  for each in new:
    sync_names(each.parent)
  return new


def sync(path: Path) -> None:
  """Waits until a file, or a folder with all in it, is on the disk.

  Raises:
    OSError: it cannot be written there.
  """
  if path.is_dir():
    for folder, _, files in os.walk(path, topdown=False):
      for name in files:
        _sync_file(Path(folder, name))
      sync_names(Path(folder))
  else:
    _sync_file(path)


def sync_names(folder: Path) -> None:
  """Waits until the names in a folder are on the disk."""
  if os.name == "nt":  # Windows opens no folders
    return
  try:
    _sync(folder, os.O_RDONLY)
  except OSError as error:
    if error.errno not in _NOT_FOR_FOLDERS:
      raise


def _sync_file(path: Path) -> None:
  if stat.S_ISREG(path.lstat().st_mode):  # links are names of their folder
    _sync(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
  descriptor = os.open(path, flags)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
