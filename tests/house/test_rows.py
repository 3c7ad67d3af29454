"""Which tests `make test` and `.ci/run` run, as `conftest.py` of the tests says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest

_TABLE = "tests/lowering/test_x.py::test_case"


class _Test:
  """What a selection sees of a test."""

  def __init__(self, nodeid: str, mark: str = ""):
    self.nodeid, self._mark = nodeid, mark

  def get_closest_marker(self, asked: str) -> bool:
    return asked == self._mark


def _selected(tests: list[Any], one_row_in: int, turn: int) -> set[str]:
  return {test.nodeid for test in conftest.selected(tests, one_row_in, turn)}


@pytest.mark.parametrize("count", [2, 3, 5, 600])
def test_two_versions_of_jax_run_every_row_once(count: int) -> None:
  rows = [_Test(f"{_TABLE}[{i}-graph]") for i in range(count)]
  every = {row.nodeid for row in rows}
  assert _selected(rows, 1, 0) == _selected(rows, 1, 1) == every
  halves = [_selected(rows, 2, turn) for turn in (0, 1)]
  assert halves[0] | halves[1] == every
  assert len(halves[0]) + len(halves[1]) == count
  few = [_selected(rows, 6, turn) for turn in (0, 1)]
  assert not few[0] & few[1]
  assert {len(few[0]), len(few[1])} <= {max(count // 6, 1)}


def test_a_test_without_rows_runs_on_both() -> None:
  tests = [_Test(_TABLE)]
  assert all(_selected(tests, n, turn) == {_TABLE} for n in (1, 2, 6) for turn in (0, 1))


def test_what_one_python_is_enough_for_has_no_halves() -> None:
  rows = [_Test(f"{next(iter(conftest.ONE_PYTHON))}::test_case[{i}]") for i in range(8)]
  assert len(_selected(rows, 2, 0)) == 8
  assert len(_selected(rows, 6, 0)) == 2


@pytest.mark.parametrize(
  "test", [_Test("tests/a.py::test_b", "pipelines"), _Test(next(iter(conftest.LONG)))]
)
def test_make_test_leaves_out_the_longest_tests(test: Any) -> None:
  assert [len(_selected([test], n, 0)) for n in (1, 2, 6)] == [1, 1, 0]


@pytest.mark.parametrize(
  ("omitted", "until", "is_skipped"), [(True, 0, True), (False, 0, False), (True, 2**40, False)]
)
def test_rows_are_skipped_when_the_time_is_over(
  omitted: bool, until: float, is_skipped: bool
) -> None:
  late = SimpleNamespace(getoption={"--rows-until": float(until)}.__getitem__)
  test = SimpleNamespace(config=late, stash={conftest._OMITTED: omitted})
  if is_skipped:
    with pytest.raises(pytest.skip.Exception, match="--rows-until is over"):
      conftest.pytest_runtest_setup(test)
  else:
    conftest.pytest_runtest_setup(test)
