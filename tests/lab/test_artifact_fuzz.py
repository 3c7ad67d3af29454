"""Changed artifacts, a few of those that `tools/lab/artifact_fuzz.py` runs."""

from __future__ import annotations

import pytest

from jax2tf.tools.lab import artifact_fuzz, workers
from tests.support.conformance import mutant_runs


@pytest.mark.one_python
def test_changed_artifacts_are_refused_or_compute_what_jaxlib_computes() -> None:
  tasks = [(seed,) for seed in range(8)]
  outcomes = list(workers.each(artifact_fuzz.run, tasks, artifact_fuzz.lost, seconds=120))
  assert [outcome for outcome in outcomes if outcome.status not in mutant_runs.FINE] == []
  assert {"refused", "equal"} <= {outcome.status for outcome in outcomes}
