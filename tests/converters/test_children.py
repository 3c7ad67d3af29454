"""A model in a process of its own: its answers, and what is known of it when it ends without."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from jax2tf.converters.bundle import calls, children

HEAD = f"""
import runpy, sys, time
calls = runpy.run_path({inspect.getfile(calls)!r})
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
  return tmp_path / "script.py"


def test_a_request_and_its_response(script: Path) -> None:
  script.write_text(
    HEAD
    + """
def main(request):
  for number in request["numbers"]:
    calls["done"]()
    print("not done")
  return request["numbers"] * 2
calls["respond"](main)
"""
  )
  seen: list[int] = []
  ended = children.script(
    script, {"numbers": np.arange(3)}, after_run=lambda: seen.append(len(seen))
  )
  np.testing.assert_array_equal(ended.response, [0, 2, 4])
  assert (ended.code, ended.runs, seen, ended.late) == (0, 3, [0, 1, 2], False)


def test_a_process_that_ends_early_says_where_and_why(script: Path) -> None:
  script.write_text(HEAD + 'calls["done"](); sys.stderr.write("first\\nlast\\n"); sys.exit(7)')
  ended = children.script(script, {})
  assert (ended.code, ended.response, ended.runs, ended.reason) == (7, None, 1, "last")


def test_a_process_that_does_not_end_is_killed(script: Path) -> None:
  script.write_text(HEAD + 'calls["done"](); time.sleep(60)')
  ended = children.script(script, {}, patience=1)
  assert (ended.late, ended.response, ended.runs) == (True, None, 1)
  assert ended.reason == "no message"


def test_an_interrupted_parent_kills_it(script: Path) -> None:
  script.write_text(HEAD + 'calls["done"](); time.sleep(60)')

  def interrupt() -> None:
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    children.script(script, {}, after_run=interrupt)  # waits for the end of the process
