"""Each mistake of command_line_errors.md: one line, its exit code, and nothing left
behind."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.converters import onnx, saved_model, tfjs, tflite, verify
from jax2tf.converters.saved_model import values
from jax2tf.tools.cli import _json, _progress
from tests.command_line import command_line_errors as errors
from tests.support import warm_python

ROWS = errors.rows()
GOOD = "jax2tf convert small:predict --params weights.npz --input x=f32[b,4]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  made = tmp_path_factory.mktemp("typed")
  errors.make(made)
  return made


def test_the_page_has_its_rows() -> None:
  shown = sum(
    line.startswith("|") and "`jax2tf" in line for line in errors.PAGE.read_text().splitlines()
  )
  assert len(ROWS) == shown >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command)
def test_one_line_and_nothing_left_behind(
  row: errors.Row, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
  if row.command.startswith("jax2tf verify cut"):  # which loads the model in a process of its own
    monkeypatch.setattr(sys, "executable", request.getfixturevalue("without_jax"))
  before = sorted(folder.rglob("*"))
  code, said = errors.run(row.command, folder, row.without)
  assert code == row.code, said
  assert errors.matches(row.line, said), said
  assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts] == [
    p for p in before if "__pycache__" not in p.parts
  ]


def arguments() -> set[str]:
  """Those of the Python functions behind the commands that are no words of English."""
  functions: list[Any] = [
    saved_model.save,
    saved_model.Model.__init__,
    saved_model.Model.add,
    saved_model.Model.save,
    verify.verify,
  ]
  functions += [
    jax2tf.convert,
    saved_model.from_equinox,
    *(x for e in (onnx, tflite, tfjs) for x in (e.save, e.save_model)),
  ]
  names = {name for function in functions for name in inspect.signature(function).parameters}
  return {*names, "representative_dataset"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command)
def test_the_words_are_those_of_the_command(row: errors.Row) -> None:
  """No argument of a Python function: neither `name =`, nor a name with an underscore, unless it is
  a flag or the user's own, or the advice is for Python."""
  line, _, _ = row.line.partition("; from Python, ")
  line = line.replace("as in --input", "").replace("name=dtype[shape]", "")
  for name in arguments():
    used = re.findall(rf"(?<![-\w.'/])`?{name}(?: ?=(?!=)|`)", line) + (
      re.findall(rf"(?<![-\w.]){name}\b", line) if "_" in name else []
    )
    assert not used, (name, line)


def as_json(command: str, folder: Path, code: int) -> dict[str, Any]:
  out = io.StringIO()
  assert errors.run(f"{command} --json", folder, out=out)[0] == code
  found: dict[str, Any] = json.loads(out.getvalue())
  return found


def test_failures_are_json_too(folder: Path) -> None:
  found = as_json("jax2tf convert small:kernel --input x=f32[3,3] --out new", folder, 1)
  assert found["verdict"].startswith("cannot lower 'kernel'") and found["exit_code"] == 1
  assert [(gap["op"], gap["primitive"], gap["where"]) for gap in found["gaps"]] == [
    ("", "ffi_call", f"{folder}/small.py:39:9 (kernel)")
  ]
  assert all(gap["reason"] and gap["advice"] for gap in found["gaps"])
  assert found["reason"].startswith("its body is a compiled kernel") and {
    part: found[part] for part in _PARTS
  } == {part: found["gaps"][0][part] for part in _PARTS}
  missing = as_json("jax2tf inspect missing", folder, 2)
  assert missing == dict.fromkeys(_PARTS) | {
    "verdict": missing["reason"],
    "reason": missing["reason"],
    "exit_code": 2,
    "gaps": [],
  }
  assert as_json("jax2tf inspect", folder, 2)["reason"] == "Missing argument 'PATH'."
  raised = as_json("jax2tf convert small:predict --input x=f32[b,4] --out new", folder, 2)
  assert (raised["reason"], raised["where"]) == ("KeyError: 'w'", f"{folder}/small.py:11 (predict)")
  assert raised["advice"] == "--params was not given, so the parameters are an empty tree"
  advised = as_json("jax2tf convert small --input x=f32[b] --out new --overwrite", folder, 2)
  assert advised["advice"] == "name it as --version, or leave out --overwrite to add one"
  (folder / "stopped.py").write_text("raise KeyboardInterrupt\n")
  assert as_json("jax2tf convert stopped:f --input x=f32[b] --out new", folder, 130)[
    "reason"
  ].startswith("interrupted")


_PARTS = ("op", "reason", "advice", "where")


def test_stdout_has_the_result_alone(folder: Path) -> None:
  (folder / "loud.py").write_text(
    "print('loaded')\ndef predict(params, x):\n  print('traced')\n  return x\n"
  )
  out = io.StringIO()
  code, said = errors.run(
    "jax2tf convert loud:predict --input x=f32[b] --out loud --json", folder, out=out
  )
  assert code == 0 and said.startswith("loaded\ntraced\n")
  assert json.loads(out.getvalue()) == {"verdict": "saved", "path": "loud/1"}


def test_json_has_no_numbers_that_json_lacks() -> None:
  value = {
    "largest": float("inf"),
    "least": (np.float64(np.nan).item(), -0.5),
    "default": [b"a\xff", 1j],
    3: True,
  }
  assert json.loads(_json.dumps(value)) == {
    "largest": "inf",
    "least": ["nan", -0.5],
    "default": ["a\\xff", "1j"],
    "3": True,
  }


def test_debug_shows_the_traceback(folder: Path) -> None:
  code, said = errors.run("jax2tf convert small:raises --input x=f32[b] --out new --debug", folder)
  assert (
    code == 2
    and said.startswith("Traceback")
    and said.endswith("RuntimeError: the scale is missing\n")
  )


