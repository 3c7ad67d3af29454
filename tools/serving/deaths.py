"""Says why a process of the server ended: by its own words, by the signal, or by what the kernel
did to it."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import signal
import time
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import psutil

from jax2tf.tools.serving import child
from jax2tf.tools.serving.child import Options

# A process writes why it fails into PID.failed, and Python into PID.crash what it executed when a
# signal such as SIGSEGV came.
_FAILED, _CRASH, _REPLICA = "failed", "crash", "replica"
# When a cluster dies, its replicas die at about the same time. So a replica's death is told a
# little later, with that reason.
_TELL_AFTER_SECONDS = 1.0
# How long a killed process may take to end.
_END_SECONDS = 5.0
_MEMORY = (
  "the kernel killed a process because the memory of the machine or of the container was used up"
)


def fail(options: Options, reason: str) -> None:
  """Writes why this process ends, for the server."""
  child.note(options, _FAILED, reason)


def enter(options: Options, cluster: int) -> None:
  """Has the server report the death of this replica, which belongs to the process `cluster`."""
  crash = Path(options.run, f"{os.getpid()}.{_CRASH}").open("w", encoding="utf-8")  # noqa: SIM115  (open for as long as the process)
  faulthandler.enable(crash, all_threads=False)
  child.note(options, _REPLICA, json.dumps({"cluster": cluster}))


def failures(run: Path) -> list[tuple[int, str]]:
  """Process id and reason of each process that wrote why it fails. Their files are removed."""
  reasons = []
  for file in sorted(run.glob(f"*.{_FAILED}")):
    reasons.append((int(file.stem), _one_line(file)))
    file.unlink(missing_ok=True)
  return reasons


def end_sessions(leaders: Set[int]) -> None:
  """Kills the processes of sessions, except this one, so that none writes into the server's folder
  any more.

  The processes of Ray that outlive their parent are in the session of the cluster that they
  belonged to.
  """
  processes = [
    each
    for each in psutil.process_iter()
    if each.pid != os.getpid() and _session(each.pid) in leaders
  ]
  for process in processes:
    with contextlib.suppress(psutil.NoSuchProcess):
      process.kill()
  psutil.wait_procs(processes, _END_SECONDS)


def _session(pid: int) -> int:
  try:
    return os.getsid(pid)
  except ProcessLookupError:
    return 0


@dataclass
class _Replica:
  """A replica.

  Attributes:
    process: None if it had died when it was looked for.
    cluster: the process of its cluster, likewise.
    died: the time when its death was seen; infinite before.
  """

  process: psutil.Process | None
  cluster: psutil.Process | None
  died: float = math.inf


class Deaths:
  """The deaths of the processes of one server, whose files are in `run`."""

  def __init__(self, run: Path):
    self._run = run
    self._replicas: dict[int, _Replica] = {}
    self._told: set[int] = set()
    self._killed: dict[int, str] = {}
    self._memory = _memory_kills()

  def kill(self, pid: int, reason: str) -> None:
    """Kills a process, for a reason that is given when it has died."""
    self._killed[pid] = reason
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)

  def of_replicas(self) -> list[tuple[int, str]]:
    """Process id and reason of each replica that died since the last call."""
    for file in self._run.glob(f"*.{_REPLICA}"):
      if int(file.stem) not in self._replicas:
        self._enter(file)
    for replica in self._replicas.values():
      if math.isinf(replica.died) and not _runs(replica.process):
        replica.died = time.monotonic()
    told = time.monotonic() - _TELL_AFTER_SECONDS
    dead = [
      pid
      for pid, replica in self._replicas.items()
      if replica.died < (told if _runs(replica.cluster) else math.inf)
    ]
    return [(pid, self._of_replica(pid)) for pid in dead]

  def lost_workers(self) -> int:
    """How many processes of Ray ended before they could become a replica.

    Ray starts each of its workers with a log file, worker-ID-JOB-PID.err. A replica enters itself
    only after some seconds of imports, and whoever dies before is not in any file of the server.
    """
    logs = self._run.glob("ray/session_2*/logs/worker-*-*.err")
    started = {int(file.stem.rpartition("-")[2]) for file in logs}
    replicas = {int(file.stem) for file in self._run.glob(f"*.{_REPLICA}")}
    return sum(not psutil.pid_exists(pid) for pid in started - replicas - self._told)

  def _enter(self, file: Path) -> None:
    cluster = json.loads(file.read_text(encoding="utf-8"))["cluster"]
    self._replicas[int(file.stem)] = _Replica(_process(int(file.stem)), _process(cluster))

  def _of_replica(self, pid: int) -> str:
    replica = self._replicas.pop(pid)
    self._told.add(pid)
    for suffix in (_REPLICA, "sock"):
      (self._run / f"{pid}.{suffix}").unlink(missing_ok=True)
    reason = self.reason(pid, None)
    return reason if _runs(replica.cluster) else "its cluster ended"

  def reason(self, pid: int, code: int | None) -> str:
    """Why a process died. `code` is the exit code as `subprocess` gives it, or None if it is not
    known."""
    report, crash = self._run / f"{pid}.{_FAILED}", self._run / f"{pid}.{_CRASH}"
    before, self._memory = self._memory, _memory_kills()
    text_of_report = (
      self._killed.pop(pid, "")
      or _one_line(report)
      or _text(crash).partition("\n")[0]
      or _by_code(code)
    )
    for file in (report, crash):
      file.unlink(missing_ok=True)
    return (
      f"{text_of_report}; {_MEMORY}"
      if self._memory > before and code in (None, -signal.SIGKILL)
      else text_of_report
    )


def _process(pid: int) -> psutil.Process | None:
  try:
    return psutil.Process(pid)
  except psutil.NoSuchProcess:
    return None


def _runs(process: psutil.Process | None) -> bool:
  try:
    return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def _by_code(code: int | None) -> str:
  """Why a process died, by its exit code."""
  if code is None:
    return "it was killed, or ended without a word"
  return (
    f"it was killed by {signal.Signals(-code).name}"
    if code < 0
    else f"it ended with exit code {code}"
  )


def _one_line(file: Path) -> str:
  return " ".join(_text(file).split())


def _text(file: Path) -> str:
  """What a file holds; "" if there is none."""
  try:
    return file.read_text(encoding="utf-8")
  except FileNotFoundError:
    return ""


def _memory_kills() -> int:
  """How many processes the kernel has killed because the memory was used up; 0 if it does not
  say."""
  try:
    lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
  except OSError:
    return 0
  return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
