"""The effect of a killed process on a batch: lost rows, duplicate rows and leftover files, for `jax2tf batch` and engines."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq

from jax2tf.tools.sweeps import pipeline_data

_ROWS, _FILES = 400_000, 4
_MODEL, _SOURCE = "small-model", "small-rows"
# moment -> size of the file that is being written: any, or that of the earlier windows
MOMENTS = {"never": None, "write": 0, "middle": 1}
Run = Callable[[pathlib.Path], None]
Victim = Callable[[pathlib.Path, int], int | None]  # (target, bytes) -> the process to kill, as soon as there is one


def prepare(work: pathlib.Path) -> tuple[str, str]:
  """The model and the rows that all runs share."""
  if not (work / _MODEL).exists():
    pipeline_data.save("small", work / _MODEL)
    pipeline_data.write("small", work / _SOURCE, _ROWS, _FILES)
  return str(work / _MODEL), str(work / _SOURCE)


def kills(work: pathlib.Path, run: Run, victim: Victim, *, fails: bool = False) -> dict[str, Any]:
  """Runs without a kill, with one during a write and with one in the middle.

  Args:
    run: writes the results to a folder.
    victim: chooses the process.
    fails: whether a killed run must fail and leave no result.

  Raises:
    SystemExit: a row was lost or occurs twice.
  """
  digests, report = set(), {}
  for moment, size in MOMENTS.items():
    target = work / moment
    target.mkdir()
    failed = False
    with _killing(target, size, victim) as killed:
      try:
        run(target)
      except subprocess.CalledProcessError:
        failed = True
    expected = fails and bool(killed)
    if failed != expected:
      raise SystemExit(f"{target}: {len(killed)} processes were killed, and the run {'failed' if failed else 'did not fail'}")
    names = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    if not failed:
      pipeline_data.check(_ROWS, target)
      digests.add(_digest(target))
    report[moment] = {"killed": len(killed), "failed": failed, "files": len(names), "temporary": [n for n in names if _temporary(n)]}
  return report | {"rows": _ROWS, "one_checksum": len(digests) == 1}


def process_of(called: str, busy: Callable[[psutil.Process], bool]) -> Victim:
  """A descendant process with `called` in its command that writes a file of the target or, in the middle, is busy."""

  def find(target: pathlib.Path, size: int) -> int | None:
    for process in psutil.Process().children(recursive=True):
      with contextlib.suppress(psutil.Error):
        if called in " ".join(process.cmdline()) and (busy(process) if size else has_open(process, str(target))):
          return process.pid
    return None

  return find


def has_open(process: psutil.Process, folder: str) -> bool:
  """Whether a process has an open file in a folder."""
  return any(file.path.startswith(f"{folder}/") for file in process.open_files())


def named_by_file(target: pathlib.Path, size: int) -> int | None:
  """The process id in the name of a temporary file."""
  return next((int(path.name.split(".")[1]) for path in target.glob(".*.writing.*.parquet") if _size(path) >= size), None)


@contextlib.contextmanager
def _killing(target: pathlib.Path, size: int | None, victim: Victim) -> Iterator[list[int]]:
  killed: list[int] = []
  ended = threading.Event()

  def watch(size: int) -> None:
    while not killed and not ended.wait(0.0005):
      if (process := victim(target, size)) is not None:
        killed.append(process)
        os.kill(process, signal.SIGKILL)

  watcher = threading.Thread(target=watch, args=(size,)) if size is not None else None
  if watcher:
    watcher.start()
  try:
    yield killed
  finally:
    ended.set()
    if watcher:
      watcher.join()


def _digest(target: pathlib.Path) -> str:
  """The checksum of all rows, independent of their files."""
  table = pq.read_table(target)
  order = np.argsort(table["id"].to_numpy())
  outputs = np.stack([np.asarray(row) for row in table["y"].to_pylist()])
  return hashlib.sha256(table["id"].to_numpy()[order].tobytes() + outputs[order].tobytes()).hexdigest()


def _temporary(name: str) -> bool:
  folder, _, file = name.rpartition("/")
  return bool(folder) or (file != "_jax2tf_batch.json" and (file.startswith(".") or not file.endswith(".parquet")))


def _size(path: pathlib.Path) -> int:
  try:
    return path.stat().st_size
  except FileNotFoundError:
    return -1
