"""Runs pytest with the plugin in other processes; one that dies, hangs or grows is replaced."""

from __future__ import annotations

import concurrent.futures
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

# Exit codes of the plugin that say that there are tests left.
LARGE, LATE = 77, 78
# The exit codes of pytest that say that all tests ran: none failed, some failed, there was none.
_ENDED = (0, 1, 5, LATE)
_PATIENCE = 300  # seconds for a test; one that takes longer hangs
_METHOD = re.compile(r"^  def test", re.MULTILINE)
_PLUGIN = ["-p", "jax2tf.tools.lab.jax_tests.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
_HANGS = ["-o", f"faulthandler_timeout={_PATIENCE}", "-o", "faulthandler_exit_on_timeout=true"]
_OUTPUT = ["--continue-on-collection-errors", "-q", "--tb=line", "-W", "ignore"]
_PYTEST = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir=."]
_COMMAND = [*_PYTEST, *_PLUGIN, *_HANGS, *_OUTPUT]
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
    folder: where the rows and the output of the processes are.
    x64: whether 64-bit types are enabled.
    per_test: the number of parametrizations of each test method, 0 for all.
    calls: the largest number of calls that are compared in one test.
    seed: chooses parametrizations and ways.
    gigabytes: a process ends when it has this size.
    end: a process ends after this time of time.time().
  """

  folder: str
  x64: bool = False
  per_test: int = 2
  calls: int = 6
  seed: int = 0
  gigabytes: float = 5.0
  end: float = 0.0

  @property
  def rows(self) -> pathlib.Path:
    """The file of the rows, JSON lines."""
    return pathlib.Path(self.folder, "rows.jsonl")


def run(files: Sequence[pathlib.Path], sample: Sample, seconds: float, processes: int = 1) -> None:
  """Runs the tests that have not run yet, and those that failed, until the time is over.

  Args:
    files: test files of JAX, in one folder.
    sample: of their tests.
    seconds: the time to run.
    processes: the number of processes, each with a share of the files.
  """
  pathlib.Path(sample.folder).mkdir(parents=True, exist_ok=True)
  for test in sorted({row["test"] for row in rows(sample) if row["status"] in ("wrong", "crash")}):
    append(sample, {"test": test, "event": "again"})
  limited = dataclasses.replace(sample, end=time.time() + seconds)
  shares = _shares(files, processes)
  with concurrent.futures.ThreadPoolExecutor(len(shares)) as pool:
    for share in [pool.submit(_run, limited, files, i) for i, files in enumerate(shares)]:
      share.result()


def rows(sample: Sample) -> list[dict[str, Any]]:
  """The rows of each test, as it ran last."""
  tests: dict[str, list[dict[str, Any]]] = {}
  for row in _events(sample):
    if row.get("event") == "start":
      tests[row["test"]] = []
    elif "status" in row:
      tests.setdefault(row["test"], []).append(row)
  return [row for found in tests.values() for row in found]


def done(sample: Sample) -> set[str]:
  """The tests that ran, to their end or to that of their process, and are not to run again."""
  found: set[str] = set()
  for row in _events(sample):
    if row.get("event") == "end":
      found.add(row["test"])
    elif row.get("event") == "again":
      found.discard(row["test"])
  return found


def append(sample: Sample, row: dict[str, Any]) -> None:
  """Writes a row, or what happened to a test."""
  with sample.rows.open("a", encoding="utf-8") as stream:
    stream.write(json.dumps(row) + "\n")


def crash(test: str, where: str, detail: str) -> dict[str, Any]:
  """The row of a test or a file that ended outside of the calls."""
  status = {"status": "crash", "kind": where, "detail": detail}
  return {"test": test, "call": 0, "function": "", "way": where, **status}


def _events(sample: Sample) -> Iterator[dict[str, Any]]:
  if sample.rows.exists():
    yield from map(json.loads, sample.rows.read_text(encoding="utf-8").splitlines())


def _shares(files: Sequence[pathlib.Path], number: int) -> list[list[pathlib.Path]]:
  """The files in groups of about as many test methods."""
  sizes = {file: len(_METHOD.findall(file.read_text(encoding="utf-8"))) for file in files}
  shares: list[list[pathlib.Path]] = [[] for _ in range(number)]
  for file in sorted(files, key=lambda file: -sizes[file]):
    min(shares, key=lambda share: sum(sizes[one] for one in share)).append(file)
  return [share for share in shares if share]


def _run(sample: Sample, files: Sequence[pathlib.Path], number: int) -> None:
  """Runs a share of the files in one process after another.

  Raises:
    RuntimeError: a process ended outside of a test, so the next one would too.
  """
  folder = files[0].parent
  paths = [str(pathlib.Path.cwd()), str(folder), os.environ.get("PYTHONPATH", "")]
  python_path = os.pathsep.join(filter(None, paths))
  environment = {"JAX_ENABLE_X64": str(int(sample.x64)), "PYTHONPATH": python_path}
  command = [*_COMMAND, f"--sample={json.dumps(dataclasses.asdict(sample))}", *map(str, files)]
  log = pathlib.Path(sample.folder, f"log-{number}.txt")
  while True:
    with log.open("ab") as output:
      env = os.environ | _ENVIRONMENT | environment
      process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
      code = process.wait()
    events = [row for row in _events(sample) if row.get("process") == process.pid]
    if events and events[-1]["event"] == "start":
      test = events[-1]["test"]
      append(sample, crash(test, "process", f"the process ended with {code}; see {log.name}"))
      append(sample, {"test": test, "event": "end"})
    elif code in _ENDED:
      return
    elif code != LARGE:
      said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
      raise RuntimeError("\n".join([f"pytest ended with {code} outside of a test:", *said]))
