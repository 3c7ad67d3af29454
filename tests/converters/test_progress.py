"""Progress bars and tables of text."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from jax2tf.converters.bundle import progress, tables


class Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True


def test_a_bar_is_on_a_terminal_only() -> None:
  file, terminal = io.StringIO(), Terminal()
  for stream in (file, terminal):
    with progress.bar("compare onnx", 2, file=stream) as shown:
      assert list(shown.over("ab")) == ["a", "b"]
  assert not file.getvalue()
  assert "compare onnx" in terminal.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_one_line_says_how_long_it_took(stream: type[io.StringIO]) -> None:
  file = stream()
  with progress.bar("parameters", 2, file=file, told=True):
    pass
  assert file.getvalue().count("parameters: done in 0.0 s\n") == 1


def test_a_process_without_stderr_prints_nothing(
  monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  monkeypatch.setattr(sys, "stderr", None)
  with progress.bar("parameters", 2, told=True):
    pass
  assert not capsys.readouterr().out


def test_a_bar_inside_another_is_a_line_of_the_same_display() -> None:
  terminal, other = Terminal(), Terminal()
  with progress.bar("jax2tf verify", file=terminal) as outer:
    with progress.bar("compare", 2, file=other) as inner:
      outer.set(words="jax2tf verify: compare (3 s)")
      inner.set(done=1)
      progress._SHARED._display.refresh()
      assert "(3 s)" in terminal.getvalue() and "50%" in terminal.getvalue()
    assert not other.getvalue()
  assert progress._SHARED._display is None


def test_what_a_user_prints_stays_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
  terminal = Terminal()
  with progress.bar("calibrate [x]", 1, file=terminal):
    print("from the function")
  assert capsys.readouterr().out == "from the function\n"
  assert "calibrate [x]" in terminal.getvalue()


def test_rich_is_imported_for_a_terminal_only() -> None:
  code = (
    "import sys; from jax2tf.converters.bundle import progress, tables\n"
    "[*progress.over([1], 'x')]; sys.exit('rich' in sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=True)


def test_a_table_has_its_cells_as_they_are() -> None:
  assert tables.text(("name", "type"), [("x", "f32[b,784]"), ("[bold]", "")]).splitlines() == [
    "  name     type",
    " ─────────────────────",
    "  x        f32[b,784]",
    "  [bold]",
  ]


def test_a_table_wraps_at_its_width_only() -> None:
  words = "word " * 60
  assert len(tables.text(("problem",), [(words,)]).splitlines()) == 3
  assert len(tables.text(("problem",), [(words,)], width=80).splitlines()) > 5
