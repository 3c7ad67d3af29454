"""A worker: reads shards from standard input and answers on standard output, one line of JSON each.

It exits when its input ends, even in the middle of a shard, so no worker outlives the command that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax2tf import durable
from jax2tf.tools import quiet
from jax2tf.tools.batch import contract, formats
from jax2tf.tools.batch.cells import Answer

__all__ = ["run"]


def temporary(path: Path, pid: int) -> Path:
  """The file to which a worker of this machine writes before it renames it to `path`."""
  return path.with_name(f".{pid}.{platform.node()}.writing.{path.name}")


def clean(folder: Path) -> None:
  """Removes incomplete files of killed processes. A process that still writes one of them fails."""
  for path in folder.glob(".*.writing.*"):
    path.unlink(missing_ok=True)


def bad_rows(path: Path) -> Path:
  """The file that lists the rows of a shard that did not run. Readers of folders ignore names like this one."""
  return path.with_name(f"_{path.name}.bad.jsonl")


def run(runner: Any, source: Path, target: Path, tell: Any = lambda **_: None) -> dict[str, int]:
  """Writes the outputs of one file to a temporary file, and renames it when it is complete.

  Bad rows are left out; `_<name>.bad.jsonl` beside the results lists them.

  Args:
    runner: the model, the `runner` of an `engines.Rows`.
    source: a file that `jax2tf batch` reads.
    target: the file of results, whose name has the same ending.
    tell: called after each window of rows, with their number `rows` and the part of the file that is done, `part`.

  Returns:
    the numbers of rows that ran, "rows", and of those that did not, "bad".

  Raises:
    ValueError: the file cannot be read, the model can run none of its rows, or another process removed the temporary file.

  Examples:
    >>> import numpy as np, pathlib
    >>> from jax2tf.converters import saved_model
    >>> from jax2tf.tools.batch import engines, worker
    >>> path = saved_model.save(lambda w, x: x @ w, np.ones(2, np.float32), "model", inputs={"x": "f32[b,2]"}, outputs=["y"])
    >>> source, target = pathlib.Path("rows.jsonl"), pathlib.Path("answers.jsonl")
    >>> _ = source.write_text('{"x": [1, 2]}\\n{"x": [3]}\\n')
    >>> worker.run(engines.Rows(str(path)).runner, source, target)
    {'rows': 1, 'bad': 1}
    >>> target.read_text()
    '{"y": 3.0}\\n'
  """
  form = formats.of(source)
  names = [runner.contract.needed[0]] if isinstance(form, formats.Npy) else list(runner.columns)
  columns = [column for name in names for column in runner.columns[name]]
  first = done = bad = 0
  reason = ""
  path, bad_path = (temporary(each, os.getpid()) for each in (target, bad_rows(target)))
  try:
    with contextlib.closing(form.writer(path)) as writer, bad_path.open("w", encoding="utf-8") as bad_file:
      for window in form.read(source, columns, runner.contract.window(runner.batch_size)):
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
    if bad:
      _publish(bad_path, bad_rows(target))
    else:
      bad_rows(target).unlink(missing_ok=True)  # of an earlier attempt
    _publish(path, target)
  finally:
    for each in (path, bad_path):
      each.unlink(missing_ok=True)
  return {"rows": done, "bad": bad}


def _publish(path: Path, target: Path) -> None:
  """Gives a complete file its name."""
  try:
    durable.move(path, target)
  except FileNotFoundError as error:
    raise ValueError(f"another process removed {path} before it was complete") from error


def load(options: Mapping[str, Any]) -> Any:
  """The runner with these options, and the fingerprint that its model must have.

  Raises:
    ValueError: the model is another one, or as for `model.Runner`.
  """
  from jax2tf.tools.batch import model  # noqa: PLC0415  (TensorFlow)

  runner = model.Runner(**{name: value for name, value in options.items() if name != "fingerprint"})
  if contract.fingerprint(runner.contract.directory) != options["fingerprint"]:  # after loading, so it is that of what was loaded
    raise ValueError(f"{runner.contract.directory} has changed since the command began; run the command again")
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
    source, target = json.loads(lines.get())
    try:
      tell(done=run(runner, Path(source), Path(target), tell))
    except Exception as error:
      tell(failed=_reason(error))


def _reason(error: Exception) -> str:
  return quiet.sentence(str(error)) if str(error) else type(error).__name__


if __name__ == "__main__":
  main()
