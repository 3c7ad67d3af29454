"""A worker: reads shards from standard input and answers on standard output, one line of JSON each.

It exits when its input ends, even in the middle of a shard, so no worker outlives the command that
started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jax2tf.converters.bundle import durable
from jax2tf.tools import gpus, quiet
from jax2tf.tools.batch import contract, formats
from jax2tf.tools.batch.cells import Answer

__all__ = ["run"]

_TELL_SECONDS = 1.0  # between two reports of progress within a window


class State(NamedTuple):
  """What tells whether a file was changed: its size in bytes, modification time in nanoseconds, and
  inode."""

  size: int
  changed: int
  inode: int

  @classmethod
  def of(cls, path: Path) -> State:
    """The state of a file now."""
    status = path.stat()
    return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def temporary(path: Path, pid: int) -> Path:
  """The file to which a worker of this machine writes before it renames it to `path`."""
  return path.with_name(f".{pid}.{platform.node()}.writing.{path.name}")


def clean(folder: Path) -> None:
  """Removes incomplete files of killed processes. A process that still writes one of them fails."""
  for path in folder.glob(".*.writing.*"):
    path.unlink(missing_ok=True)


def bad_rows(path: Path) -> Path:
  """The file that lists the rows of a shard that did not run. Readers of folders ignore names like
  this one."""
  return path.with_name(f"_{path.name}.bad.jsonl")


def check_name(path: Path) -> None:
  """Raises ValueError for a file of rows whose results would have the name of another file that a
  worker writes."""
  if _OWN_NAMES.fullmatch(path.name):
    raise ValueError(
      f"{path} has a name that jax2tf batch gives to its lists of bad rows or to incomplete "
      "files, which would replace its results; "
      "leave it out, or rename it"
    )


_OWN_NAMES = re.compile(r"_.*\.bad\.jsonl|\..*\.writing\..*", re.IGNORECASE | re.DOTALL)


def run(
  runner: Any, source: Path, target: Path, tell: Any = lambda **_: None, state: State | None = None
) -> dict[str, int]:
  """Writes the outputs of one file to a temporary file, and renames it when it is complete.

  Bad rows are left out; `_<name>.bad.jsonl` beside the results lists them.

  Args:
    runner: the model, the `runner` of an `engines.Rows`.
    source: a file that `jax2tf batch` reads.
    target: the file of results, whose name has the same ending.
    tell: called after every window of rows, and at most once a second within a window. Its
      arguments are `rows`, the number of rows since the last call, and `part`, the finished part of
      the file.
    state: the `State` that the file must have; by default its current state.

  Returns:
    the number of rows that ran, "rows", and the number of bad rows, "bad".

  Raises:
    ValueError: the file cannot be read or changes before it is read to its end, the model can run
      none of its rows, the target has a name that the lists of bad rows have, or another process
      removed the temporary file.
    OSError: the results cannot be written.

  Examples:
    >>> import numpy as np, pathlib
    >>> from jax2tf.converters import saved_model
    >>> from jax2tf.tools.batch import engines, worker
    >>> path = saved_model.save(
    ...   lambda w, x: x @ w,
    ...   np.ones(2, np.float32),
    ...   "model",
    ...   inputs={"x": "f32[b,2]"},
    ...   outputs=["y"],
    ... )
    >>> source, target = pathlib.Path("rows.jsonl"), pathlib.Path("answers.jsonl")
    >>> _ = source.write_text('{"x": [1, 2]}\\n{"x": [3]}\\n')
    >>> worker.run(engines.Rows(str(path)).runner, source, target)
    {'rows': 1, 'bad': 1}
    >>> target.read_text()
    '{"y": 3.0}\\n'
  """
  check_name(target)
  state = state or State.of(source)
  _check_unchanged(source, state)
  form = formats.of(source)
  names = [runner.contract.needed[0]] if isinstance(form, formats.Npy) else list(runner.columns)
  columns = [column for name in names for column in runner.columns[name]]
  first = done = bad = 0
  reason, progress = "", _Progress(tell)
  path, bad_path = (temporary(each, os.getpid()) for each in (target, bad_rows(target)))
  try:
    with (
      contextlib.closing(form.writer(path)) as writer,
      bad_path.open("w", encoding="utf-8") as bad_file,
    ):
      for window in form.read(source, columns, runner.contract.window(runner.batch_size)):
        answer: Answer = runner(window.columns, window.faults, progress.ran)
        writer.write(window.carried, answer)
        for i in sorted(answer.faults):
          reason = reason or answer.faults[i]
          bad_file.write(json.dumps({"row": first + i, "reason": answer.faults[i]}) + "\n")
        first += len(answer.rows) + len(answer.faults)
        done += len(answer.rows)
        bad += len(answer.faults)
        progress.read(window.done)
    _check_unchanged(source, state)
    if bad and not done:
      raise ValueError(f"none of its rows can be run; the first {reason}")
    if bad:
      _publish(bad_path, bad_rows(target))
    else:
      bad_rows(target).unlink(missing_ok=True)  # of an earlier attempt
    _publish(path, target)
  finally:
    for each in (path, bad_path):
      each.unlink(missing_ok=True)
  return {"rows": done, "bad": bad}


def _check_unchanged(source: Path, state: State) -> None:
  if State.of(source) != state:
    raise ValueError(
      f"{source} has changed since the command began, so it gets no results; run the command again"
    )


class _Progress:
  """Counts rows, and tells their number after each window and once a second."""

  def __init__(self, tell: Any):
    self._tell, self._rows, self._part = tell, 0, 0.0
    self._told = time.monotonic()

  def ran(self, rows: int) -> None:
    """Counts the rows of a call of the model."""
    self._rows += rows
    if time.monotonic() > self._told + _TELL_SECONDS:
      self.read(self._part)

  def read(self, part: float) -> None:
    """Tells how much of the file is done, from 0 to 1."""
    self._tell(rows=self._rows, part=part)
    self._rows, self._part, self._told = 0, part, time.monotonic()


def _publish(path: Path, target: Path) -> None:
  """Gives a complete file its name."""
  try:
    durable.move(path, target)
  except FileNotFoundError as error:
    raise ValueError(f"another process removed {path} before it was complete") from error


def load(options: Mapping[str, Any]) -> Any:
  """The runner with these options, the fingerprint that its model must have, and `--device`.

  Raises:
    ValueError: the model is another one, or as for `model.Runner`.
    RuntimeError: TensorFlow cannot use the GPU that is asked for.
  """
  from jax2tf.tools.batch import model  # noqa: PLC0415  (TensorFlow)

  if options["device"] == gpus.GPU:
    gpus.required()
  own = ("fingerprint", "device")
  runner = model.Runner(**{name: value for name, value in options.items() if name not in own})
  # after loading, so it is that of what was loaded
  if contract.fingerprint(runner.contract.directory) != options["fingerprint"]:
    raise ValueError(
      f"{runner.contract.directory} has changed since the command began; run the command again"
    )
  return runner


def main() -> None:
  """What `supervisor` starts."""
  lines: queue.Queue[bytes] = queue.Queue()
  answers = os.fdopen(os.dup(1), "w", buffering=1)
  os.dup2(2, 1)  # keeps what a model prints apart from the answers

  def listen() -> None:
    for line in sys.stdin.buffer:
      lines.put(line)
    os._exit(1)

  threading.Thread(target=listen, daemon=True).start()

  def tell(**what: Any) -> None:
    answers.write(json.dumps(what) + "\n")

  options = json.loads(lines.get())
  begin = time.monotonic()
  sys.modules["jax"] = None  # type: ignore[assignment]  # nothing that a worker imports needs it
  try:
    runner = load(options)
  except Exception as error:
    tell(fatal=_reason(error))
    return
  tell(ready=time.monotonic() - begin)
  while True:
    source, target, state = json.loads(lines.get())
    try:
      tell(done=run(runner, Path(source), Path(target), tell, State(*state)))
    except Exception as error:
      tell(failed=_reason(error, target))


def _reason(error: Exception, written: str = "") -> str:
  """One line. An error of the system that names no file is one of writing."""
  words = quiet.sentence(str(error)) if str(error) else type(error).__name__
  return (
    f"{written}: {words}"
    if isinstance(error, OSError) and not error.filename and written
    else words
  )


if __name__ == "__main__":
  main()
