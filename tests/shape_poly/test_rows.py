"""The table of polymorphic rows: what a rule can do with static sizes it does with symbolic
ones."""

from __future__ import annotations

import pytest

from tests.shape_poly import rows_arrays, rows_control, rows_indexing, rows_math, rows_models
from tests.shape_poly.row import CHECKS, Row

ROWS = [
  row
  for table in (rows_arrays, rows_indexing, rows_math, rows_control, rows_models)
  for row in table.ROWS
]


@pytest.mark.parametrize(
  ("row", "way"),
  [
    pytest.param(
      row,
      way,
      id=f"{row.name}-{way}",
      marks=[pytest.mark.xfail(reason=row.xfail[way], strict=True)] if way in row.xfail else [],
    )
    for row in ROWS
    for way in row.ways
  ],
)
def test_row(row: Row, way: str) -> None:
  with row.config():
    CHECKS[way](row)


def test_the_table_is_as_large_as_promised():
  names = [row.name for row in ROWS]
  assert len(set(names)) == len(names) >= 200
  assert all(len(row.runs) >= 3 for row in ROWS)
