"""Shows the stages of a slow command on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from jax2tf.converters.bundle import progress

PATIENCE = 2.0  # seconds before a command shows its stage
_MOMENT = 0.5


class Progress:
  """Shows the current stage of a command and the elapsed seconds, once the command has taken
  `PATIENCE` seconds.

  On a terminal it updates one line; elsewhere it prints a line for each slow stage.
  """

  def __init__(self, command: str, clock: Callable[[], float] = time.monotonic):
    self._command, self._clock, self._started = command, clock, clock()
    self._stages: list[tuple[str, float]] = []
    self._told: set[tuple[str, float]] = set()
    self._bar: progress.Bar | None = None
    self._ended = threading.Event()

  @contextlib.contextmanager
  def shown(self) -> Iterator[None]:
    """Shows the stages while the command runs."""
    with _stderr() as file:
      watch = threading.Thread(target=self._watch, args=(file,), daemon=True)
      watch.start()
      try:
        yield
      finally:
        self._ended.set()
        watch.join()

  @contextlib.contextmanager
  def stage(self, name: str) -> Iterator[None]:
    """Enters a stage; stages may be nested."""
    self._stages.append((name, self._clock()))
    try:
      yield
    finally:
      self._stages.pop()

  def _watch(self, file: TextIO) -> None:
    with contextlib.ExitStack() as bars:
      while not self._ended.wait(_MOMENT / 2):
        self.look(file, bars)

  def look(self, file: TextIO, bars: contextlib.ExitStack) -> None:
    """Shows the current stage if it is slow, on a terminal by a bar that `bars` ends."""
    now, stages = self._clock(), self._stages[-1:]
    if not stages or now < self._started + PATIENCE or now < stages[0][1] + _MOMENT:
      return
    name, took = stages[0][0], now - self._started
    if file.isatty():
      words = f"{self._command}: {name} ({took:.0f} s)"
      self._bar = self._bar or bars.enter_context(progress.bar(words, file=file))
      self._bar.set(words=words)
    elif stages[0] not in self._told:  # a stage continues after those within it
      self._told.add(stages[0])
      print(f"{self._command}: {took:.1f} s: {name}", file=file, flush=True)


@contextlib.contextmanager
def _stderr() -> Iterator[TextIO]:
  """A copy of stderr that works while `quiet.startup` discards what TensorFlow writes to stderr."""
  try:
    copy = os.dup(sys.stderr.fileno())
  except (OSError, ValueError):  # stderr is no file, as in a test
    yield sys.stderr
    return
  with os.fdopen(copy, "w") as file:
    yield file
