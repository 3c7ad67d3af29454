"""A worker: reads shards from standard input and answers on standard output, one line of JSON each.

It exits when its input ends, even in the middle of a shard, so no worker outlives the command that started it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax2tf.tools import quiet
from jax2tf.tools.batch import formats
from jax2tf.tools.batch.cells import Answer

# Rows that are read, sorted by length and written together.
WINDOW = 8192


def temporary(path: Path, pid: int) -> Path:
  """The file to which a worker writes before it renames it to `path`."""
  return path.with_name(f".{pid}.writing.{path.name}")


def bad_rows(path: Path) -> Path:
  """The file that lists the rows of a shard that did not run. Readers of folders ignore names like this one."""
  return path.with_name(f"_{path.name}.bad.jsonl")


def run(runner: Any, source: Path, target: Path, tell: Any = lambda **_: None) -> dict[str, int]:
  """Writes the outputs of one file to a temporary file, and renames it when it is complete.

  Raises:
    ValueError: the file cannot be read, or the model can run none of its rows.
  """
  form = formats.of(source)
  names = [runner.contract.needed[0]] if isinstance(form, formats.Npy) else list(runner.columns)
  columns = [column for name in names for column in runner.columns[name]]
  first = done = bad = 0
  reason = ""
  with _written(target) as path, _written(bad_rows(target)) as bad_path:
    writer = form.writer(path)
    with contextlib.closing(writer), bad_path.open("w", encoding="utf-8") as bad_file:
      for window in form.read(source, columns, WINDOW):
        answer: Answer = runner(window.columns, window.faults)
        writer.write(window.carried, answer)
        for i in sorted(answer.faults):
          reason = reason or answer.faults[i]
          bad_file.write(json.dumps({"row": first + i, "reason": answer.faults[i]}) + "\n")
        first += len(answer.rows) + len(answer.faults)
        done += len(answer.rows)
        bad += len(answer.faults)
        tell(rows=len(answer.rows), part=window.done)
    if bad and not done:
      raise ValueError(f"none of its rows can be run; the first {reason}")
    if not bad:
      bad_path.unlink()
  return {"rows": done, "bad": bad}


@contextlib.contextmanager
def _written(target: Path) -> Iterator[Path]:
  """A file that is written completely or not at all."""
  path = temporary(target, os.getpid())
  for left in target.parent.glob(f".*.writing.{glob.escape(target.name)}"):  # left by a killed worker
    left.unlink(missing_ok=True)
  try:
    yield path
    if path.exists():
      with path.open("rb") as file:
        os.fsync(file.fileno())
      path.rename(target)
    else:
      target.unlink(missing_ok=True)  # of an earlier attempt
  finally:
    path.unlink(missing_ok=True)


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
  try:
    from jax2tf.tools.batch import model  # noqa: PLC0415  (TensorFlow)

    runner = model.Runner(**options)
  except Exception as error:
    tell(fatal=_reason(error))
    return
  tell(ready=time.monotonic() - begin)
  while True:
    source, target = json.loads(lines.get())
    try:
      tell(done=run(runner, Path(source), Path(target), tell))
    except Exception as error:
      tell(failed=_reason(error))


def _reason(error: Exception) -> str:
  return quiet.sentence(str(error)) if str(error) else type(error).__name__


if __name__ == "__main__":
  main()
