"""A seeded sample of JAX's own harnesses; `make conformance` runs them all."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.conformance.harnesses import load, run, sample

NAMES = sample(400, seed=0)
DIFFERENTIABLE = [
  name
  for name in NAMES
  if load()[name].dtype is not None and jnp.issubdtype(load()[name].dtype, np.inexact)
]
SAMPLES = {
  "graph": NAMES,
  "eager": NAMES[::8],
  "xla": NAMES[3::6],
  "gradient": DIFFERENTIABLE[::2],
  "second": DIFFERENTIABLE[1::10],
}

# What does not pass, counted, so that no case is lost in silence: skips, where JAX refuses the
# reference, and limits of tolerances.py.
OTHERS = {
  "0.10": {"gradient": {"skip": 19}, "second": {"skip": 3, "limit": 1}},
  "0.12": {"gradient": {"skip": 18}, "second": {"skip": 3}},
}[".".join(jax.__version__.split(".")[:2])]


@pytest.mark.parametrize(
  ("way", "name"), [(way, name) for way, names in SAMPLES.items() for name in names]
)
def test_harness(way, name):
  outcome = run(name, way)
  if outcome.status == "skip":
    pytest.skip(reason=f"JAX has no reference: {outcome.detail}")
  if outcome.status == "limit":
    pytest.xfail(reason=f"a limit of tolerances.py: {outcome.detail}")
  assert outcome.status == "pass", outcome.detail


@pytest.mark.parametrize("way", SAMPLES)
def test_nothing_else_is_lost(way):
  counts = collections.Counter(run(name, way).status for name in SAMPLES[way])
  assert counts.pop("pass") > 0
  assert counts == OTHERS.get(way, {})
