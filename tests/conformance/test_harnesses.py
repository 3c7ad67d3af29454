"""A seeded sample of JAX's own harnesses; `make conformance` runs them all."""

from __future__ import annotations

import pytest

from tests.conformance.harnesses import run, sample

NAMES = sample(1000, seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_graph(name):
  outcome = run(name, "graph")
  assert outcome.status != "fail", outcome.detail


@pytest.mark.parametrize("name", NAMES[::10])
def test_eager(name):
  outcome = run(name, "eager")
  assert outcome.status != "fail", outcome.detail


@pytest.mark.parametrize("name", NAMES[3::12])
def test_xla(name):
  outcome = run(name, "xla")
  assert outcome.status != "fail", outcome.detail


@pytest.mark.parametrize("name", NAMES[::4])
def test_gradient(name):
  outcome = run(name, "gradient")
  assert outcome.status != "fail", outcome.detail


@pytest.mark.parametrize("name", NAMES[1::25])
def test_second_derivative(name):
  outcome = run(name, "second")
  assert outcome.status != "fail", outcome.detail
