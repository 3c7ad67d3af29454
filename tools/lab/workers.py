"""Runs tasks in separate processes, so that a crash or a hang costs one task and memory of
TensorFlow and JAX is freed."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pebble

Result = TypeVar("Result")


class LostError(RuntimeError):
  """A task failed, or its process died or exceeded the time limit.

  Attributes:
    said: the traceback, or the last output of the process.
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
  """Yields `function(*task)` as tasks end. A single process runs them in order.

  Args:
    function: a function at module level. Its arguments and results are pickled; its output is shown
      only if the task is lost.
    tasks: the arguments of each call.
    lost: `lost(error, *task)`, with a `LostError`, gives the result of a lost task.
    processes: the number of parallel processes.
    renewed_after: the number of tasks after which a process is replaced; 0 for never.
    seconds: the time limit of a task; beyond it the task is lost.
  """
  # a fork would copy TensorFlow's locks, but not its threads
  context = multiprocessing.get_context("spawn")
  with tempfile.TemporaryDirectory() as folder:
    pool = pebble.ProcessPool(
      processes, max_tasks=renewed_after, initializer=_start, initargs=(folder,), context=context
    )
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
          yield lost(
            LostError(f"its process ended with {error.exitcode}; it said last: {last}", said),
            *futures[future],
          )
        except Exception as error:
          yield lost(
            LostError(
              f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
            ),
            *futures[future],
          )
    finally:
      pool.stop()
      pool.join()


def alone(function: Callable[..., Result], *task: Any) -> Result:
  """`function(*task)` in a process of its own. Raises if the task is lost."""
  [result] = each(function, [task], failed)
  return result


def failed(error: LostError, *task: Any) -> Any:
  """For `lost`: ends the run."""
  raise RuntimeError(f"{task}: {error}\n{error.said}") from error


def _start(folder: str) -> None:
  with pathlib.Path(folder, str(os.getpid())).open("wb") as stream:
    os.dup2(stream.fileno(), sys.stdout.fileno())
    os.dup2(stream.fileno(), sys.stderr.fileno())
  os.setpgrp()
  # The runtimes that this process waits for end with it.
  signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
