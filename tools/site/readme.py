"""Makes a source tree ready for a release: the links of its README become absolute, because a
package index has no other files of the repository.

Usage: python tools/site/readme.py SOURCE
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A link or a picture of Markdown whose target has no scheme and is no anchor of the page.
_RELATIVE = re.compile(r"(?P<picture>!?)(?P<words>\[[^]]*\])\((?!\w+:|#)(?P<target>[^)\s]+)\)")
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def absolute(readme: str, source: str, tag: str) -> str:
  """The text with the links that `source`, the address of the repository, has for them at a tag."""

  def link(match: re.Match[str]) -> str:
    view = "raw" if match["picture"] else "blob"
    return f"{match['picture']}{match['words']}({source}/{view}/{tag}/{match['target']})"

  return _RELATIVE.sub(link, readme)


def missing(project: Mapping[str, Any], version: str) -> list[str]:
  """What a release lacks, a sentence each."""
  sentences = []
  if "Source" not in project.get("urls", {}):
    sentences.append(
      "pyproject.toml has no [project.urls] with Source, the address of the repository, to which "
      "the links of the README would lead"
    )
  if "dev" in version:
    sentences.append(f"jax2tf/__init__.py has version {version}, which is of no release")
  return sentences


def main(folder: Path) -> None:
  project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
  [version] = _VERSION.findall((folder / "jax2tf" / "__init__.py").read_text(encoding="utf-8"))
  if sentences := missing(project, version):
    sys.exit("\n".join(["no release is built:", *sentences]))
  readme = folder / "README.md"
  text = absolute(
    readme.read_text(encoding="utf-8"), project["urls"]["Source"].rstrip("/"), f"v{version}"
  )
  readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
  main(Path(sys.argv[1]))