@pytest.mark.parametrize(
  ("error", "code", "line"),
  [
    (ValueError(), 2, "ValueError: no message; --debug shows where"),
    (NotImplementedError("not yet"), 2, "NotImplementedError: not yet; --debug shows where"),
  ],
  ids=repr,
)
def test_an_error_of_a_library(
  error: Exception, code: int, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  namespace: dict[str, Any] = {"__name__": "library", "error": error}
  exec(compile("def raises(path):\n  raise error", "/site-packages/library.py", "exec"), namespace)
  monkeypatch.setattr(values, "meta_graph", namespace["raises"])
  assert errors.run("jax2tf inspect model", folder) == (code, f"jax2tf inspect: {line}\n")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
  """The executable of a Python that has imported TensorFlow, JAX and this package."""
  # A socket's name has to be short, so it is not in pytest's folder.
  with (
    tempfile.TemporaryDirectory(prefix="warm-") as name,
    warm_python.started(Path(name), jax=True) as executable,
  ):
    yield executable


# The first word is the file at whose opening a SIGINT comes, or `closed` for no stderr.
COMMAND = """
import os, signal, sys
from jax2tf.tools.cli import _progress
from jax2tf.tools.cli.main import main
_progress.PATIENCE = float("inf")
# A shell lets what runs in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
opened, *words = sys.argv[1:]

def hook(event, arguments):
  if event == "open" and opened in str(arguments[0]):
    os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(hook)
if opened == "closed":
  os.close(2)
  sys.stderr = None
main(words)
"""


@pytest.mark.parametrize("moment", ["weights.npz", "jax2tf.json"])
def test_a_signal_leaves_nothing(moment: str, folder: Path, warm: str) -> None:
  words = [
    "convert",
    "small:predict",
    "--params",
    "weights.npz",
    "--input",
    "x=f32[b,4]",
    "--out",
    "above/killed",
    "--json",
  ]
  done = subprocess.run(
    [warm, "-c", COMMAND, moment, *words],
    cwd=folder,
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert (done.returncode, done.stderr) == (
    130,
    "jax2tf convert: interrupted; no partial output remains\n",
  )
  assert json.loads(done.stdout)["exit_code"] == 130
  assert not (folder / "above").exists()


def test_a_full_disk_a_closed_pipe_and_a_closed_stderr(folder: Path, warm: str) -> None:
  with open("/dev/full", "w") as full:
    done = subprocess.run(
      [warm, "-c", COMMAND, "none", "inspect", "model"],
      cwd=folder,
      stdout=full,
      stderr=-1,
      text=True,
      check=False,
    )
  assert (done.returncode, done.stderr) == (2, "jax2tf inspect: stdout: No space left on device\n")
  reader, writer = os.pipe()
  os.close(reader)  # as of `jax2tf inspect model | true`
  done = subprocess.run(
    [warm, "-c", COMMAND, "none", "inspect", "model"],
    cwd=folder,
    stdout=writer,
    stderr=-1,
    text=True,
    check=False,
  )
  os.close(writer)
  assert (done.returncode, done.stderr) == (1, "")
  for name, code in (("model", 0), ("missing", 2)):
    done = subprocess.run(
      [warm, "-c", COMMAND, "closed", "inspect", name],
      cwd=folder,
      capture_output=True,
      text=True,
      check=False,
    )
    assert (done.returncode, bool(done.stdout)) == (code, code == 0)


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
    (
      "load the function and its parameters",
      "jax2tf convert slow:predict --input x=f32[b] --out slow",
    ),
    ("read the graph", "jax2tf inspect model"),
    ("read the graph", "jax2tf diff model model"),
    ("read the graph", "jax2tf verify gone small:predict --params weights.npz"),
    ("wait for the server", "jax2tf query model slow.json --rest 127.0.0.1:{port} --seconds 2"),
  ],
)
def test_what_takes_long_says_its_stage(
  stage: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(_progress, "_MOMENT", 0.02)
  (folder / "slow.py").write_text(
    "import time\ntime.sleep(0.2)\ndef predict(params, x):\n  return x\n"
  )
  (folder / "slow.json").write_text('{"x": 1.0}')
  read = values.meta_graph
  monkeypatch.setattr(values, "meta_graph", lambda path: (time.sleep(0.2), read(path))[1])
  with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the request, and answers none
    said = errors.run(command.format(port=silent.getsockname()[1]), folder, patience=0.0)[1]
  assert f" s: {stage}" in said


def test_slow_stages_are_told_once() -> None:
  now, said = 0.0, io.StringIO()
  progress = _progress.Progress("jax2tf convert", lambda: now)

  def wait(seconds: float) -> None:
    nonlocal now
    now += seconds
    progress.look(said, contextlib.ExitStack())

  with progress.stage("trace"):
    wait(1.9)  # the command is not slow yet
  with progress.stage("convert to onnx"):
    wait(1.1)
    with progress.stage("too short to tell"):
      wait(0.4)
    with progress.stage("compare"):
      wait(0.6)
    wait(1.0)  # in the outer stage again
  assert said.getvalue().splitlines() == [
    "jax2tf convert: 3.0 s: convert to onnx",
    "jax2tf convert: 4.0 s: compare",
  ]


def test_imports_of_a_target_are_a_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  entered: list[str] = []

  def stage(self: Any, name: str) -> contextlib.AbstractContextManager[None]:
    entered.append(name)
    return contextlib.nullcontext()

  monkeypatch.setattr(_progress.Progress, "stage", stage)
  errors.run(f"{GOOD} --out foreign --to tfjs", folder)
  assert entered[-1] == "convert to tfjs" and "import what --to=tfjs needs" in entered
