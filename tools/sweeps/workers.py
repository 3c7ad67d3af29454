"""Tasks in processes of their own: a crash, a hang, or what TensorFlow and JAX keep in memory, costs one task and not the whole run."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pebble
import tqdm

Result = TypeVar("Result")


class LostError(RuntimeError):
  """A task failed, or its process ended, or had to be ended, before it was done.

  Attributes:
    said: the traceback, or the last of what the process printed.
  """

  def __init__(self, reason: str, said: str):
    super().__init__(reason)
    self.said = said


def each(
  function: Callable[..., Result],
  tasks: Sequence[tuple[Any, ...]],
  lost: Callable[..., Result],
  *,
  processes: int = 1,
  renewed_after: int = 0,
  seconds: float | None = None,
) -> Iterator[Result]:
  """Yields `function(*task)` as tasks end; a single process takes them in their order.

  Args:
    function: of a module; what it takes and returns is pickled, what it prints is seen only if it is lost.
    tasks: arguments of each call.
    lost: `lost(error, *task)`, with a `LostError`, stands in for the result of a lost task.
    processes: how many run side by side.
    renewed_after: a process takes so many tasks, then a new one takes its place; 0 for any number.
    seconds: a task that takes longer is lost.
  """
  context = multiprocessing.get_context("spawn")  # a fork would have TensorFlow's locks, but not its threads
  with tempfile.TemporaryDirectory() as folder:
    pool = pebble.ProcessPool(processes, max_tasks=renewed_after, initializer=_start, initargs=(folder,), context=context)
    try:
      futures: dict[concurrent.futures.Future[Result], tuple[Any, ...]]
      futures = {pool.schedule(function, args=task, timeout=seconds): task for task in tasks}
      for future in concurrent.futures.as_completed(futures):
        try:
          yield future.result()
        except concurrent.futures.TimeoutError:
          yield lost(LostError(f"not done after {seconds:g} s", ""), *futures[future])
        except pebble.ProcessExpired as error:
          said = pathlib.Path(folder, str(error.pid)).read_text(errors="replace").strip()[-4000:]
          last = (said.splitlines() or ["nothing"])[-1][:300]
          yield lost(LostError(f"its process ended with {error.exitcode}; it said last: {last}", said), *futures[future])
        except Exception as error:
          yield lost(LostError(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))), *futures[future])
    finally:
      pool.stop()
      pool.join()


def _start(folder: str) -> None:
  with pathlib.Path(folder, str(os.getpid())).open("wb") as stream:
    os.dup2(stream.fileno(), sys.stdout.fileno())
    os.dup2(stream.fileno(), sys.stderr.fileno())
  tqdm.tqdm.set_lock(threading.RLock())  # its own is a semaphore of the machine, which the end of this process would leave behind
  os.setpgrp()
  # The runtimes that this process waits for end with it.
  signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
