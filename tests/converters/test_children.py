"""A model in a process of its own: its answers, and what is known of it when it ends without."""

from __future__ import annotations

import inspect
from pathlib import Path

import ml_dtypes
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


def test_arrays_of_every_kind_go_there_and_back(script: Path) -> None:
  script.write_text(
    HEAD
    + """
def main(request):
  for array in request:
    array[...] = array  # may be written to
  return request
calls["respond"](main)
"""
  )
  arrays = [
    np.array([[np.nan, -0.0, np.inf]], np.float32),
    np.zeros((0, 3), np.int8),
    np.array(7, np.uint64),
    np.arange(6.0).reshape(2, 3).T,
    np.arange(10)[::-2],
    np.ones(3, ml_dtypes.bfloat16),
    np.array(["text", "b"]),
    np.array([b"bytes", None], object),
  ]
  ended = children.script(script, arrays)
  for found, array in zip(ended.response, arrays, strict=True):
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    if array.dtype == object:
      np.testing.assert_array_equal(found, array)
    else:
      assert found.tobytes() == array.tobytes()
      assert found.flags.aligned
      found[...] = array


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
