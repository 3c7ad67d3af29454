"""Every harness group, vmapped over a symbolic batch: one conversion serves several batch sizes."""

from __future__ import annotations

import pytest

from tests.support.conformance.symbolic_batch import cases, run


@pytest.mark.parametrize("name", cases().values(), ids=cases())
def test_symbolic_batch(name):
  """A case that JAX itself cannot batch fails here with JAX's reason; so far there is none."""
  outcome = run(name)
  assert outcome.status == "pass", outcome.detail
