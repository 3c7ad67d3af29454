"""Finds processes that hang. A process answers health calls from its event loop, beside the work of
the model.

`answer` runs in each process and echoes what it is sent through the Unix socket PID.health of
`Options.run`. `Watchdog` runs in the server. It keeps one connection to each process, so that a
call needs no new descriptor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from jax2tf.tools.serving import child

SUFFIX = ".health"
_LOG = logging.getLogger("ray.serve")
_PERIOD_SECONDS = 0.5
# How long a process may leave a call unanswered: one that sleeps, such as a stopped one or one in a
# deadlock, and one that computes with Python's lock held, such as a parser of much JSON, or that
# waits for a processor or a disk.
_ASLEEP_SECONDS, _BUSY_SECONDS = 1.5, 60.0
# Ray is slow on a busy machine, and a new cluster has to load all models again.
CLUSTER_SECONDS = 60.0
# The share of a core from which on a process computes.
_BUSY = 0.05
# The most that one look adds to the waiting time. If the server was stopped too, as in a paused
# container, the others get time to answer.
_LONGEST_LOOK = 0.5


async def answer(run: Path, check: Callable[[], None] | None = None) -> asyncio.Server:
  """Answers health calls until the server that it returns is closed. `check` raises while there is
  no answer to give."""

  async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1):
      while check and not await asyncio.to_thread(_succeeds, check):
        await asyncio.sleep(_PERIOD_SECONDS)
      writer.write(data)
    writer.close()

  return await asyncio.start_unix_server(echo, run / f"{os.getpid()}{SUFFIX}")


def _succeeds(check: Callable[[], None]) -> bool:
  try:
    check()
  except Exception:
    _LOG.exception("a health check failed")
    return False
  return True


@dataclass
class _Asked:
  """A process that the watchdog knows.

  Attributes:
    connection: to its socket; does not block.
    answered: the time of its last answer.
    waits: for how many seconds the current call has had no answer; None if none is on its way.
    used: the CPU time of the process, in seconds, when the call was sent.
  """

  connection: socket.socket
  answered: float
  waits: float | None = None
  used: float = 0.0


class Watchdog:
  """Calls the processes whose sockets are in a folder.

  Args:
    run: the server's folder.
    clock: gives the time in seconds.
    cpu: the CPU time of a process, in seconds.
    waits: whether a process waits for a processor or a disk.
  """

  def __init__(
    self,
    run: Path,
    clock: Callable[[], float] = time.monotonic,
    cpu: Callable[[int], float] | None = None,
    waits: Callable[[int], bool] | None = None,
  ):
    self._run, self._clock, self._cpu, self._waits = (
      run,
      clock,
      cpu or _cpu_seconds,
      waits or _waits_for_machine,
    )
    self._known: dict[int, _Asked] = {}
    self._last = clock()

  def look(self, limits: Mapping[int, float]) -> dict[int, float]:
    """Calls each process twice in a second and reads the answers, without waiting. It has to be
    called often.

    Args:
      limits: process id -> seconds that the process may leave a call unanswered, where these are
        not the usual ones.

    Returns:
      The process ids of those that hang -> for how many seconds.
    """
    now = self._clock()
    passed, self._last = min(now - self._last, _LONGEST_LOOK), now
    for pid in self._new():
      self._connect(pid, now)
    return dict(self._hung(now, passed, limits))

  def close(self) -> None:
    """Closes the connections."""
    while self._known:
      self._known.popitem()[1].connection.close()

  def _new(self) -> list[int]:
    pids = {int(file.stem) for file in self._run.glob(f"*{SUFFIX}")}
    return sorted(pids - self._known.keys())

  def _connect(self, pid: int, now: float) -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
      connection.connect(str(self._run / f"{pid}{SUFFIX}"))
    except OSError:  # the process ended, or has not begun to listen
      connection.close()
      if not child.is_alive(Path(str(pid))):
        (self._run / f"{pid}{SUFFIX}").unlink(missing_ok=True)
      return
    self._known[pid] = _Asked(connection, now)

  def _hung(
    self, now: float, passed: float, limits: Mapping[int, float]
  ) -> Iterator[tuple[int, float]]:
    for pid, process in list(self._known.items()):
      if process.waits is not None:
        process.waits += passed
      if self._is_gone(process, pid, now):
        process.connection.close()
        del self._known[pid]
      elif process.waits is not None and process.waits > self._limit(process, pid, limits):
        yield pid, process.waits

  def _is_gone(self, process: _Asked, pid: int, now: float) -> bool:
    """Whether the connection ended, as with its process; otherwise reads an answer, and sends the
    next call if it is time."""
    try:
      if process.waits is not None:
        if not process.connection.recv(16):
          return True
        process.waits, process.answered = None, now
      if now >= process.answered + _PERIOD_SECONDS:
        process.waits, process.used = 0.0, self._cpu(pid)
        process.connection.send(b"?")
    except BlockingIOError:
      return False
    except OSError:
      return True
    return False

  def _limit(self, process: _Asked, pid: int, limits: Mapping[int, float]) -> float:
    if pid in limits:
      return limits[pid]
    assert process.waits is not None
    is_busy = self._cpu(pid) - process.used > _BUSY * process.waits or self._waits(pid)
    return _BUSY_SECONDS if is_busy else _ASLEEP_SECONDS


def _cpu_seconds(pid: int) -> float:
  try:
    times = psutil.Process(pid).cpu_times()
  except psutil.NoSuchProcess:
    return 0.0
  return float(times.user + times.system)


def _waits_for_machine(pid: int) -> bool:
  """Whether a thread runs, or could run if the machine had a free processor or a faster disk."""
  for file in Path("/proc", str(pid), "task").glob("*/stat"):
    try:
      state = file.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
    except OSError:  # the thread ended
      continue
    if state in ("R", "D"):
      return True
  return False
