"""Types the commands of docs/guide/start.md in an environment that has nothing but the files of a
release, with packages of the index.

Usage: python tools/release/start.py DIST PYTHON FOLDER [--lowest]

PYTHON is the interpreter; `--lowest` takes the sdist and the lowest version of each requirement,
instead of the wheel and the newest ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

_ROOT = Path(__file__).resolve().parents[2]
_START = _ROOT / "docs" / "guide" / "start.md"
_PACKAGES = ("jax2tf", "jax", "tensorflow", "numpy")
_SHOWN = (
  "import importlib.metadata as m\n"
  f"print(*(f'{{p}} {{m.version(p)}}' for p in {_PACKAGES}), sep=', ')"
)


def lowest(project: Mapping[str, Any]) -> list[str]:
  """A line for pip's constraints for each requirement of a project, with its lower bound."""
  texts = [*project["dependencies"]]
  for extra in project["optional-dependencies"].values():
    texts += extra
  bounds = {}
  for requirement in map(Requirement, texts):
    for specifier in requirement.specifier:
      if specifier.operator == ">=":
        bounds[requirement.name] = specifier.version
  return [f"{name}=={version}" for name, version in sorted(bounds.items())]


def run(dist: Path, python: str, folder: Path, *, is_lowest: bool) -> None:
  """Types the page.

  Raises:
    subprocess.CalledProcessError: a command fails, or says something else than the page.
  """
  shutil.rmtree(folder, ignore_errors=True)
  (folder / "work").mkdir(parents=True)
  # The page says python3.
  subprocess.run([python, "-m", "venv", "--without-pip", folder / "python"], check=True)
  path = os.pathsep.join([str(folder / "python" / "bin"), os.environ["PATH"]])
  environment = os.environ | {"PATH": path, "PIP_FIND_LINKS": str(dist)}
  if is_lowest:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    constraints = folder / "lowest.txt"
    constraints.write_text("\n".join([*lowest(project), ""]), encoding="utf-8")
    environment |= {"PIP_CONSTRAINT": str(constraints), "PIP_NO_BINARY": "jax2tf"}
  documents = _ROOT / "tests" / "support" / "documents.py"
  typed = [sys.executable, str(documents), str(_START)]
  subprocess.run(typed, cwd=folder / "work", env=environment, check=True)
  installed = folder / "work" / "start" / "bin" / "python"
  subprocess.run([installed, "-c", _SHOWN], check=True)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("dist", type=Path)
  parser.add_argument("python")
  parser.add_argument("folder", type=Path)
  parser.add_argument("--lowest", action="store_true")
  given = parser.parse_args()
  begun = time.monotonic()
  run(given.dist.absolute(), given.python, given.folder.absolute(), is_lowest=given.lowest)
  print(f"Start ran in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
  main()
