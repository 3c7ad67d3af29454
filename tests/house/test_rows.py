"""Which rows of the longest tables run where, as `conftest.py` of the tests says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


def _row(name: str, mark: str = "sampled", file: str = "tests/lowering/test_x.py") -> Any:
  return SimpleNamespace(
    name=name, nodeid=f"{file}::{name}", get_closest_marker=lambda asked: asked == mark
  )


def test_two_versions_of_jax_run_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
  rows = {f"test_case[{i}-graph]" for i in range(600)}
  taken = {}
  for turn in (0, 1):
    monkeypatch.setattr(conftest, "_turn", lambda turn=turn: turn)
    for one_row_in in (1, 2, 6):
      found = {name for name in rows if conftest._is_in(_row(name), one_row_in)}
      taken[turn, one_row_in] = found
    assert taken[turn, 1] == rows
    assert taken[turn, 6] < taken[turn, 2]
    assert 60 < len(taken[turn, 6]) < 140
  assert taken[0, 2] | taken[1, 2] == rows
  assert not taken[0, 2] & taken[1, 2]


@pytest.mark.parametrize(
  "row", [_row("test_a", "pipelines"), _row("test_b", "", next(iter(conftest.LONG)))]
)
def test_the_longest_tests_are_left_out_by_make_test(row: Any) -> None:
  assert [conftest._is_in(row, one_row_in) for one_row_in in (1, 2, 6)] == [True, True, False]


def test_rows_are_skipped_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(conftest, "_turn", lambda: 0)
  rows = [_row(f"test_case[{i}-graph]") for i in range(60)]
  late = SimpleNamespace(getoption=lambda _: 0.0)
  skipped = []
  for row in rows:
    row.config = late
    try:
      conftest.pytest_runtest_setup(row)
    except pytest.skip.Exception:
      skipped.append(row)
  assert skipped == [row for row in rows if not conftest._is_in(row, 6)]
  assert 0 < len(skipped) < 60
