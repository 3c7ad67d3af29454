"""Runs pytest with the plugin in other processes; one that dies, hangs or grows is replaced."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jax2tf.tools.lab.jax_tests import plan

# A test that takes longer, in seconds, hangs; or the imports.
_PATIENCE = 300
# The exit codes of pytest that say that all tests ran: none failed, some failed, there was none.
_ENDED = (0, 1, 5)
# Those that say that none will run: interrupted, an internal error, wrong arguments.
_BROKEN = (2, 3, 4)
_ROWS = "rows.jsonl"
_METHOD = re.compile(r"^  def test", re.MULTILINE)
_PLUGIN = "jax2tf.tools.lab.jax_tests.plugin"
_PYTEST = ["-c", os.devnull, "--rootdir=.", "-p", _PLUGIN, "-p", "no:cacheprovider"]
_OUTPUT = ["--continue-on-collection-errors", "-q", "--tb=line", "-W", "ignore"]
_COMMAND = [sys.executable, "-m", "pytest", "-p", "no:xdist", *_PYTEST, *_OUTPUT]
_ENVIRONMENT = {
  "CUDA_VISIBLE_DEVICES": "-1",
  "JAX_PLATFORMS": "cpu",
  "JAX_SKIP_SLOW_TESTS": "1",
  "JAX_NUM_GENERATED_CASES": "10",
  # Each function is compiled for one run, as in the tests: tests/conftest.py.
  "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
  "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
  "TF_CPP_MIN_LOG_LEVEL": "3",
  "TF_ENABLE_ONEDNN_OPTS": "1",
}


@dataclasses.dataclass(frozen=True)
class Sample:
  """What to run.

  Attributes:
    folder: where the rows, the plans and the output of the processes are.
    x64: whether 64-bit types are enabled.
    per_test, calls, seed, gigabytes: of a `plan.Plan`.
  """

  folder: pathlib.Path
  x64: bool = False
  per_test: int = 2
  calls: int = 6
  seed: int = 0
  gigabytes: float = 5.0


def run(files: Sequence[pathlib.Path], sample: Sample, seconds: float, processes: int = 1) -> None:
  """Runs the tests that have not run yet, and those that failed, until the time is over.

  Args:
    files: test files of JAX, in one folder.
    sample: of their tests.
    seconds: the time to run.
    processes: the number of processes, each with a share of the files.
  """
  sample.folder.mkdir(parents=True, exist_ok=True)
  failed = {row["test"] for row in rows(sample.folder) if row["status"] in ("wrong", "crash")}
  for test in sorted(failed):
    _append(sample.folder, {"test": test, "event": "again"})
  end = time.time() + seconds
  running = [Child(i, share, sample, end) for i, share in enumerate(_shares(files, processes))]
  try:
    while running:
      time.sleep(0.5)
      running = [child for child in running if child.goes_on()]
  finally:
    for child in running:
      child.kill()


def rows(folder: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of each test, as it ran last."""
  tests: dict[str, list[dict[str, Any]]] = {}
  for row in _events(folder):
    if row.get("event") == "start":
      tests[row["test"]] = []
    elif "status" in row:
      tests.setdefault(row["test"], []).append(row)
  return [row for found in tests.values() for row in found]


def done(folder: pathlib.Path) -> set[str]:
  """The tests that ran, to their end or to that of their process, and are not to run again."""
  found: set[str] = set()
  for row in _events(folder):
    if row.get("event") == "end":
      found.add(row["test"])
    elif row.get("event") == "again":
      found.discard(row["test"])
  return found


def _events(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
  file = folder / _ROWS
  if file.exists():
    yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def _append(folder: pathlib.Path, row: dict[str, Any]) -> None:
  with (folder / _ROWS).open("a", encoding="utf-8") as stream:
    stream.write(json.dumps(row) + "\n")


def _shares(files: Sequence[pathlib.Path], number: int) -> list[list[pathlib.Path]]:
  """The files in groups of about as many test methods."""
  sizes = {file: len(_METHOD.findall(file.read_text(encoding="utf-8"))) for file in files}
  shares: list[list[pathlib.Path]] = [[] for _ in range(number)]
  for file in sorted(files, key=lambda file: -sizes[file]):
    min(shares, key=lambda share: sum(sizes[one] for one in share)).append(file)
  return [share for share in shares if share]


class Child:
  """A process for a share of the files, and those that replace it."""

  def __init__(self, number: int, files: Sequence[pathlib.Path], sample: Sample, end: float):
    """`end` is the time of time.time() at which it ends."""
    self._files, self._sample, self._end = files, sample, end
    self._plan = sample.folder / f"plan-{number}.json"
    self._log = sample.folder / f"log-{number}.txt"
    self._process = self._start()

  def goes_on(self) -> bool:
    """Whether there is more to run. Starts the next process where one ended before."""
    state = self._process.poll()
    if state is None:
      if time.time() - self._plan.stat().st_mtime < _PATIENCE:
        return True
      self.kill()
    if state in (*_ENDED, plan.LATE):
      return False
    if state != plan.LARGE:
      self._note_crash(state)
    self._process = self._start()
    return True

  def kill(self) -> None:
    """Ends the process."""
    self._process.kill()
    self._process.wait()

  def _note_crash(self, state: int | None) -> None:
    """Writes a row for the test in which the process ended.

    Raises:
      RuntimeError: it ended outside of a test, so the next one would too.
    """
    pid = self._process.pid
    events = [row for row in _events(self._sample.folder) if row.get("process") == pid]
    if state in _BROKEN or not events or events[-1]["event"] == "end":
      said = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
      raise RuntimeError("\n".join([f"pytest ended with {state} outside of a test:", *said]))
    test = events[-1]["test"]
    detail = f"the process ended with {state}" if state is not None else f"silent for {_PATIENCE} s"
    crash = {"call": 0, "function": "", "way": "process", "status": "crash", "kind": "process"}
    _append(self._sample.folder, {"test": test, **crash, "detail": detail})
    _append(self._sample.folder, {"test": test, "event": "end"})

  def _start(self) -> subprocess.Popen[bytes]:
    sample = self._sample
    rows_file = str(sample.folder / _ROWS)
    finished = sorted(done(sample.folder))
    chosen = (sample.per_test, sample.calls, sample.seed)
    plan.Plan(rows_file, finished, *chosen, self._end, sample.gigabytes).write(self._plan)
    folder = self._files[0].parent
    paths = [str(pathlib.Path.cwd()), str(folder), os.environ.get("PYTHONPATH", "")]
    python_path = os.pathsep.join(filter(None, paths))
    environment = {"JAX_ENABLE_X64": str(int(sample.x64)), "PYTHONPATH": python_path}
    command = [*_COMMAND, f"--plan={self._plan}", *map(str, self._files)]
    with self._log.open("ab") as log:
      env = os.environ | _ENVIRONMENT | environment
      return subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
