"""A few random programs against JAX; `make conformance` runs thousands."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.support.conformance import control_differential
from tests.support.conformance.control_programs import Generator
from tests.support.conformance.differential import check
from tests.support.conformance.programs import Program, programs


@settings(
  max_examples=30,
  derandomize=True,
  database=None,
  deadline=None,
  suppress_health_check=[HealthCheck.too_slow],
)
@given(programs())
def test_random_programs(program: Program) -> None:
  assert check(program) == []


def test_random_programs_with_control_flow() -> None:
  """The second of this seed computes the same in both branches of a custom rule."""
  generator = Generator(8)
  for _ in range(8):
    assert control_differential.check(generator.program()) == []
