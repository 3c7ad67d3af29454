"""A few random programs against JAX; `make conformance` runs thousands."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.conformance.differential import check
from tests.conformance.programs import Program, programs


@settings(max_examples=30, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_programs(program: Program) -> None:
  assert check(program) == []
