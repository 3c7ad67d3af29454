"""Each mistake of docs/reference/command-line-errors.md: one line, its exit code, and nothing left behind."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from jax2tf.converters.saved_model import publish
from jax2tf.tools.cli import _progress
from tests import command_line_errors as errors

ROWS = errors.rows()
GOOD = "jax2tf convert small:predict --params weights.npz --input x=f32[b,4]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  made = tmp_path_factory.mktemp("typed")
  errors.make(made)
  return made


def test_the_page_has_its_rows() -> None:
  shown = sum(line.startswith("|") and "`jax2tf" in line for line in errors.PAGE.read_text().splitlines())
  assert len(ROWS) == shown >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command)
def test_one_line_and_nothing_left_behind(row: errors.Row, folder: Path) -> None:
  before = sorted(folder.rglob("*"))
  code, said = errors.run(row.command, folder, row.without)
  assert code == row.code, said
  assert errors.matches(row.line, said), said
  assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts] == [
    p for p in before if "__pycache__" not in p.parts
  ]


def as_json(command: str, folder: Path, code: int) -> dict[str, Any]:
  out = io.StringIO()
  assert errors.run(f"{command} --json", folder, out=out)[0] == code
  found: dict[str, Any] = json.loads(out.getvalue())
  return found


def test_failures_are_json_too(folder: Path) -> None:
  found = as_json("jax2tf convert small:schur --input x=f32[3,3] --out new", folder, 1)
  assert found["verdict"].startswith("cannot lower 'schur'") and found["exit_code"] == 1
  assert [(gap["op"], gap["primitive"], gap["where"]) for gap in found["gaps"]] == [("", "schur", f"{folder}/small.py:39:9 (schur)")]
  assert all(gap["reason"] and gap["advice"] for gap in found["gaps"])
  assert as_json("jax2tf inspect missing", folder, 2) | {"verdict": ""} == {"verdict": "", "exit_code": 2, "gaps": []}
  assert as_json("jax2tf inspect", folder, 2)["verdict"] == "Missing argument 'DIR'."


def test_debug_shows_the_traceback(folder: Path) -> None:
  code, said = errors.run("jax2tf convert small:raises --input x=f32[b] --out new --debug", folder)
  assert code == 2 and said.startswith("Traceback") and said.endswith("RuntimeError: the scale is missing\n")


@pytest.mark.parametrize("moment", ["trace", "save"])
def test_ctrl_c_leaves_nothing(moment: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt

  if moment == "save":
    monkeypatch.setattr(tf.saved_model, "save", interrupted)
  function = {"trace": "stopped", "save": "predict"}[moment]
  (folder / "stopped.py").write_text("def stopped(params, x):\n  raise KeyboardInterrupt\n")
  command = GOOD.replace("small:predict", "stopped:stopped") if moment == "trace" else GOOD
  code, said = errors.run(f"{command} --out above/{function}", folder)
  assert (code, said) == (130, "jax2tf convert: interrupted; no partial output remains\n")
  assert not (folder / "above").exists()


@pytest.mark.parametrize(
  ("stage", "command"),
  [
    ("load the function and its parameters", "jax2tf convert slow:predict --input x=f32[b] --out slow"),
    ("read the graph", "jax2tf inspect model"),
    ("read the graph", "jax2tf diff model model"),
    ("wait for the server", "jax2tf query model slow.json --rest 127.0.0.1:{port} --seconds 2"),
  ],
)
def test_what_takes_long_says_its_stage(stage: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(_progress, "_MOMENT", 0.02)
  (folder / "slow.py").write_text("import time\ntime.sleep(0.2)\ndef predict(params, x):\n  return x\n")
  (folder / "slow.json").write_text('{"x": 1.0}')
  read = publish.meta_graph
  monkeypatch.setattr(publish, "meta_graph", lambda path: (time.sleep(0.2), read(path))[1])
  with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the request, and answers none
    said = errors.run(command.format(port=silent.getsockname()[1]), folder, patience=0.0)[1]
  assert f" s: {stage}" in said


def test_stages_are_told_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(_progress, "PATIENCE", 0.02)
  monkeypatch.setattr(_progress, "_MOMENT", 0.02)
  said = io.StringIO()
  with contextlib.redirect_stderr(said):
    progress = _progress.Progress("jax2tf convert")
    with progress.shown(), progress.stage("convert to onnx"):
      with progress.stage("too short to tell"):
        pass
      with progress.stage("compare"):
        time.sleep(0.1)
  assert [line.rsplit(": ")[-1] for line in said.getvalue().splitlines()][-1] == "compare"
  assert "too short" not in said.getvalue()
