"""The versions of a model: folders with a number as their name, each a SavedModel, as TF Serving
has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .files import SAVED_MODEL

# As in TF Serving, a version is an int64.
LARGEST = 2**63 - 1


def numbered(folder: Path) -> list[int]:
  """The numbers that are taken as names in a folder, in order."""
  return sorted(int(entry.name) for entry in _entries(folder) if entry.name.isdecimal())


def served(folder: Path) -> list[Path]:
  """The versions in a folder, in order: each has a number up to `LARGEST` as its name and holds a
  SavedModel. One for each number."""
  return _chosen(folder)[0]


def ignored(folder: Path) -> dict[Path, str]:
  """The SavedModels in a folder that have a number as their name and are no versions -> the
  reason."""
  return _chosen(folder)[1]


def newest(path: Path) -> Path | None:
  """`path` if it is a SavedModel, or the newest version in it; None if it is neither."""
  if is_saved_model(path):
    return path
  versions = served(path)
  return versions[-1] if versions else None


def is_saved_model(folder: Path) -> bool:
  """Whether a folder is a SavedModel itself."""
  return (folder / SAVED_MODEL).exists()


def _chosen(folder: Path) -> tuple[list[Path], dict[Path, str]]:
  versions: dict[int, Path] = {}
  skipped: dict[Path, str] = {}
  decimal = [entry for entry in _entries(folder) if _is_decimal(entry.name)]
  for entry in sorted(decimal, key=lambda entry: (len(entry.name), entry.name)):  # 1 is before 01
    if not _holds_model(entry):
      continue
    number = int(entry.name)
    if number > LARGEST:
      skipped[entry] = f"a version is at most {LARGEST}; give the folder a smaller number"
    elif number in versions:
      same = versions[number].name
      skipped[entry] = f"{same} is the same version; remove one of the folders"
    else:
      versions[number] = entry
  return [versions[number] for number in sorted(versions)], skipped


def _holds_model(entry: Path) -> bool:
  try:
    return is_saved_model(entry)
  except PermissionError:  # another user's
    return False


def _is_decimal(name: str) -> bool:
  return name.isascii() and name.isdecimal()


def _entries(folder: Path) -> Iterator[Path]:
  return folder.iterdir() if folder.is_dir() else iter(())
