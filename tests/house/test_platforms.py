"""What does not need Linux runs where the modules of POSIX are missing, as on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jax2tf.converters.bundle import durable
from jax2tf.tools.cli.main import main

# Modules of Python's standard library that Windows lacks.
_POSIX = ("fcntl", "grp", "pty", "pwd", "resource", "termios")


def test_converters_and_the_command_import_no_posix_module() -> None:
  code = (
    f"import sys; sys.modules.update(dict.fromkeys({_POSIX!r}))\n"
    "import jax2tf.converters.export.pipeline, jax2tf.converters.keras\n"
    "from jax2tf.converters import saved_model, verify, tflite\n"
    "from jax2tf.tools.cli import main; main.main(['--help'])"
  )
  subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
  "arguments", [["batch", "model", "rows.csv", "answers"], ["serve", "model"]]
)
def test_a_verb_that_needs_posix_says_so(
  arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  monkeypatch.setitem(sys.modules, "fcntl", None)
  with pytest.raises(SystemExit) as ended:
    main(arguments)
  assert ended.value.code == 2
  assert capsys.readouterr().err == (
    f"jax2tf {arguments[0]}: this runs on Linux and macOS only; on Windows, use its Subsystem for "
    "Linux\n"
  )


def test_paths_are_not_swapped_at_once_on_windows(
  monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
  one, other = (tmp_path / name for name in ("one", "other"))
  for folder in (one, other):
    folder.mkdir()
  with monkeypatch.context() as patch:
    patch.setattr(os, "name", "nt")
    assert not durable._swapped(one, other)
