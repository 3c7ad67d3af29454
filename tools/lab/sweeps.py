"""Sweeps over subjects, each in another process, that go on where the last run stopped."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from rich.progress import track

from jax2tf.tools.lab import workers

Row = dict[str, Any]
Task = tuple[Any, ...]


def rows(file: pathlib.Path, key: Sequence[str]) -> dict[Task, Row]:
  """The latest row of each task, by the fields that name it."""
  lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
  return {tuple(row[name] for name in key): row for row in map(json.loads, lines)}


def run(
  name: str,
  function: Callable[..., Any],
  tasks: Sequence[Task],
  lost: Callable[..., Any],
  key: Sequence[str],
  again: Callable[[Row], bool] = lambda row: False,
  fresh: bool = False,
  **options: Any,
) -> dict[Task, Row]:
  """Runs the tasks that have no row yet.

  Args:
    name: of the sweep, whose rows are lines of build/`name`/jax-<version>.jsonl.
    function, lost: as `workers.each` takes them. The results are dataclasses.
    tasks: the arguments of each call. Their first ones are the values of `key`.
    key: the fields of the results that name a task.
    again: whether a task runs again for its row.
    fresh: whether all run again.
    options: of `workers.each`.

  Returns:
    the latest row of each task, of earlier runs too.
  """
  file = pathlib.Path("build", name, f"jax-{jax.__version__}.jsonl")
  file.parent.mkdir(parents=True, exist_ok=True)
  known = {} if fresh else rows(file, key)

  def is_missing(task: Task) -> bool:
    row = known.get(task[: len(key)])
    return row is None or again(row)

  missing = [task for task in tasks if is_missing(task)]
  found = workers.each(function, missing, lost, **options)
  with file.open("a", encoding="utf-8", buffering=1) as appended:
    for row in track(found, f"JAX {jax.__version__}, {name}", total=len(missing)):
      appended.write(json.dumps(dataclasses.asdict(row)) + "\n")
  return rows(file, key)
