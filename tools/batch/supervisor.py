"""Restarts workers that die, repeats their shards, and shows progress."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from jax2tf.converters.bundle import progress
from jax2tf.tools import gpus
from jax2tf.tools.batch import THREADS, worker
from jax2tf.tools.batch.plan import Plan, Shard

# -P: the working directory is not on the module path
_COMMAND = [sys.executable, "-P", "-m", "jax2tf.tools.batch.worker"]
_ATTEMPTS = 3
_TELL_SECONDS = 10.0  # between two lines of progress if stderr is no terminal
_LOOK_SECONDS = 1.0  # the longest wait for messages
_END_SECONDS = 10.0  # the longest wait for the end of a killed worker
STALL_SECONDS = 600.0


@dataclass
class Outcome:
  """The result of a run.

  Attributes:
    shards: the number of shards that it finished.
    rows, bad: the numbers of rows that ran and that did not.
    failed: name of a shard -> the reason of its last failure.
    seconds: the duration of the run.
    started: the mean time until a worker has loaded the model, in seconds.
    renewed: the number of workers that died or stalled and were restarted.
  """

  shards: int = 0
  rows: int = 0
  bad: int = 0
  failed: dict[str, str] = field(default_factory=dict)
  seconds: float = 0.0
  started: float = 0.0
  renewed: int = 0


@dataclass(frozen=True)
class Processes:
  """The worker processes of a run.

  Attributes:
    workers: their number.
    threads: the number of TensorFlow's threads in each.
    device: as `--device`.
    gpus: the GPUs, by the names of CUDA, one for each worker in turn.
  """

  workers: int
  threads: int
  device: str = gpus.AUTO
  gpus: Sequence[str] = ()

  def environment(self, number: int) -> dict[str, str]:
    """The variables of the worker of this number."""
    own = [self.gpus[number % len(self.gpus)]] if self.gpus else []
    return gpus.environment(self.device, own) | dict.fromkeys(THREADS, str(self.threads))


class _Worker:
  """A worker process and its current shard.

  Attributes:
    number: from 0 on; the worker that replaces it has it, too.
    shard, attempt: the shard that it runs, and how often this shard was begun; None if it waits for
      one.
    rows, part: the progress of the shard, in rows and from 0 to 1.
    ready: whether it has loaded the model.
    silent: for how many seconds it has reported nothing while it had work.
  """

  def __init__(self, options: dict[str, Any], number: int, variables: Mapping[str, str]):
    self.number = number
    self.shard: Shard | None = None
    self.attempt, self.rows, self.part = 0, 0, 0.0
    self.ready, self.silent = False, 0.0
    self._heard = b""  # the beginning of a line
    self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
    # A new session: Ctrl-C goes to the command only.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **variables}
    pipes: dict[str, Any] = {
      "stdin": subprocess.PIPE,
      "stdout": subprocess.PIPE,
      "stderr": self._said,
    }
    # Unbuffered, because `select` does not see lines in a buffer of this process.
    self.process = subprocess.Popen(
      _COMMAND, bufsize=0, start_new_session=True, env=environment, **pipes
    )
    self._send(options)

  def give(self, shard: Shard, attempt: int) -> None:
    self.shard, self.attempt, self.rows, self.part, self.silent = shard, attempt, 0, 0.0, 0.0
    self._send([str(shard.source), str(shard.target), shard.state])

  def _send(self, value: Any) -> None:
    assert self.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died; the end of its output reports that
      self.process.stdin.write(json.dumps(value).encode() + b"\n")
      self.process.stdin.flush()

  def hear(self) -> list[dict[str, Any]] | None:
    """Its messages that have come, without waiting for the end of a line; None if it died."""
    assert self.process.stdout is not None
    if not (data := os.read(self.process.stdout.fileno(), 1 << 16)):
      return None
    *lines, self._heard = (self._heard + data).split(b"\n")
    return [json.loads(line) for line in lines]

  def end(self) -> str:
    """Kills it, removes its incomplete files, and returns how it ended."""
    self.process.kill()
    try:
      how = f"ended with {self.process.wait(_END_SECONDS)}"
    # the system holds it, for example in a read from a server that is gone
    except subprocess.TimeoutExpired:
      how = "was killed and has not ended yet"
    assert self.process.stdin is not None and self.process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.close()
    self.process.stdout.close()
    self._said.seek(0)
    last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
    self._said.close()
    if self.shard:
      for target in (self.shard.target, worker.bad_rows(self.shard.target)):
        worker.temporary(target, self.process.pid).unlink(missing_ok=True)
    return f"its worker {how}" + (f": {last[0][:300]}" if last else "")


def run(plan: Plan, processes: Processes, stall_seconds: float = STALL_SECONDS) -> Outcome:
  """Runs the shards that are left in a plan.

  Args:
    plan: the shards, with their files.
    processes: the workers; there are no more than shards.
    stall_seconds: how long a worker may run no batch of rows before it is killed, and its shard
      repeated.

  Raises:
    ValueError: the model cannot be loaded; the message is the worker's.
  """
  left = plan.left
  if not left:
    return Outcome()
  options = asdict(plan.asked) | {"fingerprint": plan.fingerprint, "device": processes.device}
  crew = _Crew(options, processes, min(processes.workers, len(left)))
  size = sum(shard.state.size for shard in left)
  with crew.working(), _Progress(size).shown() as shown:
    return _Run(plan, crew, shown, stall_seconds).finished()


class _Run:
  """Gives shards to workers until none is left."""

  def __init__(self, plan: Plan, crew: _Crew, shown: _Progress, stall_seconds: float):
    self._plan, self._crew, self._progress, self._stall_seconds = (plan, crew, shown, stall_seconds)
    self._left = collections.deque((shard, 1) for shard in plan.left)
    self._outcome, self._began = Outcome(), time.monotonic()
    self._deaths = 0  # consecutive deaths of workers that had not loaded the model

  def finished(self) -> Outcome:
    while self._left or self._crew.busy:
      for each in self._crew.idle:
        if self._left:
          each.give(*self._left.popleft())
      for each, message in self._crew.messages():
        self._hear(each, message)
      for each in self._crew.silent_for(self._stall_seconds):
        self._lost(each, f"it ran no rows for {self._stall_seconds:.0f} s (--stall_seconds), so ")
      self._show()
    self._outcome.seconds = time.monotonic() - self._began
    return self._outcome

  def _hear(self, each: _Worker, message: dict[str, Any] | None) -> None:
    if message is None:
      self._lost(each)
    elif "fatal" in message:
      raise ValueError(message["fatal"])
    elif "ready" in message:
      each.ready, self._deaths = True, 0
      if self._outcome.renewed == 0:
        self._outcome.started += (time.monotonic() - self._began) / self._crew.number
    elif "part" in message:
      each.rows, each.part = each.rows + message["rows"], message["part"]
    elif "done" in message:
      self._done(each, **message["done"])
    elif "failed" in message:
      self._failed(each, message["failed"])

  def _lost(self, each: _Worker, why: str = "") -> None:
    """Replaces a worker that died, or that has to."""
    self._deaths = 0 if each.ready else self._deaths + 1
    reason = why + self._crew.renew(each)
    self._outcome.renewed += 1
    if self._deaths >= _ATTEMPTS:
      raise ValueError(f"cannot start a worker: {reason}")
    if each.shard:
      self._failed(each, reason)

  def _done(self, each: _Worker, rows: int, bad: int) -> None:
    shard, each.shard = each.shard, None
    assert shard is not None
    self._plan.note(shard, rows, bad)
    self._outcome.shards += 1
    self._outcome.rows += rows
    self._outcome.bad += bad
    self._progress.over(shard.state.size)

  def _failed(self, each: _Worker, reason: str) -> None:
    shard, each.shard = each.shard, None
    assert shard is not None
    if each.attempt < _ATTEMPTS:
      self._left.append((shard, each.attempt + 1))
    else:
      self._outcome.failed[shard.source.name] = reason
      self._progress.over(shard.state.size)

  def _show(self) -> None:
    under_way = [
      (each.shard.state.size * each.part, each.rows) for each in self._crew.busy if each.shard
    ]
    rows = self._outcome.rows + sum(rows for _, rows in under_way)
    self._progress.show(sum(size for size, _ in under_way), rows)


class _Crew:
  """The workers of a run."""

  def __init__(self, options: dict[str, Any], processes: Processes, number: int):
    self._options, self._processes, self.number = options, processes, number
    self._members: list[_Worker] = []
    self._selector = selectors.DefaultSelector()
    self._looked = time.monotonic()

  @contextlib.contextmanager
  def working(self) -> Iterator[None]:
    try:
      for number in range(self.number):
        self._add(number)
      yield
    finally:
      for each in self._members:
        each.end()
      self._selector.close()

  @property
  def idle(self) -> list[_Worker]:
    return [each for each in self._members if each.ready and not each.shard]

  @property
  def busy(self) -> list[_Worker]:
    return [each for each in self._members if each.shard]

  def messages(self) -> Iterator[tuple[_Worker, dict[str, Any] | None]]:
    """Waits for messages, at most a second; None for a worker that died."""
    spoke = [key.data for key, _ in self._selector.select(_LOOK_SECONDS)]
    # A command that was stopped itself (Ctrl-Z, a paused machine) counts its pause as one look.
    passed = min(time.monotonic() - self._looked, 2 * _LOOK_SECONDS)
    self._looked = time.monotonic()
    for each in self._members:
      each.silent += passed
    for each in spoke:
      each.silent = 0.0
      heard = each.hear()
      yield from ((each, message) for message in (heard if heard is not None else [None]))

  def silent_for(self, seconds: float) -> list[_Worker]:
    """The workers that load the model or run a shard and have reported nothing for so long."""
    return [
      each for each in self._members if (each.shard or not each.ready) and each.silent > seconds
    ]

  def renew(self, each: _Worker) -> str:
    """Replaces a worker that ended, and returns how it ended."""
    self._selector.unregister(each.process.stdout)  # type: ignore[arg-type]
    self._members.remove(each)
    message = each.end()
    self._add(each.number)
    return message

  def _add(self, number: int) -> None:
    each = _Worker(self._options, number, self._processes.environment(number))
    self._members.append(each)
    self._selector.register(each.process.stdout, selectors.EVENT_READ, each)  # type: ignore[arg-type]


class _Progress:
  """Shows rows per second and the remaining time: a progress bar on a terminal, otherwise a line
  every ten seconds."""

  def __init__(self, size: int):
    self._size, self._whole = max(1, size), 0
    self._began = self._told = time.monotonic()
    self._on_terminal = sys.stderr.isatty()
    self._bar = progress.Bar(None, None)

  @contextlib.contextmanager
  def shown(self) -> Iterator[_Progress]:
    """Shows it inside the `with` block."""
    with progress.bar("jax2tf batch", self._size) as self._bar:
      yield self

  def over(self, size: int) -> None:
    """Counts a shard of this many bytes as finished, done or failed."""
    self._whole += size

  def show(self, under_way: float, rows: int) -> None:
    now, done = time.monotonic(), self._whole + under_way
    words = f"{rows:,} rows, {rows / (now - self._began):,.0f} rows/s"
    if self._on_terminal:
      self._bar.set(words=f"jax2tf batch: {words}", done=done)
    elif now > self._told + _TELL_SECONDS:
      self._told, part = now, done / self._size
      left = f", {(now - self._began) * (1 - part) / part:.0f} s left" if part else ""
      print(f"jax2tf batch: {100 * part:.0f} %, {words}{left}", file=sys.stderr, flush=True)
