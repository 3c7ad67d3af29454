"""Environments of Python with a release of a package, to see what that release does."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

# Answers each line of JSON on stdin by one on stdout. What a package prints goes to stderr.
_ANSWERING = """
import json, os, sys
replies, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
{program}
for line in sys.stdin:
  result, error = None, ""
  try:
    result = answer(*json.loads(line))
  except Exception as raised:
    error = f"{{type(raised).__name__}}: {{raised}}"
  print(json.dumps([result, error]), file=replies, flush=True)
"""


def interpreters(*default: str) -> tuple[str, ...]:
  """Those that the environment variable RUNTIMES_PYTHON names, separated by commas."""
  named = os.environ.get("RUNTIMES_PYTHON", "")
  return tuple(named.split(",")) if named else default


def installed(
  folder: pathlib.Path, requirements: Sequence[str], interpreters: Sequence[str]
) -> pathlib.Path:
  """The interpreter of an environment, which is made unless it is there.

  Args:
    folder: of the environment.
    requirements: what it has.
    interpreters: those to try, in this order.

  Raises:
    RuntimeError: pip has this for none of the interpreters. It quotes pip.
  """
  python, done = folder / "bin" / "python", folder / "installed"
  said = "none is there"
  for interpreter in () if done.exists() else filter(shutil.which, interpreters):
    # An environment's own pip would take longer to install than a small release.
    venv = [interpreter, "-m", "venv", "--clear", "--without-pip", str(folder)]
    if subprocess.run(venv, check=False).returncode:  # a shim of a Python that is not there
      continue
    pip = [interpreter, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    command = [*pip, "install", "-q", *requirements]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 0:
      done.touch()
      break
    said = run.stderr.strip()
  if not done.exists():
    wanted, tried = ", ".join(requirements), ", ".join(interpreters)
    raise RuntimeError(f"{wanted} for {tried}: {said[-500:]}")
  return python


class Program:
  """A program in an environment. Its process starts when it is first asked, and again after it
  ended."""

  def __init__(self, python: pathlib.Path, text: str, *arguments: str, seconds: float):
    """
    Args:
      python: the interpreter of the environment.
      text: the program, which defines a function `answer` of JSON.
      arguments: those that it finds in `sys.argv`.
      seconds: the process ends if an answer takes longer.
    """
    self._command = [str(python), "-c", _ANSWERING.format(program=text), *arguments]
    self._seconds = seconds
    self._process: subprocess.Popen[str] | None = None

  def ask(self, *asked: Any) -> tuple[Any, str]:
    """(what `answer(*asked)` returns, ""), or (None, why there is no answer)."""
    process = self._process or self._started()
    assert process.stdin and process.stdout
    late = threading.Timer(self._seconds, process.kill)
    late.start()
    with contextlib.suppress(BrokenPipeError):
      process.stdin.write(json.dumps(asked) + "\n")
      process.stdin.flush()
    line = process.stdout.readline()
    late.cancel()
    if line:
      result, error = json.loads(line)
      return result, error
    self.close()
    return None, f"the process ended with {process.returncode}"

  def close(self) -> None:
    """Ends the process."""
    if self._process:
      # A process that ended did not read what is left for it.
      with contextlib.suppress(BrokenPipeError), self._process:
        self._process = None

  def _started(self) -> subprocess.Popen[str]:
    self._process = subprocess.Popen(
      self._command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
    )
    return self._process
