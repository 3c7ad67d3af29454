"""How a command reports failure: one line, an exit code, and with --json the reason, the place and
the gaps."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import click

from jax2tf.messages import Message, message_of
from jax2tf.tools.cli._flags import of_command, worded

NO, CANNOT, INTERRUPTED = 1, 2, 130
PARTS = ("op", "reason", "advice", "where")  # of a gap, and of a failure as JSON
_MOST = 3  # gaps in one line


class Failure(click.ClickException):
  """The failure of a command.

  Attributes:
    exit_code: 1 for a negative answer; 2 for an invalid command; 130 for Ctrl-C.
    gaps: one {"op", "primitive", "reason", "advice", "where"} for each op that a target lacks.
    parts: those of `PARTS` that are known. By default the reason is the whole line.
  """

  def __init__(
    self, line: str, exit_code: int, gaps: Sequence[dict[str, Any]] = (), **parts: str | None
  ):
    super().__init__(line)
    vars(self)["exit_code"] = exit_code  # click has it of the class
    self.gaps, self.ctx = list(gaps), click.get_current_context(silent=True)
    self.parts = parts or {"reason": line}


def described(error: click.ClickException) -> dict[str, Any]:
  """The failure as JSON values. Unknown parts are None."""
  parts = dict.fromkeys(PARTS) | (
    error.parts if isinstance(error, Failure) else {"reason": error.format_message()}
  )
  return {
    "verdict": error.format_message(),
    "exit_code": error.exit_code,
    **parts,
    "gaps": getattr(error, "gaps", []),
  }


def interrupted() -> Failure:
  """The failure after Ctrl-C."""
  return Failure("interrupted; no partial output remains", INTERRUPTED)


@contextlib.contextmanager
def failures(*, debug: bool, without_params: bool = False) -> Iterator[None]:
  """Converts every exception to a `Failure`. With `debug` it first prints the traceback."""
  try:
    yield
  except (click.ClickException, click.exceptions.Exit):
    raise
  except KeyboardInterrupt as error:
    raise interrupted() from error
  except (Exception, SystemExit) as error:
    if isinstance(error, SystemExit) and _is_ours(error):  # a server ends so after SIGTERM
      raise
    if debug:
      traceback.print_exception(error)
    raise _failure(error, without_params) from error


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
  """Prints each warning as one line on stderr, in the words of the command."""
  path = click.get_current_context().command_path
  with warnings.catch_warnings():
    warnings.showwarning = lambda message, *_: print(
      f"{path}: warning: {one_line(worded(message_of(message)))}", file=sys.stderr
    )
    yield


def one_line(text: str) -> str:
  """Joins the lines of a message with semicolons, except after a colon or a full stop."""
  joined = ""
  for line in filter(None, map(str.strip, text.splitlines())):
    separator = " " if joined.endswith((":", ".")) else "; "
    joined = f"{joined}{separator}{line}" if joined else line
  return joined


def say(text: str) -> None:
  """Prints the result of a command on stdout.

  Raises:
    Failure: stdout cannot be written, for example because its disk is full.
    click.exceptions.Exit: its reader has ended, as `head` does.
  """
  try:
    click.echo(text)
  except OSError as error:
    # otherwise Python fails again when it flushes at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
      raise click.exceptions.Exit(NO) from error
    raise Failure(f"stdout: {error.strerror}", CANNOT) from error


def _failure(error: BaseException, without_params: bool) -> Failure:
  gaps = [dataclasses.asdict(gap) for gap in getattr(error, "gaps", ())]
  if gaps:
    return Failure(_of_gaps(str(error), gaps), NO, gaps, **{part: gaps[0][part] for part in PARTS})
  user_line = _user_place(error)
  if isinstance(error, SystemExit):
    return _at(
      user_line,
      f"the module ends the program (exit {error.code or 0})",
      "put that under `if __name__ == '__main__'`",
    )
  if user_line:
    return _at(
      user_line, f"{type(error).__name__}: {_first_line(error)}", _advice(error, without_params)
    )
  if isinstance(error, OSError) and error.strerror:
    return Failure(
      f"{error.filename}: {error.strerror}" if error.filename else error.strerror, CANNOT
    )
  line = one_line(worded(message_of(error)))
  if line and isinstance(error, ValueError | OSError | ImportError):
    return _split(line, CANNOT, error)
  if line and _is_ours(error) and isinstance(error, TypeError | RuntimeError | NotImplementedError):
    return _split(
      line,
      NO if isinstance(error, NotImplementedError) or hasattr(error, "gaps") else CANNOT,
      error,
    )
  return Failure(f"{type(error).__name__}: {_first_line(error)}; --debug shows where", CANNOT)


def _at(user_line: str, reason: str, advice: str) -> Failure:
  words = f"{reason.rstrip('.')}; {advice}" if advice else reason
  return Failure(
    f"{user_line}: {words}" if user_line else words,
    CANNOT,
    reason=reason,
    advice=advice or None,
    where=user_line or None,
  )


def _split(line: str, exit_code: int, error: BaseException) -> Failure:
  """The parts of a `Message`. Others of this package say what to do after a semicolon."""
  message = message_of(error)
  if isinstance(message, Message):
    reason, advice = (
      one_line(part(of_command()))
      for part in (message.reason_for_command, message.advice_for_command)
    )
  else:
    reason, _, advice = line.partition("; ") if _is_ours(error) else (line, "", "")
  return Failure(line, exit_code, reason=reason, advice=advice or None)


def _of_gaps(message: str, gaps: list[dict[str, Any]]) -> str:
  head = message.splitlines()[0].rstrip(".:")
  named = []
  for gap in gaps[:_MOST]:
    why = "" if gap["reason"] in head else f": {gap['reason']}"
    named.append(
      f"{gap['op'] or 'no lowering'} (of '{gap['primitive']}') at {gap['where']}{why}; "
      f"{gap['advice']}"
    )
  more = f"; and {len(gaps) - _MOST} more, which --json lists" if len(gaps) > _MOST else ""
  return f"{head}: {'; '.join(named)}{more}"


def _user_place(error: BaseException) -> str:
  """`file:line (function)` of the user's code that raised the error; empty if this package or a
  library raised it."""
  if isinstance(error, SyntaxError) and error.filename:
    return f"{error.filename}:{error.lineno}"
  frames = [
    (frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame)
  ]
  return (
    f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]} ({frames[-1][0].f_code.co_name})"
    if frames
    else ""
  )


def _is_ours(error: BaseException) -> bool:
  frames = list(traceback.walk_tb(error.__traceback__))
  return _package(frames[-1][0]) == "jax2tf"


def _package(frame: FrameType) -> str:
  return frame.f_globals.get("__name__", "").partition(".")[0]


def _is_users(frame: FrameType) -> bool:
  file, package = frame.f_code.co_filename, _package(frame)
  installed = "site-packages" in file or "dist-packages" in file or file.startswith("<")
  return not (installed or package == "jax2tf" or package in sys.stdlib_module_names)


def _advice(error: BaseException, without_params: bool) -> str:
  if "jax2tf.errors" in sys.modules and (
    constraints := sys.modules["jax2tf.errors"].settling_constraints(error)
  ):
    holds, fails = constraints
    return f'give --constraint "{holds}" if it holds for all sizes that you use' + (
      f', --constraint "{fails}" if for none' if fails else ""
    )
  # Errors of Python for a missing leaf.
  missing = (
    isinstance(error, LookupError | AttributeError | TypeError)
    and type(error).__module__ == "builtins"
  )
  return (
    "--params was not given, so the parameters are an empty tree"
    if without_params and missing
    else ""
  )


def _first_line(error: BaseException) -> str:
  return next(filter(None, map(str.strip, str(error).splitlines())), "no message")
