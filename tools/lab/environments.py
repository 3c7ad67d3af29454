"""Environments of Python with a release of a package, to see what that release does."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence


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
