"""The forward and backward passes of all models of the zoo, with symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import tensorflow as tf

import jax2tf
from jax2tf.converters.bundle.notation import Spec
from jax2tf.tools.lab import workers
from jax2tf.tools.lab.device_rows import counts
from tests.support import models
from tests.support.models import zoo

# {"forward" and "with gradient": the numbers of `counts`}
Numbers = dict[str, Any]

_MODELS_PER_WORKER = 8
_SECONDS = 300  # the time limit of a model


def rows() -> list[str]:
  """The models that are exported, and the small ones of the tests."""
  return [*models.NAMES, *(f"small {name}" for name in zoo.MODELS)]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Reads the graphs of each model."""
  tasks = [(name,) for name in names]
  yield from workers.each(_row, tasks, _lost, renewed_after=_MODELS_PER_WORKER, seconds=_SECONDS)


def _row(name: str) -> tuple[str, Numbers]:
  kind, _, small = name.rpartition(" ")
  function, specs = _small(small) if kind else _exported(name)
  return name, {
    "forward": counts.of_function(function, specs),
    "with gradient": counts.of_function(function, specs, gradient=True),
  }


def _lost(error: workers.LostError, name: str) -> tuple[str, Numbers]:
  return name, {"forward": {"refused": str(error).splitlines()[0][:200]}}


def _exported(name: str) -> tuple[Any, list[Any]]:
  """(the converted function, the specs of its arguments)."""
  entry = models.load(name)
  fun, params = entry.build()
  inputs = [Spec.parse(text) for text in entry.inputs.values()]
  converted = jax2tf.convert(
    fun,
    polymorphic_shapes=[None, *(", ".join(spec.texts) for spec in inputs)],
    polymorphic_constraints=entry.constraints,
    platforms=counts.PLATFORMS,
  )
  return converted, [
    counts.specs(params),
    *(tf.TensorSpec(spec.sizes, tf.as_dtype(spec.dtype)) for spec in inputs),
  ]


def _small(name: str) -> tuple[Any, list[Any]]:
  model = zoo.MODELS[name]
  fun, params = model.build()
  converted = jax2tf.convert(fun, polymorphic_shapes=[None, model.spec], platforms=counts.PLATFORMS)
  inputs = jax.tree.map(
    lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), model.inputs(model.batches[0])
  )
  return converted, [counts.specs(params), inputs]
