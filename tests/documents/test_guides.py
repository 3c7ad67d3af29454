"""The README, the guides and the pages for developers, run block by block as they stand, each in a
process of its own (documents.py)."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import documents, warm_python

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
  path
  for pattern in ("*.md", "guide/*.md", "tasks/*.md", "deploy/*.md", "developers/*.md")
  for path in (ROOT / "docs").glob(pattern)
)
# What is typed into a new environment runs in one: tests/house/test_wheel.py, and for the README
# tests/documents/test_quickstart.py.
LANGUAGES = {ROOT / "README.md": ["python"]} | {
  path: documents.RUN for path in PAGES if path.name != "start.md"
}


def _repeats(path: Path) -> bool:
  """Whether a page shows what other tests run on each Python."""
  return path.parent.name in ("deploy", "tasks") or path.stem == "all-of-jax2tf"


# A server gets signals, which a process of warm_python.py does not.
JAX2TF = """#!/bin/sh
if [ "$1" = serve ]; then exec {python} -c "from jax2tf.tools.cli.main import main; main()" "$@"; fi
exec {warm} -c "from jax2tf.tools.cli.main import main; main()" "$@"
"""


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
  """The folder of `python` and `jax2tf`; both have imported JAX and TensorFlow already."""
  # A socket's name has to be short, so it is not in pytest's folder.
  with (
    tempfile.TemporaryDirectory(prefix="guides-") as name,
    warm_python.started(Path(name), jax=True) as warm,
  ):
    command = Path(name, "jax2tf")
    command.write_text(JAX2TF.format(warm=warm, python=sys.executable))
    command.chmod(0o700)
    yield Path(name)


@pytest.mark.parametrize(
  "path",
  [
    pytest.param(path, marks=[pytest.mark.one_python] if _repeats(path) else [], id=path.stem)
    for path in LANGUAGES
    if any(documents.blocks(path.read_text()))
  ],
)
def test_every_block_runs_as_it_stands(
  path: Path, commands: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
  if "tfjs.save(" in "".join(block["code"] for block in documents.blocks(path.read_text())):
    request.getfixturevalue("tfjs_packages")
  # CI: or importing OpenVINO forks, and calls its makers.
  environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "CI": "true"}
  done = subprocess.run(
    [commands / "python", documents.__file__, path, *LANGUAGES[path]],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-4000:]


def test_what_is_left_out() -> None:
  """Other engines and servers; each block has its reason in a comment."""
  left_out = [
    path.stem
    for path in LANGUAGES
    for block in documents.BLOCK.finditer(path.read_text())
    if block["left_out"]
  ]
  assert collections.Counter(left_out) == {
    "all-of-jax2tf": 1,
    "batch-engines": 4,
    "hugging-face-flax": 1,
    "install-without-jax": 1,
    "kubernetes": 1,
    "language-model-engines": 1,
    "language-models": 1,
    "serving": 1,
    "stream-text": 2,
    "tensorflow-c": 1,
    "tf-serving": 1,
    "untrusted-models": 1,
  }


@pytest.mark.parametrize(
  ("document", "words"),
  [
    ("```console\n$ echo b\na\n```\n", "the document shows\na\n\nand the output is\nb"),
    (
      '```python\nprint("b")\n```\n\n```text\na\n```\n',
      "the document shows\na\n\nand the output is\nb",
    ),
    ("```sh\nfalse\necho a\n```\n", "`false\necho a` failed"),
    ("```python\n1 / 0\n```\n", "division by zero"),
  ],
)
def test_a_document_that_is_not_true_fails(
  document: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  (tmp_path / "page.md").write_text(document)
  with pytest.raises((AssertionError, ZeroDivisionError), match=re.escape(words)) as failed:
    documents.run(tmp_path / "page.md")
  assert "page.md:" in failed.value.__notes__[0]
