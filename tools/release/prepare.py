"""Makes a source tree ready for a release: version, changelog, citation and address, and a README
for a package index, which has no other files of the repository.

Usage: python tools/release/prepare.py SOURCE [--version 0.1.0] [--url https://...]
                                       [--patch release.patch]

SOURCE is a copy; `docs/developers/release.md` says what becomes of the patch.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

# A link or a picture of Markdown whose target has no scheme and is no anchor of the page.
_RELATIVE = re.compile(r"(?P<picture>!?)(?P<words>\[[^]]*\])\((?!\w+:|#)(?P<target>[^)\s]+)\)")
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_UNRELEASED = "## [Unreleased]\n"
_INIT, _CHANGELOG, _CITATION = "jax2tf/__init__.py", "CHANGELOG.md", "CITATION.cff"
_PROJECT, _README = "pyproject.toml", "README.md"


def absolute(readme: str, url: str, tag: str) -> str:
  """The text with the links that `url`, the address of the repository, has for them at a tag."""

  def link(match: re.Match[str]) -> str:
    view = "raw" if match["picture"] else "blob"
    return f"{match['picture']}{match['words']}({url}/{view}/{tag}/{match['target']})"

  return _RELATIVE.sub(link, readme)


def released(
  texts: Mapping[str, str], version: str, url: str, date: datetime.date
) -> dict[str, str]:
  """The files of a repository, as they are in the commit of a release.

  Args:
    texts: {path: text} of the repository.
    version: such as "0.1.0"; "" where the version in `texts` is the one to release.
    url: the address of the repository; "" where `pyproject.toml` has it.
    date: of the release.

  Raises:
    ValueError: lists what is missing or contradictory, a line each.
  """
  [old] = _VERSION.findall(texts[_INIT])
  known = tomllib.loads(texts[_PROJECT])["project"].get("urls", {}).get("Source", "")
  _, _, changes = texts[_CHANGELOG].partition(_UNRELEASED)
  unreleased = changes.partition("\n## [")[0].strip()
  problems = [
    *_problems_of_version(old, version),
    *_problems_of_url(known, url),
    *(["CHANGELOG.md: nothing stands below Unreleased"] if version and not unreleased else []),
  ]
  if problems:
    raise ValueError("\n".join(problems))
  new = dict(texts)
  if version:
    new[_INIT] = texts[_INIT].replace(f'"{old}"', f'"{version}"')
    heading = f"{_UNRELEASED}\n## [{version}] - {date.isoformat()}\n"
    new[_CHANGELOG] = texts[_CHANGELOG].replace(_UNRELEASED, heading)
    new[_CITATION] = _cited(texts[_CITATION], version, date)
  if url and not known:
    section = f'[project.urls]\nSource = "{url}"\n\n[project.scripts]\n'
    new[_PROJECT] = texts[_PROJECT].replace("[project.scripts]\n", section)
  return new


def _problems_of_version(old: str, version: str) -> list[str]:
  if not version:
    if "dev" not in old:
      return []
    return [f"{_INIT} has {old}, a version of no release: name one, VERSION=0.1.0"]
  if not re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", version):
    return [f"VERSION={version} is not like 0.1.0 or 0.1.0rc1"]
  if "dev" not in old:
    return [f"VERSION={version}, and {_INIT} has the release {old} already: name no VERSION"]
  return []


def _problems_of_url(known: str, url: str) -> list[str]:
  if url and not re.fullmatch(r"https://\S+[^/\s]", url):
    return [f"URL={url} is no address such as https://github.com/owner/name"]
  if url and known and url != known:
    return [f"URL={url}, and {_PROJECT} names {known}: name no URL"]
  if not url and not known:
    return [
      f"{_PROJECT} has no [project.urls] with Source, to which the links of the README lead: "
      "name the address of the repository, URL=https://github.com/owner/name"
    ]
  return []


def _cited(text: str, version: str, date: datetime.date) -> str:
  rest = [each for each in text.splitlines() if not each.startswith(("version:", "date-released:"))]
  return "\n".join([*rest, f"version: {version}", f"date-released: {date.isoformat()}", ""])


def patch(old: Mapping[str, str], new: Mapping[str, str]) -> str:
  """What `git apply` takes."""
  lines: list[str] = []
  for path, text in old.items():
    before, after = text.splitlines(keepends=True), new[path].splitlines(keepends=True)
    lines += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
  return "".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("source", type=Path)
  parser.add_argument("--version", default="")
  parser.add_argument("--url", default="")
  parser.add_argument("--patch", type=Path)
  given = parser.parse_args()
  paths = (_INIT, _CHANGELOG, _CITATION, _PROJECT)
  old = {path: (given.source / path).read_text(encoding="utf-8") for path in paths}
  try:
    new = released(old, given.version, given.url, datetime.datetime.now(datetime.UTC).date())
  except ValueError as error:
    sys.exit(f"no release is built:\n{error}")
  readme = (given.source / _README).read_text(encoding="utf-8")
  url = tomllib.loads(new[_PROJECT])["project"]["urls"]["Source"]
  [version] = _VERSION.findall(new[_INIT])
  for path, text in (*new.items(), (_README, absolute(readme, url, f"v{version}"))):
    (given.source / path).write_text(text, encoding="utf-8")
  if given.patch:
    given.patch.write_text(patch(old, new), encoding="utf-8")


if __name__ == "__main__":
  main()
