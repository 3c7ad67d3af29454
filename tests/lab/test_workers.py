"""Tasks in other processes: what returns, what crashes and what hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jax2tf.tools.lab import workers


def task(how: str, folder: Path) -> str:
  print("doing", how, flush=True)
  if how == "crash":
    os.abort()
  if how == "error":
    raise ValueError("of the task")
  if how == "hang":
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
      (folder / "child").write_text(str(child.pid))
  return how


def lost(error: workers.LostError, how: str, _: Path) -> str:
  return f"{how}: {error}"


def test_what_is_lost_costs_one_task(tmp_path: Path) -> None:
  assert list(
    workers.each(
      task,
      [(how, tmp_path) for how in ("one", "crash", "error", "two", "hang", "three")],
      lost,
      seconds=5,
    )
  ) == [
    "one",
    "crash: its process ended with -6; it said last: doing crash",
    "error: ValueError: of the task",
    "two",
    "hang: not done after 5 s",
    "three",
  ]
  # it went with the process that waited for it
  child = Path("/proc", (tmp_path / "child").read_text(), "status")
  assert not child.exists() or "(zombie)" in child.read_text()
  assert list(workers.each(task, [], lost)) == []
