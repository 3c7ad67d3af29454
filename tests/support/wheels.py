"""Builds the wheel of the checkout, and makes an environment that has the wheel, its requirements,
and not the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("jax2tf", "converters", "tools", "examples")
# This environment has the build backend, so pip downloads nothing.
_PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
_ALONE = ("--no-deps", "--no-index")


def built(place: Path) -> Path:
  """Builds the wheel in `place`, from a copy of the checkout, because setuptools writes files next
  to its sources."""
  source = copied(place / "source")
  subprocess.run(
    [*_PIP, "wheel", *_ALONE, "--no-build-isolation", "-w", str(place), str(source)],
    check=True,
    timeout=120,
  )
  shutil.rmtree(source)
  [wheel] = place.glob("*.whl")
  return wheel


def copied(source: Path) -> Path:
  """Copies what setuptools reads of the checkout into a new folder."""
  for folder in FOLDERS:
    shutil.copytree(
      REPOSITORY / folder,
      source / folder,
      symlinks=True,
      ignore=shutil.ignore_patterns("__pycache__"),
    )
  for file in ("pyproject.toml", "README.md", "LICENSE"):
    shutil.copy(REPOSITORY / file, source)
  return source


def installed(wheel: Path, place: Path, *requirements: str) -> Path:
  """The interpreter of a new environment with a wheel, and with what requirements such as
  "jax2tf[all]" bring along, and nothing else.

  The packages are links to those of this process, so nothing is downloaded.
  """
  subprocess.run(
    [sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=60
  )
  python = place / "bin" / "python"
  subprocess.run(
    [
      *_PIP,
      "--python",
      str(python),
      "install",
      *_ALONE,
      "--no-compile",
      "--ignore-installed",
      str(wheel),
    ],
    check=True,
    timeout=120,
  )
  [packages] = (place / "lib").glob("python*/site-packages")
  [own] = metadata.distributions(path=[str(packages)])
  known: dict[str, metadata.Distribution] = {
    canonicalize_name(each.name): each for each in [*metadata.distributions(), own]
  }
  _link(known, _closure(known, requirements) - {canonicalize_name(own.name)}, packages)
  return python


def _closure(known: Mapping[str, metadata.Distribution], requirements: Sequence[str]) -> set[str]:
  """The names of what is required, and of what that requires, as far as it is installed here."""
  seen: set[tuple[str, str]] = set()
  queue = [Requirement(each) for each in requirements]
  while queue:
    requirement = queue.pop()
    for extra in {"", *requirement.extras}:
      key = canonicalize_name(requirement.name), extra
      if key not in seen and key[0] in known:
        seen.add(key)
        parts = map(Requirement, known[key[0]].requires or ())
        queue += [
          part for part in parts if part.marker is None or part.marker.evaluate({"extra": extra})
        ]
  return {name for name, _ in seen}


def _link(
  known: Mapping[str, metadata.Distribution], names: Collection[str], packages: Path
) -> None:
  """Links the files of distributions into a folder: whole folders of one distribution, and files
  where several share a folder."""
  files = {name: _files(each) for name, each in known.items()}
  owners = Counter(
    top for each in files.values() for top in {path.partition("/")[0] for path in each}
  )
  links: dict[Path, str] = {}
  for name in names:
    paths = {
      path if owners[top] > 1 else top
      for path in files[name]
      if (top := path.partition("/")[0]) not in ("..", "__pycache__")
    }
    links |= {packages / path: str(known[name].locate_file(path)) for path in paths}
  for link, target in links.items():
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def _files(distribution: metadata.Distribution) -> list[str]:
  """The paths in RECORD. `Distribution.files` has them too, in 20 times the time."""
  return [line.split(",")[0] for line in (distribution.read_text("RECORD") or "").splitlines()]
