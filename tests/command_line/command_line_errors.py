"""The failing commands of command_line_errors.md beside this file: the folder in which they are
typed, and their rows."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from jax2tf.tools.cli import _progress
from jax2tf.tools.cli.main import main

PAGE = Path(__file__).resolve().with_suffix(".md")
_ROW = re.compile(
  r"\| (?:without `(?P<without>[\w.]+)` )?\| `(?P<command>jax2tf.*?)` \| `(?P<line>.*)` \| "
  r"(?P<code>\d+) \|"
)


@dataclass(frozen=True)
class Row:
  """A command, a package that is missing, the line on stderr ("..." stands for anything), the exit
  code."""

  command: str
  without: str | None
  line: str
  code: int


def rows() -> list[Row]:
  """Those of the page."""
  found = [
    _ROW.fullmatch(line)
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if "`jax2tf" in line and line.startswith("|")
  ]
  return [
    Row(m["command"], m["without"], m["line"].replace("\\|", "|"), int(m["code"]))
    for m in found
    if m
  ]


def make(folder: Path) -> None:
  """Writes what the commands name: the modules of the page, files of all kinds, a model and damaged
  copies of it."""
  for name, text in re.findall(
    r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
  ):
    # the line of the name, so that lines are those of the page
    (folder / f"{name}.py").write_text(f"\n{text}")
  (folder / "notes.txt").write_text("no model")
  (folder / "empty").mkdir()
  (folder / "rows.csv").write_text("id,values\n")
  (folder / "rows.parquet").touch()
  np.savez(folder / "weights.npz", w=np.ones((4, 2), np.float32))
  (folder / "cut.npz").write_bytes((folder / "weights.npz").read_bytes()[:100])
  np.savez(folder / "nested.npz", **{"a": np.ones(2), "a/b": np.ones(2)})
  (folder / "cut.safetensors").write_bytes(b"\x10")
  assert run(
    "jax2tf convert small:predict --input x=f32[b,4] --params weights.npz --out model", folder
  ) == (0, "")
  shutil.copytree(folder / "model", folder / "cut")
  os.truncate(folder / "cut" / "1" / "variables" / "variables.data-00000-of-00001", 10)
  shutil.copytree(folder / "model", folder / "gone")
  shutil.rmtree(folder / "gone" / "1" / "variables")
  shutil.copytree(folder / "model", folder / "corrupt")
  os.truncate(folder / "corrupt" / "1" / "saved_model.pb", 100)
  shutil.copytree(folder / "model", folder / "foreign")
  shutil.rmtree(folder / "foreign" / "1" / "assets.extra")
  shutil.copytree(folder / "model", folder / "edited")
  (folder / "edited" / "1" / "assets.extra" / "jax2tf.json").write_text("{}")


def run(
  command: str,
  folder: Path,
  without: str | None = None,
  out: io.StringIO | None = None,
  patience: float = float("inf"),
) -> tuple[int, str]:
  """(exit code, stderr) of a command, without the name of the folder; in this process, for
  importing TensorFlow takes seconds."""
  said = io.StringIO()
  # a machine under load has stages of its own to tell of
  patient = mock.patch.object(_progress, "PATIENCE", patience)
  quiet = contextlib.redirect_stdout(out or io.StringIO())
  with (
    patient,
    quiet,
    contextlib.redirect_stderr(said),
    contextlib.chdir(folder),
    _modules(folder, without),
  ):
    try:
      main(shlex.split(command)[1:])
      code = 0
    except SystemExit as ended:
      code = int(ended.code or 0)
  return code, said.getvalue().replace(f"{folder}/", "").replace(str(folder), ".")


@contextlib.contextmanager
def _modules(folder: Path, without: str | None) -> Iterator[None]:
  """Has Python find those of the folder, and not that package."""
  path, package = [*sys.path], sys.modules.get(without or "")
  sys.path.insert(0, str(folder))
  if without:
    sys.modules[without] = None  # type: ignore[assignment]
  try:
    yield
  finally:
    sys.path[:] = path
    if without and package:
      sys.modules[without] = package
    elif without:
      del sys.modules[without]


def matches(line: str, said: str) -> bool:
  """Whether stderr is this line."""
  return re.fullmatch(".*".join(map(re.escape, line.split("..."))) + "\n", said) is not None
