"""What `make release` changes and checks, without the environments that it makes."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tomllib
import urllib.parse
from pathlib import Path

import pytest

from jax2tf.tools.release import prepare, start

ROOT = Path(__file__).resolve().parents[2]
URL = "https://code.example/jax2tf"
DATE = datetime.date(2026, 12, 1)
FILES = ("jax2tf/__init__.py", "CHANGELOG.md", "CITATION.cff", "pyproject.toml")
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}


def test_the_commit_of_a_release() -> None:
  new = prepare.released(TEXTS, "1.2.3", URL, DATE)
  assert '__version__ = "1.2.3"' in new["jax2tf/__init__.py"]
  assert "## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n\n" in new["CHANGELOG.md"]
  assert new["CITATION.cff"].endswith("version: 1.2.3\ndate-released: 2026-12-01\n")
  assert tomllib.loads(new["pyproject.toml"])["project"]["urls"] == {"Source": URL}
  assert prepare.released(new, "", "", DATE) == new
  again = new | {"jax2tf/__init__.py": TEXTS["jax2tf/__init__.py"]}
  again["CHANGELOG.md"] = new["CHANGELOG.md"].replace("[Unreleased]\n", "[Unreleased]\n\n- A.\n")
  later = prepare.released(again, "1.3.0", "", DATE)
  assert later["CITATION.cff"].count("\nversion:") == 1
  assert "\n- A.\n\n## [1.2.3]" in later["CHANGELOG.md"]


def test_git_applies_the_patch(tmp_path: Path) -> None:
  for name, text in TEXTS.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
  new = prepare.released(TEXTS, "1.2.3", URL, DATE)
  patch = prepare.patch(TEXTS, new)
  subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
  assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in FILES} == new


@pytest.mark.parametrize(
  ("version", "url", "words"),
  [
    ("", URL, "a version of no release: name one, VERSION=0.1.0"),
    ("1.2", URL, "VERSION=1.2 is not like 0.1.0"),
    ("1.2.3", "", "name the address of the repository, URL="),
    ("1.2.3", "http://code.example", "URL=http://code.example is no address"),
  ],
)
def test_what_is_missing_is_said(version: str, url: str, words: str) -> None:
  with pytest.raises(ValueError, match=re.escape(words)):
    prepare.released(TEXTS, version, url, DATE)


def test_contradictions_are_said_at_once() -> None:
  new = prepare.released(TEXTS, "1.2.3", URL, DATE)
  with pytest.raises(ValueError) as raised:
    prepare.released(new, "1.2.4", f"{URL}s", DATE)
  assert len(str(raised.value).splitlines()) == 3  # version, address, and no changes


def test_the_readme_of_a_release_leads_into_the_repository() -> None:
  """A package index has no other files of it."""
  text = (ROOT / "README.md").read_text(encoding="utf-8")
  released = prepare.absolute(text, URL, "v1.2.3")
  targets = re.findall(r"\]\(([^)\s#][^)\s]*)\)", released)
  assert {urllib.parse.urlsplit(target).scheme for target in targets} == {"https"}
  assert f"({URL}/blob/v1.2.3/docs/limitations.md)" in released
  assert f"({URL}/raw/v1.2.3/docs/quickstart.svg)" in released


def test_the_lowest_versions() -> None:
  found = start.lowest(
    {
      "dependencies": ["click>=8.2", "jax>=0.10.2,<0.13"],
      "optional-dependencies": {"a": ["package[b]", "ray[serve-grpc]>=2.60"]},
    }
  )
  assert found == ["click==8.2", "jax==0.10.2", "ray==2.60"]


def test_a_tree_that_is_not_ready_is_left_as_it_is(tmp_path: Path) -> None:
  for name, text in TEXTS.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
  command = (sys.executable, prepare.__file__, str(tmp_path))
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 1
  assert done.stderr.startswith("no release is built:\n")
  assert all((tmp_path / name).read_text(encoding="utf-8") == TEXTS[name] for name in FILES)
