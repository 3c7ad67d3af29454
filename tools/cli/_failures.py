"""How a command reports failure: one line, an exit code, and with --json the gaps."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

NO, CANNOT, INTERRUPTED = 1, 2, 130
_MOST = 3  # gaps in one line
# Argument in the messages of the Python API -> flag of the command.
_FLAGS = {"inputs": "input", "outputs": "output", "signatures": "signature", "polymorphic_constraints": "constraint"}
_OF_THAT_NAME = ("overwrite", "version", "quantization", "opset", "samples", "params", "report", "with_gradient", "tokenizer")
_FLAGS |= dict(zip(_OF_THAT_NAME, _OF_THAT_NAME, strict=True))
_POSITIONAL = re.compile(r"\b(?:path|model) = (?=')")
_ARGUMENT = re.compile(rf"(?<![-\w])(?:({'|'.join(_FLAGS)}) ?= ?(True\b)?|polymorphic_constraints)")


class Failure(click.ClickException):
  """The failure of a command.

  Attributes:
    exit_code: 1 for a negative answer; 2 for an invalid command; 130 for Ctrl-C.
    gaps: one {"op", "primitive", "reason", "advice", "where"} for each op that a target lacks.
  """

  def __init__(self, line: str, exit_code: int, gaps: list[dict[str, Any]]):
    super().__init__(line)
    vars(self)["exit_code"] = exit_code  # click has it of the class
    self.gaps, self.ctx = gaps, click.get_current_context(silent=True)


@contextlib.contextmanager
def failures(*, debug: bool, without_params: bool = False) -> Iterator[None]:
  """Converts every exception to a `Failure`. With `debug` it first prints the traceback."""
  try:
    yield
  except KeyboardInterrupt as error:
    raise Failure("interrupted; no partial output remains", INTERRUPTED, []) from error
  except Exception as error:
    if debug:
      traceback.print_exception(error)
    raise _failure(error, without_params) from error


def _failure(error: Exception, without_params: bool) -> Failure:
  gaps = [dataclasses.asdict(gap) for gap in getattr(error, "gaps", ())]
  if gaps:
    return Failure(_of_gaps(str(error), gaps), NO, gaps)
  if place := _user_place(error):
    words, advice = f"{place}: {type(error).__name__}: {_first_line(error)}", _advice(error, without_params)
    return Failure(f"{words.rstrip('.')}; {advice}" if advice else words, CANNOT, [])
  if isinstance(error, OSError) and error.strerror:
    return Failure(f"{error.filename}: {error.strerror}" if error.filename else error.strerror, CANNOT, [])
  if isinstance(error, NotImplementedError) or hasattr(error, "gaps"):
    return Failure(as_flags(one_line(str(error))), NO, [])
  if isinstance(error, ValueError | OSError | ImportError) or (isinstance(error, TypeError | RuntimeError) and _is_ours(error)):
    return Failure(as_flags(one_line(str(error))), CANNOT, [])
  return Failure(f"{type(error).__name__}: {_first_line(error)}; --debug shows where", CANNOT, [])


def _of_gaps(message: str, gaps: list[dict[str, Any]]) -> str:
  head = message.splitlines()[0].rstrip(".:")
  named = []
  for gap in gaps[:_MOST]:
    why = "" if gap["reason"] in head else f": {gap['reason']}"
    named.append(f"{gap['op'] or 'no lowering'} (of '{gap['primitive']}') at {gap['where']}{why}; {gap['advice']}")
  more = f"; and {len(gaps) - _MOST} more, which --json lists" if len(gaps) > _MOST else ""
  return f"{head}: {'; '.join(named)}{more}"


def _user_place(error: Exception) -> str:
  """`file:line (function)` of the user's code that raised the error; empty if this package or a library raised it."""
  if isinstance(error, SyntaxError) and error.filename:
    return f"{error.filename}:{error.lineno}"
  frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame)]
  return f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]} ({frames[-1][0].f_code.co_name})" if frames else ""


def _is_ours(error: Exception) -> bool:
  frames = list(traceback.walk_tb(error.__traceback__))
  return _package(frames[-1][0]) == "jax2tf"


def _package(frame: FrameType) -> str:
  return frame.f_globals.get("__name__", "").partition(".")[0]


def _is_users(frame: FrameType) -> bool:
  file, package = frame.f_code.co_filename, _package(frame)
  installed = "site-packages" in file or "dist-packages" in file or file.startswith("<")
  return not (installed or package == "jax2tf" or package in sys.stdlib_module_names)


def _advice(error: Exception, without_params: bool) -> str:
  if "jax2tf.errors" in sys.modules and (found := sys.modules["jax2tf.errors"].settling_constraints(error)):
    holds, fails = found
    return f'give --constraint "{holds}" if it holds for all sizes that you use' + (
      f', --constraint "{fails}" if for none' if fails else ""
    )
  # Errors of Python for a missing leaf.
  missing = isinstance(error, LookupError | AttributeError | TypeError) and type(error).__module__ == "builtins"
  return "--params was not given, so the parameters are an empty tree" if without_params and missing else ""


def _first_line(error: Exception) -> str:
  return next(filter(None, map(str.strip, str(error).splitlines())), "no message")


def one_line(text: str) -> str:
  """Joins the lines of a message with semicolons, except after a colon."""
  return re.sub(r":; |\.; ", lambda m: f"{m[0][0]} ", "; ".join(filter(None, map(str.strip, text.splitlines()))))


def as_flags(text: str) -> str:
  """Replaces arguments of the Python API in a message by flags: `samples = 0` becomes `--samples=0`."""
  return _ARGUMENT.sub(lambda m: f"--{_FLAGS[m[1] or m[0]]}{'=' if m[1] and not m[2] else ''}", _POSITIONAL.sub("", text))
