"""The shards of a run and those that are left. A ledger in the results folder, a small JSON file, records model, options and files."""

from __future__ import annotations

import fcntl
import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jax2tf.tools.batch import contract, formats, worker

LEDGER = "_jax2tf_batch.json"  # pyarrow and Spark ignore files whose names begin with _
_FORMAT = 1


@dataclass(frozen=True)
class Asked:
  """The options that determine the results; `model.Runner` documents them."""

  model: str
  signature: str
  columns: Mapping[str, Sequence[str]]
  outputs: Sequence[str]
  mask: str
  batch_size: int


@dataclass
class Shard:
  """One file of rows.

  Attributes:
    source, target: the file, and the file of its results.
    size, changed: size and modification time of the source, in bytes and nanoseconds.
    rows, bad: the numbers of rows that ran and that did not; None until the shard is done.
  """

  source: Path
  target: Path
  size: int
  changed: int
  rows: int | None = None
  bad: int | None = None


@dataclass
class Plan:
  """The shards of one results folder."""

  folder: Path
  asked: Asked
  shards: list[Shard]
  _ledger: dict[str, Any] = field(default_factory=dict)

  @property
  def left(self) -> list[Shard]:
    """The shards without results. Results are always complete, because a worker renames a finished file to its name."""
    return [shard for shard in self.shards if not shard.target.exists()]

  def note(self, shard: Shard, rows: int, bad: int) -> None:
    """Records in the ledger that a shard is done."""
    shard.rows, shard.bad = rows, bad
    self._ledger["shards"][shard.target.name] |= {"rows": rows, "bad": bad}
    self.write()

  def write(self) -> None:
    """Writes the ledger atomically."""
    file = worker.temporary(self.folder / LEDGER, os.getpid())
    file.write_text(json.dumps(self._ledger, indent=2) + "\n", encoding="utf-8")
    file.rename(self.folder / LEDGER)


@contextmanager
def opened(patterns: Sequence[str], folder: Path, asked: Asked) -> Iterator[Plan]:
  """The plan for these files. It locks the folder against other commands until it is closed.

  Raises:
    ValueError: the files or options do not fit the model, or the folder is locked or has results of another model or other files.
  """
  found = contract.read(asked.model, asked.signature, asked.mask)
  columns = contract.columns(found, asked.columns)
  outputs = contract.wanted(found, asked.outputs)
  shards = _shards(patterns, folder)
  for shard in shards:
    _check(shard.source, found, columns, outputs)
  made = json.loads(json.dumps(asdict(asked) | {"model": contract.fingerprint(found.directory)}))  # comparable with the ledger
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"{folder} is not a directory; name one for the results")
  existed = folder.exists()
  folder.mkdir(parents=True, exist_ok=True)
  lock = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      raise ValueError(f"another jax2tf batch is running in {folder}; wait until it finishes") from error
    _clean(folder)
    ledger = _ledger(folder, made, shards, existed)
    plan = Plan(folder, asked, shards, ledger)
    plan.write()
    yield plan
  finally:
    _clean(folder)
    os.close(lock)


def _shards(patterns: Sequence[str], folder: Path) -> list[Shard]:
  paths: list[Path] = []
  for pattern in patterns:
    matching = [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob.glob(pattern, recursive=True)))
    if not matching:
      raise ValueError(f"{pattern!r} names no file")
    paths += [path for path in matching if path not in paths]
  shards: dict[str, Shard] = {}
  for path in paths:
    if not path.is_file():
      raise ValueError(f"{path} is not a file; name the files in it, as {str(path / '*.parquet')!r}")
    if path.name in shards:
      raise ValueError(f"{shards[path.name].source} and {path} have the same name, so their results would collide; rename one")
    target = folder / path.name
    if target.resolve() == path.resolve():
      raise ValueError(f"{path} is in {folder}, where its results would overwrite it; name another folder")
    state = path.stat()
    shards[path.name] = Shard(path.absolute(), target.absolute(), state.st_size, state.st_mtime_ns)
  return list(shards.values())


def _check(path: Path, found: contract.Contract, columns: Mapping[str, Sequence[str]], outputs: Sequence[str]) -> None:
  """Raises ValueError for a file that cannot fit, if its format tells before reading."""
  form = formats.of(path)
  if isinstance(form, formats.Npy) and (len(found.needed) != 1 or len(columns[found.needed[0]]) != 1):
    raise ValueError(f"{path} holds one array, and the model takes {', '.join(found.needed)}; give files that name their columns")
  if isinstance(form, formats.Npy) and len(outputs) != 1:
    raise ValueError(f"{path} holds one array, and the model returns {', '.join(outputs)}; choose one by --output")
  try:
    names = form.columns(path)
  except Exception:  # each format has its own errors; an unreadable file fails later, in a worker
    return
  for name in found.needed:
    for column in columns[name]:
      if names is not None and column not in names:
        raise ValueError(
          f"{path} has no column {column!r} for input {name!r}; it has {', '.join(map(repr, names[:20]))}; give --column {name}=COLUMN"
        )


def _ledger(folder: Path, made: Mapping[str, Any], shards: Sequence[Shard], existed: bool) -> dict[str, Any]:
  """The ledger of the folder, with these shards. Shards that it knows get their numbers of rows from it."""
  file = folder / LEDGER
  if not file.exists():
    if existed and any(folder.iterdir()):
      raise ValueError(f"{folder} has files that jax2tf batch did not write; name a new folder")
    ledger: dict[str, Any] = {"format": _FORMAT, "made": made, "shards": {}}
  else:
    try:
      ledger = json.loads(file.read_text(encoding="utf-8"))
      before, format_ = ledger["made"], ledger["format"]
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f"{file} cannot be read ({error}); name a new folder") from error
    if format_ != _FORMAT:
      raise ValueError(f"{file} was written by another version of jax2tf; name a new directory")
    if other := [key for key, value in made.items() if before.get(key) != value]:
      what = "another model" if other[0] == "model" else f"another --{other[0].removesuffix('s') if other[0] != 'batch_size' else other[0]}"
      raise ValueError(f"{folder} has results of {what}; name a new folder")
  for shard in shards:
    entry = {"source": str(shard.source), "size": shard.size, "changed": shard.changed}
    known = ledger["shards"].setdefault(shard.target.name, entry)
    if entry.items() - known.items() and (known["size"], known["changed"]) != (shard.size, shard.changed):
      raise ValueError(f"{shard.source} has changed since {folder} was started; name a new directory")
    shard.rows, shard.bad = known.get("rows"), known.get("bad")
  return ledger


def _clean(folder: Path) -> None:
  """Removes incomplete files of killed processes."""
  for path in folder.glob(".*.writing.*"):
    path.unlink(missing_ok=True)
