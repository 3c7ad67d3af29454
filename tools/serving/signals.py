"""The signals that end the server, and its lines on stderr."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


class Signals:
  """SIGTERM and SIGINT so far. They are only noted, so that no process is started and forgotten.

  Attributes:
    ended: set by the first one.
    interrupts: the number of SIGINT.
  """

  def __init__(self) -> None:
    self.ended, self.interrupts = threading.Event(), 0

  @contextlib.contextmanager
  def noted(self) -> Iterator[None]:
    """Notes the signals that arrive during the block."""
    before = {
      number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def _note(self, number: int, _: object) -> None:
    self.interrupts += number == signal.SIGINT
    self.ended.set()

  def pause(self) -> None:
    """Waits for a moment of the start. Raises KeyboardInterrupt after SIGINT, and SystemExit after
    SIGTERM."""
    if not self.ended.wait(0.1):
      return
    if self.interrupts:
      raise KeyboardInterrupt
    say("ending before the server is ready")
    raise SystemExit(0)


def say(line: str) -> None:
  """Prints a line on stderr."""
  print(line, file=sys.stderr, flush=True)
