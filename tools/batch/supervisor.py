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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import IO, Any

import tqdm

from jax2tf.tools.batch import THREADS, worker
from jax2tf.tools.batch.plan import Plan, Shard

_ATTEMPTS = 3
_TELL_SECONDS = 10.0  # between two lines of progress if stderr is no terminal


@dataclass
class Outcome:
  """The result of a run.

  Attributes:
    shards: the number of shards that it finished.
    rows, bad: the numbers of rows that ran and that did not.
    failed: name of a shard -> the reason of its last failure.
    seconds: the duration of the run.
    started: the mean time until a worker has loaded the model, in seconds.
    renewed: the number of workers that died and were restarted.
  """

  shards: int = 0
  rows: int = 0
  bad: int = 0
  failed: dict[str, str] = field(default_factory=dict)
  seconds: float = 0.0
  started: float = 0.0
  renewed: int = 0


class _Worker:
  """A worker process and its current shard."""

  def __init__(self, options: dict[str, Any], threads: int):
    self.shard: Shard | None = None
    self.rows, self.part = 0, 0.0
    self.ready = False
    self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
    # -P: the working directory is not on the module path. A new session: Ctrl-C goes to the command only.
    command = [sys.executable, "-P", "-m", "jax2tf.tools.batch.worker"]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **dict.fromkeys(THREADS, str(threads))}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
    # Unbuffered, because `select` does not see lines in a buffer of this process.
    self.process = subprocess.Popen(command, bufsize=0, start_new_session=True, env=environment, **pipes)
    self._send(options)

  def give(self, shard: Shard) -> None:
    self.shard, self.rows, self.part = shard, 0, 0.0
    self._send([str(shard.source), str(shard.target)])

  def _send(self, value: Any) -> None:
    assert self.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died; the end of its output reports that
      self.process.stdin.write(json.dumps(value).encode() + b"\n")
      self.process.stdin.flush()

  def hear(self) -> dict[str, Any] | None:
    """Its next message; None if it died."""
    assert self.process.stdout is not None
    line = self.process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else None

  def end(self) -> str:
    """Kills it, removes its incomplete files, and returns how it ended."""
    self.process.kill()
    code = self.process.wait()
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
    return f"its worker ended with {code}" + (f": {last[0][:300]}" if last else "")


def run(plan: Plan, workers: int, threads: int) -> Outcome:
  """Runs the shards that are left in a plan.

  Raises:
    ValueError: the model cannot be loaded; the message is the worker's.
  """
  outcome, begin = Outcome(), time.monotonic()
  left = collections.deque((shard, 1) for shard in plan.left)
  if not left:
    return outcome
  crew = _Crew(asdict(plan.asked) | {"fingerprint": plan.fingerprint}, threads, min(workers, len(left)))
  with crew.working(), _Progress(sum(shard.size for shard, _ in left)) as progress:
    attempts: dict[str, int] = {}
    deaths = 0  # consecutive deaths of workers that had not loaded the model
    while left or crew.busy:
      for each in crew.idle:
        if left:
          shard, attempts[shard.target.name] = left.popleft()
          each.give(shard)
      for each in crew.that_speak():
        said, given = each.hear(), each.shard
        if said is None:
          deaths = 0 if each.ready else deaths + 1
          reason = crew.renew(each)
          outcome.renewed += 1
          if deaths >= _ATTEMPTS:
            raise ValueError(f"cannot start a worker: {reason}")
          said = {"failed": reason} if given else {}
        if "fatal" in said:
          raise ValueError(said["fatal"])
        if "ready" in said:
          each.ready, deaths = True, 0
          outcome.started += (time.monotonic() - begin) / crew.number if outcome.renewed == 0 else 0
        elif "part" in said:
          each.rows, each.part = each.rows + said["rows"], said["part"]
        elif "done" in said and given:
          plan.note(given, **said["done"])
          outcome.shards += 1
          outcome.rows += said["done"]["rows"]
          outcome.bad += said["done"]["bad"]
          progress.over(given.size)
          each.shard = None
        elif "failed" in said and given:
          if (attempt := attempts[given.target.name]) < _ATTEMPTS:
            left.append((given, attempt + 1))
          else:
            outcome.failed[given.source.name] = said["failed"]
            progress.over(given.size)
          each.shard = None
      under_way = [(each.shard.size * each.part, each.rows) for each in crew.busy if each.shard]
      progress.show(sum(size for size, _ in under_way), outcome.rows + sum(rows for _, rows in under_way))
  outcome.seconds = time.monotonic() - begin
  return outcome


class _Crew:
  """The workers of a run."""

  def __init__(self, options: dict[str, Any], threads: int, number: int):
    self._options, self._threads, self.number = options, threads, number
    self._members: list[_Worker] = []
    self._selector = selectors.DefaultSelector()

  @contextlib.contextmanager
  def working(self) -> Iterator[None]:
    try:
      for _ in range(self.number):
        self._add()
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

  def that_speak(self) -> list[_Worker]:
    """Waits for messages, and returns the workers that sent one."""
    return [key.data for key, _ in self._selector.select(1.0)]

  def renew(self, each: _Worker) -> str:
    """Replaces a worker that ended, and returns how it ended."""
    self._selector.unregister(each.process.stdout)  # type: ignore[arg-type]
    self._members.remove(each)
    said = each.end()
    self._add()
    return said

  def _add(self) -> None:
    each = _Worker(self._options, self._threads)
    self._members.append(each)
    self._selector.register(each.process.stdout, selectors.EVENT_READ, each)  # type: ignore[arg-type]


class _Progress:
  """Shows rows per second and the remaining time: a progress bar on a terminal, otherwise a line every ten seconds."""

  def __init__(self, size: int):
    self._whole = 0
    self._began = self._told = time.monotonic()
    on_terminal = sys.stderr.isatty()
    form = "jax2tf batch: {percentage:3.0f} % |{bar}| {desc}, {remaining} left"
    self._bar = tqdm.tqdm(total=max(1, size), bar_format=form, leave=False, disable=not on_terminal, file=sys.stderr)

  def __enter__(self) -> _Progress:
    return self

  def __exit__(self, *_: object) -> None:
    self._bar.close()

  def over(self, size: int) -> None:
    """Counts a shard of this many bytes as finished, done or failed."""
    self._whole += size

  def show(self, under_way: float, rows: int) -> None:
    now, done = time.monotonic(), self._whole + under_way
    words = f"{rows:,} rows, {rows / (now - self._began):,.0f} rows/s"
    if not self._bar.disable:
      self._bar.set_description_str(words, refresh=False)
      self._bar.update(int(done) - self._bar.n)
    elif now > self._told + _TELL_SECONDS:
      self._told, part = now, done / self._bar.total
      left = f", {(now - self._began) * (1 - part) / part:.0f} s left" if part else ""
      print(f"jax2tf batch: {100 * part:.0f} %, {words}{left}", file=sys.stderr, flush=True)
