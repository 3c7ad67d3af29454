"""The effect of a killed process on a batch: lost rows, duplicate rows and leftover files, for
`jax2tf batch` and engines."""

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

import psutil

from jax2tf.tools.lab import pipeline_data
from jax2tf.tools.lab.bounds import MIDDLE, MOMENTS, NEVER

_ROWS, _FILES = 1_600_000, 4
_MODEL, _SOURCE = "small-model", "small-rows"
Run = Callable[[pathlib.Path], None]
# (target, moment) -> the process to kill, as soon as there is one
Victim = Callable[[pathlib.Path, str], int | None]


class RunError(Exception):
  """A run that ended with an error."""


def prepare(work: pathlib.Path) -> tuple[str, str]:
  """The model and the rows that all runs share."""
  pipeline_data.save("small", work / _MODEL)
  pipeline_data.write("small", work / _SOURCE, _ROWS, _FILES)
  return str(work / _MODEL), str(work / _SOURCE)


def kills(work: pathlib.Path, run: Run, victim: Victim) -> dict[str, Any]:
  """Runs without a kill, with one during a write and with one in the middle.

  Args:
    run: writes the results to a folder.
    victim: chooses the process.

  Returns:
    for each moment the processes that were killed, the result files at that time, whether the run
    failed, what is wrong with its rows (nothing if it failed), the result files and the temporary
    files at the end; and whether all results have one checksum.
  """
  digests, report = set(), {}
  for moment in MOMENTS:
    target = work / moment
    target.mkdir()
    failed, wrong = False, ""
    with _killing(target, moment, victim) as killed:
      try:
        run(target)
      except (RunError, subprocess.TimeoutExpired):
        failed = True
    if not failed:
      try:
        digests.add(hashlib.sha256(pipeline_data.answers(_ROWS, target).tobytes()).hexdigest())
      except Exception as error:  # a file that cannot be read counts too
        wrong = str(error) or type(error).__name__
    names = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    results = [name for name in names if _is_result(name)]
    left = [name for name in names if name not in results and name != "_jax2tf_batch.json"]
    report[moment] = {
      "killed": len(killed),
      "after": killed,
      "failed": failed,
      "wrong": wrong,
      "files": len(results),
      "temporary": left,
    }
  return report | {"rows": _ROWS, "one_checksum": len(digests) == 1}


def process_of(called: str, busy: Callable[[psutil.Process], bool]) -> Victim:
  """A descendant process with `called` in its command that writes a file of the target or, in the
  middle, is busy."""

  def find(target: pathlib.Path, moment: str) -> int | None:
    for process in psutil.Process().children(recursive=True):
      with contextlib.suppress(psutil.Error):
        if called in " ".join(process.cmdline()) and (
          busy(process) if moment == MIDDLE else has_open(process, str(target))
        ):
          return process.pid
    return None

  return find


def has_open(process: psutil.Process, folder: str) -> bool:
  """Whether a process has an open file in a folder."""
  return any(file.path.startswith(f"{folder}/") for file in process.open_files())


def named_by_file(target: pathlib.Path, moment: str) -> int | None:
  """The process id in the name of a temporary file: one that was just begun or, in the middle, half
  of one after the first result."""
  done = max(map(_size, target.glob("*.parquet")), default=0)
  least = done // 2 if moment == MIDDLE and done else 1
  if moment == MIDDLE and not done:
    return None
  return next(
    (
      int(path.name.split(".")[1])
      for path in target.glob(".*.writing.*.parquet")
      if _size(path) >= least
    ),
    None,
  )


@contextlib.contextmanager
def _killing(target: pathlib.Path, moment: str, victim: Victim) -> Iterator[list[int]]:
  """Kills one process; the list gets the number of result files at that time."""
  killed: list[int] = []
  ended = threading.Event()

  def watch() -> None:
    while not killed and not ended.wait(0.0005):
      if (process := victim(target, moment)) is not None:
        done = len(list(target.glob("*.parquet")))
        with contextlib.suppress(ProcessLookupError):  # it has just ended
          os.kill(process, signal.SIGKILL)
          killed.append(done)

  watcher = threading.Thread(target=watch)
  if moment != NEVER:
    watcher.start()
  try:
    yield killed
  finally:
    ended.set()
    if moment != NEVER:
      watcher.join()


def _is_result(name: str) -> bool:
  return "/" not in name and name.endswith(".parquet") and not name.startswith((".", "_"))


def _size(path: pathlib.Path) -> int:
  try:
    return path.stat().st_size
  except FileNotFoundError:
    return -1
