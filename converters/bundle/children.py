"""A model that runs in a process of its own: its runtime may end the process, or must not see this
one's modules.

The parent writes a request file. The child prints a line "done" after each run, and writes a
response file, or ends without one.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import calls

# Seconds for all answers of a runtime: with hostile inputs its loop may not end where the
# reference's does.
PATIENCE = 900


@dataclass(frozen=True)
class Ended:
  """A child process that has ended.

  Attributes:
    code: its exit code.
    response: what it wrote; None if it wrote nothing.
    runs: the number of runs that it ended.
    late: whether it was killed because it did not answer in time.
    errors: its stderr.
  """

  code: int
  response: Any
  runs: int
  late: bool
  errors: str

  @property
  def reason(self) -> str:
    """The last line of its stderr."""
    return (self.errors.strip().splitlines() or ["no message"])[-1]


def script(
  file: Path,
  request: Any,
  *,
  environment: Mapping[str, str] | None = None,
  patience: float | None = None,
  after_run: Callable[[], object] = lambda: None,
) -> Ended:
  """Runs a Python script that calls `calls.respond`.

  Args:
    file: the script.
    request: plain containers and NumPy arrays.
    environment: the environment variables; by default those of this process.
    patience: the seconds after which it is killed; by default never.
    after_run: called after each run.
  """
  # -P keeps the script's folder, with modules of this package, off sys.path.
  command = [sys.executable, "-P", str(file)]
  return program(
    command,
    calls.chunks(request),
    read=calls.read,
    environment=environment,
    patience=patience,
    after_run=after_run,
  )


def program(
  command: Sequence[str],
  request: Iterable[bytes],
  *,
  read: Callable[[Path], Any] = Path.read_bytes,
  environment: Mapping[str, str] | None = None,
  patience: float | None = None,
  after_run: Callable[[], object] = lambda: None,
) -> Ended:
  """Runs a program, with the names of the request file and of the response file as its last
  arguments. `read` reads the response file. Other arguments as for `script`."""
  with tempfile.TemporaryDirectory(prefix="jax2tf-") as folder:
    request_file, response_file, log = (
      Path(folder, name) for name in ("request", "response", "log")
    )
    with request_file.open("wb") as stream:
      stream.writelines(request)
    runs, late = 0, threading.Event()
    give_back()
    with (
      log.open("wb") as stderr,
      subprocess.Popen(
        [*command, str(request_file), str(response_file)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        text=True,
        errors="replace",
      ) as child,
    ):

      def kill() -> None:
        late.set()
        child.kill()

      timer = threading.Timer(patience or 0, kill)
      timer.daemon = True
      try:
        if patience is not None:
          timer.start()
        for line in child.stdout or ():
          if line == "done\n":
            runs += 1
            after_run()
        code = child.wait()
      except BaseException:
        child.kill()
        raise
      finally:
        timer.cancel()
    response = read(response_file) if response_file.exists() else None
    return Ended(code, response, runs, late.is_set(), log.read_text(errors="replace"))


def give_back() -> None:
  """Gives freed memory back to the system, for a child or another allocator may need it: glibc
  keeps it, after an export a quarter of the weights."""
  if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
    trim(0)
