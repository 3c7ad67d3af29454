"""Builds the wheel of the checkout, and makes an environment that has the wheel and not the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("jax2tf", "converters", "tools", "examples")
# This environment has the build backend, so pip downloads nothing.
_PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
_ALONE = ("--no-deps", "--no-index")


def built(place: Path) -> Path:
  """Builds the wheel in `place`, from a copy of the checkout, because setuptools writes files next to its sources."""
  source = place / "source"
  for folder in FOLDERS:
    shutil.copytree(REPOSITORY / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
  for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
    shutil.copy(REPOSITORY / file, source)
  subprocess.run([*_PIP, "wheel", *_ALONE, "--no-build-isolation", "-w", str(place), str(source)], check=True, timeout=120)
  shutil.rmtree(source)
  [wheel] = place.glob("*.whl")
  return wheel


def installed(wheel: Path, place: Path) -> Path:
  """The interpreter of a new environment with a wheel and the packages of this process."""
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=60)
  python = place / "bin" / "python"
  subprocess.run([*_PIP, "--python", str(python), "install", *_ALONE, "--ignore-installed", str(wheel)], check=True, timeout=120)
  # Python does not read .pth files in folders that a .pth file adds, so the editable install of the checkout has no effect.
  [packages] = (place / "lib").glob("python*/site-packages")
  (packages / "others.pth").write_text("\n".join(path for path in sys.path if Path(path).name == "site-packages"))
  return python
