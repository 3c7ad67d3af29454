"""Every model of the zoo with fused idioms, as the exporters take them by default."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.converters.export.source import Source
from jax2tf.converters.verify.plan import Comparison
from tests.support.models import NAMES, load


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_fused_idioms(name: str) -> None:
  entry = load(name)
  fun, params = entry.build()
  model = saved_model.Model(params, polymorphic_constraints=entry.constraints, idioms="fused")
  model.add(fun, inputs=entry.inputs, outputs=entry.outputs)
  # Fused ops round otherwise, by at most 2e-6 for one op (tests/idioms/test_fused.py); a model has
  # tens of them in a row.
  tolerances = {"rtol": entry.rtol or 1e-4, "atol": entry.atol or 1e-5}
  runs = Source.of(model).runs(Comparison(sizes=entry.sizes, samples=1, examples=entry.examples))
  assert {run.values for run in runs} == {"given"}
  for run in runs:
    found = model.signatures["serving_default"](
      **{key: tf.constant(x) for key, x in run.inputs.items()}
    )
    expected = run.subject.named(
      run.subject.reference(*(run.inputs[key] for key in run.subject.order)), run.inputs
    )
    for output, e in expected.items():
      np.testing.assert_allclose(
        np.asarray(found[output], np.float64), np.asarray(e, np.float64), **tolerances
      )
