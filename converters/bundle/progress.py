"""Progress bars on stderr for calls that take long, by rich. Where stderr is no terminal there are
none."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
  from rich.progress import Progress, TaskID

Item = TypeVar("Item")


class Bar:
  """One line of the display, or nothing where there is no terminal."""

  def __init__(self, display: Progress | None, task: TaskID | None):
    self._display, self._task = display, task

  def advance(self, amount: float = 1) -> None:
    """Counts this much as done."""
    if self._display is not None and self._task is not None:
      self._display.advance(self._task, amount)

  def set(self, *, words: str | None = None, done: float | None = None) -> None:
    """Changes the words before the bar, or how much is done."""
    if self._display is not None and self._task is not None:
      self._display.update(self._task, description=words, completed=done)

  def over(self, items: Iterable[Item]) -> Iterator[Item]:
    """The items; each counts as done when the next one is asked for."""
    for item in items:
      yield item
      self.advance()


@contextlib.contextmanager
def bar(
  words: str, total: float | None = None, *, file: TextIO | None = None, told: bool = False
) -> Iterator[Bar]:
  """Shows a bar inside the `with` block.

  Args:
    words: what stands before the bar.
    total: how much is to be done; None where nobody knows.
    file: the terminal, by default stderr.
    told: whether one line says at the end how long it took, on a terminal and elsewhere.
  """
  stream, started = file or sys.stderr, time.monotonic()
  if stream is None or not stream.isatty():  # None: a process without stderr
    yield Bar(None, None)
    if told and stream is not None:
      print(_told(words, started), file=stream, flush=True)
    return
  with _SHARED.display(stream) as display:
    task = display.add_task(words, total=total)
    try:
      yield Bar(display, task)
      if told:
        display.console.print(_told(words, started), markup=False, highlight=False)
    finally:
      display.remove_task(task)


def over(items: Iterable[Item], words: str, total: float | None = None) -> Iterator[Item]:
  """The items, with a bar while they are used. `total`: their number, by default `len(items)`."""
  with bar(words, _size(items) if total is None else total) as shown:
    yield from shown.over(items)


def _size(items: Iterable[object]) -> int | None:
  """The number of items; None where it is not known, as of some tf.data.Datasets, which raise."""
  try:
    return len(items) if isinstance(items, Sized) else None
  except TypeError:
    return None


def _told(words: str, started: float) -> str:
  return f"{words}: done in {time.monotonic() - started:.1f} s"


class _Shared:
  """The display of the process: two would write over each other's lines."""

  def __init__(self) -> None:
    self._lock, self._users = threading.Lock(), 0
    self._display: Progress | None = None

  @contextlib.contextmanager
  def display(self, file: TextIO) -> Iterator[Progress]:
    """The display that is shown, or a new one on this terminal."""
    with self._lock:
      if self._display is None:
        self._display = _new(file)
        self._display.start()
      display = self._display
      self._users += 1
    try:
      yield display
    finally:
      with self._lock:
        self._users -= 1
        if not self._users:
          display.stop()
          self._display = None


_SHARED = _Shared()


def _new(file: TextIO) -> Progress:
  from rich import console, progress  # noqa: PLC0415  (a tenth of a second of CPU)

  return progress.Progress(
    progress.TextColumn("{task.description}", markup=False),
    progress.BarColumn(),
    progress.TaskProgressColumn(),
    progress.TimeRemainingColumn(elapsed_when_finished=True),
    console=console.Console(file=file),
    transient=True,
    # What the user's code prints stays where it goes.
    redirect_stdout=False,
    redirect_stderr=False,
  )
