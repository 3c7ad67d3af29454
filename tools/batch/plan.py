"""The shards of a run and those that are left.

A ledger in the results folder records model, options and files: lines of JSON, the first for the
run and at least one for each shard.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from jax2tf.converters.bundle import durable
from jax2tf.tools.batch import cells, contract, formats, worker

LEDGER = "_jax2tf_batch.json"  # pyarrow and Spark ignore files whose names begin with _
_FORMAT = 2


@dataclass(frozen=True)
class Asked:
  """The options that determine the results; `model.Runner` documents them."""

  model: str
  signature: str
  columns: Mapping[str, Sequence[str]]
  outputs: Sequence[str]
  mask: str
  batch_size: int
  allow_ops: Sequence[str] = ()


@dataclass
class Shard:
  """One file of rows.

  Attributes:
    source, target: the file, and the file of its results.
    state: what the source was when the command began.
    rows, bad: the numbers of rows that ran and that did not; None until the shard is done.
  """

  source: Path
  target: Path
  state: worker.State
  rows: int | None = None
  bad: int | None = None


@dataclass
class Plan:
  """The shards of one results folder.

  Attributes:
    folder: where the results are.
    asked: the options, with the directory of the SavedModel as model.
    fingerprint: the checksum of the model.
    shards: all shards, those with results too.
  """

  folder: Path
  asked: Asked
  fingerprint: str
  shards: list[Shard]

  @property
  def left(self) -> list[Shard]:
    """The shards without results. Results are always complete, because a worker renames a finished
    file to its name."""
    return [shard for shard in self.shards if not shard.target.exists()]

  def note(self, shard: Shard, rows: int, bad: int) -> None:
    """Records in the ledger that a shard is done."""
    shard.rows, shard.bad = rows, bad
    with _writing(self.folder / LEDGER, "a") as file:
      file.write(json.dumps({"shard": shard.target.name, "rows": rows, "bad": bad}) + "\n")


@contextmanager
def opened(patterns: Sequence[str], folder: Path, asked: Asked) -> Iterator[Plan]:
  """The plan for these files. It locks the folder against other commands until it is closed.

  Raises:
    ValueError: the files or options do not fit the model, or the folder is locked or has results of
      another model or other files.
  """
  rows_contract = contract.read(asked.model, asked.signature, asked.mask)
  columns = contract.columns(rows_contract, asked.columns)
  outputs = contract.wanted(rows_contract, asked.outputs)
  shards = _shards(patterns, folder)
  for shard in shards:
    _check(shard.source, rows_contract, columns, outputs)
  fingerprint = contract.fingerprint(rows_contract.directory)
  # comparable with the ledger
  description = json.loads(json.dumps(asdict(asked) | {"model": fingerprint}))
  del description["allow_ops"]  # which determines whether the model runs, not its results
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"{folder} is not a directory; name one for the results")
  existed = folder.exists()
  folder.mkdir(parents=True, exist_ok=True)
  with _locked(folder):
    _begin(folder, description, shards, existed)
    # Workers load this directory: a version that is published later is for later runs.
    yield Plan(folder, replace(asked, model=str(rows_contract.directory)), fingerprint, shards)


@contextmanager
def _writing(path: Path, mode: str) -> Iterator[IO[str]]:
  """A text file. Its errors name it, as of a full disk, which those of Python do not."""
  try:
    with path.open(mode, encoding="utf-8") as file:
      yield file
  except OSError as error:
    raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
  """Keeps other commands of this machine out of a folder, and removes incomplete files at the
  beginning and at the end.

  A file system may lack locks (ENOLCK, ENOSYS, EOPNOTSUPP, of some network file systems). Two
  commands then repeat each other's work, but lose nothing, because every file gets its name when it
  is complete.
  """
  lock = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
        raise ValueError(
          f"another jax2tf batch is running in {folder}; wait until it finishes"
        ) from error
      warnings.warn_explicit(  # a command has no line of the user's
        f"{folder} is on a file system without locks ({error.strerror}); run one jax2tf batch at "
        "a time there",
        category=UserWarning,
        filename="jax2tf batch",
        lineno=1,
      )
    worker.clean(folder)
    try:
      yield
    finally:
      worker.clean(folder)
  finally:
    os.close(lock)


def _shards(patterns: Sequence[str], folder: Path) -> list[Shard]:
  paths: list[Path] = []
  for pattern in patterns:
    matching = (
      [Path(pattern)]
      if Path(pattern).exists()
      else sorted(map(Path, glob.glob(pattern, recursive=True)))
    )
    if not matching:
      raise ValueError(f"{pattern!r} names no file")
    paths += [path for path in matching if path not in paths]
  shards: dict[str, Shard] = {}
  for path in paths:
    if not path.is_file():
      raise ValueError(
        f"{path} is not a file; name the files in it, as {str(path / '*.parquet')!r}"
      )
    worker.check_name(path)
    if path.name in shards:
      raise ValueError(
        f"{shards[path.name].source} and {path} have the same name, so their results would "
        "collide; run one folder at a time, each into a folder of its own"
      )
    target = folder / path.name
    if target.resolve() == path.resolve():
      raise ValueError(
        f"{path} is in {folder}, where its results would overwrite it; name another folder"
      )
    shards[path.name] = Shard(path.absolute(), target.absolute(), worker.State.of(path))
  return list(shards.values())


def _check(
  path: Path,
  rows_contract: contract.Contract,
  columns: Mapping[str, Sequence[str]],
  outputs: Sequence[str],
) -> None:
  """Raises ValueError for a file that cannot fit, if its format tells before reading."""
  form = formats.of(path)
  if isinstance(form, formats.Npy) and (
    len(rows_contract.needed) != 1 or len(columns[rows_contract.needed[0]]) != 1
  ):
    raise ValueError(
      f"{path} holds one array, and the model takes {', '.join(rows_contract.needed)}; give files "
      "that name their columns"
    )
  if isinstance(form, formats.Npy) and len(outputs) != 1:
    raise ValueError(
      f"{path} holds one array, and the model returns {', '.join(outputs)}; choose one by --output"
    )
  try:
    names = form.columns(path)
  except Exception:  # each format has its own errors; an unreadable file fails later, in a worker
    return
  if not names:  # a format without names, or an empty file
    return
  cells.check_names(set(names).difference(*columns.values()), outputs)
  for name in rows_contract.needed:
    for column in columns[name]:
      if column not in names:
        raise ValueError(
          f"{path} has no column {column!r} for input {name!r}; it has "
          f"{', '.join(map(repr, names[:20]))}; give --column {name}=COLUMN"
        )


def _begin(
  folder: Path, description: Mapping[str, Any], shards: Sequence[Shard], existed: bool
) -> None:
  """Begins or continues the ledger of the folder. Shards that it knows get their numbers of rows
  from it."""
  file = folder / LEDGER
  ledger: dict[str, dict[str, Any]] = {}
  if file.exists():
    ledger = _read(file, description)
  elif existed and any(folder.iterdir()):
    raise ValueError(f"{folder} has files that jax2tf batch did not write; name a new folder")
  for shard in shards:
    now = {"source": str(shard.source), "size": shard.state.size, "changed": shard.state.changed}
    known = ledger.setdefault(shard.target.name, now)
    if (known["size"], known["changed"]) != (now["size"], now["changed"]):
      if shard.target.exists():
        raise ValueError(
          f"{shard.source} has changed since {folder} was started; name a new directory"
        )
      known.update(now)  # nothing of its former rows was kept
    shard.rows, shard.bad = known.get("rows"), known.get("bad")
  temporary = worker.temporary(file, os.getpid())
  with _writing(temporary, "w") as written:
    for line in (
      {"format": _FORMAT, "made": description},
      *({"shard": name, **known} for name, known in ledger.items()),
    ):
      written.write(json.dumps(line) + "\n")
  durable.move(temporary, file)


def _read(file: Path, description: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """{shard: what the ledger knows of it}, if the ledger is of the same run."""
  *lines, last = file.read_text(encoding="utf-8").split("\n")
  del last  # empty, or a line that a killed command did not finish
  try:
    first, *rest = map(json.loads, lines)
    before, format_ = first["made"], first["format"]
    ledger: dict[str, dict[str, Any]] = {}
    for line in rest:
      ledger.setdefault(line.pop("shard"), {}).update(line)
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(f"{file} cannot be read ({error}); name a new folder") from error
  if format_ != _FORMAT:
    raise ValueError(f"{file} was written by another version of jax2tf; name a new directory")
  if other := [key for key, value in description.items() if before.get(key) != value]:
    what = (
      "another model"
      if other[0] == "model"
      else f"another --{other[0].removesuffix('s') if other[0] != 'batch_size' else other[0]}"
    )
    raise ValueError(f"{file.parent} has results of {what}; name a new folder")
  return ledger
