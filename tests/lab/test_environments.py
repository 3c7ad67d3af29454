"""Programs in other environments; here the environment is ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jax2tf.tools.lab.environments import Program

PROGRAM = """
print("a greeting")
def answer(first, second):
  if second == 0:
    os._exit(3)
  if second < 0:
    time.sleep(-second)
  return [first / second, sys.argv[1]]
import time
"""


@pytest.fixture
def divided() -> Iterator[Program]:
  program = Program(Path(sys.executable), PROGRAM, "an argument", seconds=10)
  yield program
  program.close()


def test_a_program_answers_what_it_is_asked(divided: Program) -> None:
  assert divided.ask(1, 4) == ([0.25, "an argument"], "")
  assert divided.ask("x", 4) == (
    None,
    "TypeError: unsupported operand type(s) for /: 'str' and 'int'",
  )


def test_a_process_that_ends_is_started_again(divided: Program) -> None:
  assert divided.ask(1, 0) == (None, "the process ended with 3")
  assert divided.ask(1, 4) == ([0.25, "an argument"], "")


def test_a_process_that_takes_too_long_is_ended(divided: Program) -> None:
  assert divided.ask(1, -300) == (None, "the process ended with -9")
