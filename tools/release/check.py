"""Checks the sdist and the wheel of a release: names, contents, metadata, and the README as a
package index shows it.

Usage: python tools/release/check.py DIST
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path

from readme_renderer import markdown

# Folders of the repository which users do not run, and files that an sdist needs to make the tests.
_MAINTAINERS = ("jax2tf/tools/lab/", "jax2tf/tools/site/", "jax2tf/tools/release/", "tests/")
_SOURCES = ("Makefile", "CHANGELOG.md", "docs/index.md", "tests/conftest.py", ".ci/run")


class _Targets(HTMLParser):
  """What the links and pictures of a page lead to."""

  def __init__(self) -> None:
    super().__init__()
    self.found: list[str] = []

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self.found += [value for name, value in attrs if value and name in ("href", "src")]


def problems(wheel: Path, sdist: Path) -> list[str]:
  """A sentence for each fault of the two files."""
  with zipfile.ZipFile(wheel) as file:
    packed = file.namelist()
    [metadata] = [name for name in packed if name.endswith(".dist-info/METADATA")]
    about = message_from_bytes(file.read(metadata))
  with tarfile.open(sdist) as archive:
    sources = {name.partition("/")[2] for name in archive.getnames()}
    inside = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
    assert inside
    same = message_from_bytes(inside.read()).items() == about.items()
  found = [f"{wheel.name} has {name}" for name in packed if name.startswith(_MAINTAINERS)]
  found += [f"{sdist.name} lacks {name}" for name in _SOURCES if name not in sources]
  if not same:
    found.append(f"{wheel.name} and {sdist.name} have different metadata")
  return [*found, *_of_names((wheel, sdist), about), *_of_readme(about)]


def _of_names(files: Iterable[Path], about: Message) -> list[str]:
  start = f"jax2tf-{about['Version']}"
  return [f"{file.name} is not of {start}" for file in files if not file.name.startswith(start)]


def _of_readme(about: Message) -> list[str]:
  text = about.get_payload()
  assert isinstance(text, str)
  page = markdown.render(text)
  if page is None:
    return ["README.md cannot be rendered"]
  targets = _Targets()
  targets.feed(page)
  found = [
    f"README.md: {target} leads nowhere on a package index"
    for target in targets.found
    if not re.match(r"https://|#", target)
  ]
  return found if targets.found else ["README.md has no links"]


def main(folder: Path) -> None:
  [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
  if found := problems(wheel, sdist):
    sys.exit("\n".join(found))
  for file in (wheel, sdist):
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
  main(Path(sys.argv[1]))
