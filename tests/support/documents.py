"""Runs the code blocks of a document in order, as they stand: `python documents.py FILE [LANGUAGE
...]`, in the folder that they work in.

`python` blocks share one namespace, `sh` and `console` blocks one shell. What a `console` block
shows below a command, or a `text` block below another, is compared with the output, where `...`
stands for anything. A command that ends in `&` is waited for until its output is what is shown. A
block is left out only behind a comment `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import contextlib
import doctest
import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BLOCK = re.compile(
  r"(?P<left_out><!-- not run: [^>]+ -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
  re.MULTILINE | re.DOTALL,
)
RUN = ("python", "sh", "console", "text")
SECONDS = 600
_DONE = "the command is done"


def blocks(text: str, languages: Sequence[str] = RUN) -> Iterator[re.Match[str]]:
  """The blocks that run."""
  return (
    found
    for found in BLOCK.finditer(text)
    if found["language"] in languages and not found["left_out"]
  )


def run(path: Path, languages: Sequence[str] = RUN) -> None:
  text = path.read_text()
  serves = any("jax2tf serve" in block["code"] for block in blocks(text, languages))
  with default_ports() if serves else contextlib.nullcontext(), _Shell() as shell:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    said = ""
    for block in blocks(text, languages):
      line = text.count("\n", 0, block.start("code"))
      try:
        match block["language"]:
          case "python":
            # Empty lines in front, so that a traceback has the line of the document.
            code = compile("\n" * line + block["code"], str(path), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
              exec(code, namespace)
            said = printed.getvalue()
          case "sh":
            said = shell.run(block["code"])
          case "console":
            for command, shown in re.findall(
              r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block["code"], re.MULTILINE
            ):
              said = shell.run(command, shown)
              _compare(shown, said)
          case "text":
            _compare(block["code"], said)
      except BaseException as error:
        error.add_note(f"in the block of {path.name}:{line + 1}")
        raise


def _agree(shown: str, said: str) -> bool:
  return doctest.OutputChecker().check_output(
    shown, said, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
  )


def _compare(shown: str, said: str) -> None:
  if shown.strip() and not _agree(shown, said):
    raise AssertionError(f"the document shows\n{shown}\nand the output is\n{said}")


class _Shell:
  """One bash for all of a document; its standard error goes to the file `stderr.txt` of the
  folder."""

  def __enter__(self) -> _Shell:
    commands, self._commands = os.pipe()
    with Path("stderr.txt").open("w") as errors:
      # The commands are not bash's standard input, which one of them might read.
      self._bash = subprocess.Popen(
        ["bash", "-e", f"/dev/fd/{commands}"],
        pass_fds=[commands],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
      )
    os.close(commands)
    return self

  def run(self, command: str, shown: str = "") -> str:
    """The output of a command; of one in the background as far as the document shows it."""
    os.write(self._commands, f"{command}\necho; echo {_DONE}\n".encode())
    said, done = "", False
    assert self._bash.stdout
    for line in self._bash.stdout:
      if line.strip() == _DONE:
        done = True
      else:
        said += line
      if done and (not command.rstrip().endswith("&") or _agree(shown, said)):
        return said
    raise AssertionError(
      f"`{command.strip()}` failed:\n{said}\n{Path('stderr.txt').read_text()[-3000:]}"
    )

  def __exit__(self, *error: object) -> None:
    os.close(self._commands)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._bash.pid, signal.SIGTERM)
    self._bash.communicate()


@contextlib.contextmanager
def default_ports() -> Iterator[None]:
  """A document serves at the ports that a user has: one at a time on a machine."""
  with (Path(tempfile.gettempdir()) / "jax2tf-default-ports.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield


def _give_up(*_: object) -> None:
  raise TimeoutError(f"after {SECONDS} s")


if __name__ == "__main__":
  signal.signal(signal.SIGALRM, _give_up)
  signal.alarm(SECONDS)
  sys.path[0] = os.getcwd()
  run(Path(sys.argv[1]), sys.argv[2:] or RUN)
