"""Every model of the zoo: saved, loaded, and equal to jax.jit at two sizes of each of its
dimensions; and with fused idioms, as the exporters take them by default."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.converters.export.source import Source
from jax2tf.converters.verify import plan
from tests.support import models
from tests.support.case import xla_ops

# Models of one network that was trained elsewhere are as large as they are.
LARGEST, LARGE = 2_000_000, {"minilm"}
# (entry, function, parameters)
Built = tuple[models.Entry, Callable[..., Any], Any]


def test_every_module_is_listed() -> None:
  helpers = {"__init__", "entry", "libraries", "zoo"}
  files = {
    file.stem
    for file in Path(models.__file__).parent.glob("*.py")
    if not file.stem.startswith("test_")
  }
  assert files - helpers == set(models.NAMES)
  assert len(models.NAMES) == len(set(models.NAMES)) >= 24


def test_every_library_is_there() -> None:
  libraries = collections.Counter(models.load(name).library for name in models.NAMES)
  assert {"Flax linen", "Flax nnx", "Haiku", "Equinox", "plain JAX"} <= libraries.keys()


def test_an_entry_says_how_to_draw_its_integers() -> None:
  with pytest.raises(ValueError, match=r"m: draws says nothing of 'ids', i32\[b\]"):
    models.Entry(
      "m", "plain JAX", lambda: (lambda _, ids: ids, None), {"ids": "i32[b]"}, None, {"b": (1, 3)}
    )


def test_an_entry_says_why_it_needs_a_tolerance() -> None:
  with pytest.raises(ValueError, match="m: why"):
    models.Entry(
      "m",
      "plain JAX",
      lambda: (lambda _, x: x, None),
      {"x": "f32[b]"},
      None,
      {"b": (1, 3)},
      rtol=1e-3,
    )


@pytest.fixture(scope="module", params=models.NAMES)
def built(request: pytest.FixtureRequest) -> Built:
  """Each model once: to make its parameters takes a third of the time of a test."""
  entry = models.load(request.param)
  return entry, *entry.build()


def test_saved_model(built: Built, tmp_path: Path) -> None:
  entry, fun, params = built
  assert sum(x.nbytes for x in jax.tree.leaves(params)) < LARGEST or entry.name in LARGE
  directory = saved_model.save(
    fun,
    params,
    tmp_path,
    inputs=entry.inputs,
    outputs=entry.outputs,
    polymorphic_constraints=entry.constraints,
  )
  source = Source.of(directory, reference=fun, params=params)
  (signature,) = source.signatures.values()
  assert not xla_ops(signature.function.graph)
  assert entry.outputs is None or set(signature.record.outputs) == set(entry.outputs)

  def answer(runs: Sequence[plan.Run]) -> list[dict[str, Any]]:
    results = [
      signature.function(**{name: tf.constant(x) for name, x in run.inputs.items()}) for run in runs
    ]
    return [
      {"outputs": {name: y.numpy() for name, y in result.items()}, "error": "", "seconds": None}
      for result in results
    ]

  report = source.compared(
    answer,
    "saved_model",
    "TensorFlow",
    plan.Comparison(entry.sizes, 1, entry.examples, entry.rtol, entry.atol),
    versions={},
  )
  assert report.ok
  assert {row.values for row in report.rows} == {"given"}
  run_at = {variable: {row.sizes[variable] for row in report.rows} for variable in entry.sizes}
  assert run_at == {variable: set(sizes) for variable, sizes in entry.sizes.items()}
  assert all(len(sizes) == 2 for sizes in run_at.values())


def test_fused_idioms(built: Built) -> None:
  entry, fun, params = built
  model = saved_model.Model(params, polymorphic_constraints=entry.constraints, idioms="fused")
  model.add(fun, inputs=entry.inputs, outputs=entry.outputs)
  # Fused ops round otherwise, by at most 2e-6 for one op (tests/idioms/test_fused.py); a model has
  # tens of them in a row.
  tolerances = {"rtol": entry.rtol or 1e-4, "atol": entry.atol or 1e-5}
  runs = Source.of(model).runs(
    plan.Comparison(sizes=entry.sizes, samples=1, examples=entry.examples)
  )
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
