"""Times to save and to load two models, with and without derivatives, and the sizes of their
graphs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.converters.bundle.notation import Spec
from jax2tf.examples import minilm
from jax2tf.tools.lab import workers
from jax2tf.tools.lab.speed_rows.models import MODELS

_RUNS = 5
_MINILM, _TRANSFORMER = "MiniLM", "transformer, 4 layers d256 s128"
# What is saved -> options of `saved_model.save`.
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
  "no gradient": {},
  "first derivatives": {"with_gradient": True},
  "first and second": {"with_gradient": True, "gradient_orders": 2},
}

# {"save": seconds of each run, "load": seconds of each run, "kB": size of saved_model.pb}
Numbers = dict[str, Any]


def rows() -> list[str]:
  """Each model, saved in each way."""
  return [f"{name}: {way}" for name in (_TRANSFORMER, _MINILM) for way in _OPTIONS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Saves and loads each row in two processes."""
  for row in names:
    with tempfile.TemporaryDirectory(prefix="jax2tf-saving-") as folder:
      numbers = {
        "save": workers.alone(saved, *row.split(": "), folder),
        "load": workers.alone(loaded, folder),
        "kB": Path(folder, "1", "saved_model.pb").stat().st_size / 1e3,
      }
    yield row, numbers


def saved(name: str, way: str, folder: str) -> list[float]:
  """Seconds to build and save a model, each time with a new trace, as `folder/<run>`. The first run
  does not count: it includes what JAX and TensorFlow do once per process."""
  if name == _MINILM:
    fun, params, constraints = minilm.encode, minilm.parameters(), ["s<=512"]
    inputs = {"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"}
  else:
    [x] = MODELS[name].args
    fun, params, constraints = MODELS[name].in_jax, MODELS[name].params, []
    inputs = {"x": str(Spec.of(x))}
  shared: dict[str, Any] = {
    "inputs": inputs,
    "outputs": ["y"],
    "polymorphic_constraints": constraints,
  }

  def save(run: int) -> None:
    jax.clear_caches()
    saved_model.save(fun, params, folder, version=run, **shared, **_OPTIONS[way])

  return [_seconds(save, run) for run in range(_RUNS + 1)][1:]


def loaded(folder: str) -> list[float]:
  """Seconds to load a SavedModel, after the first one, which initialises TensorFlow."""
  return [_seconds(tf.saved_model.load, f"{folder}/{run}") for run in range(_RUNS + 1)][1:]


def _seconds(call: Callable[..., Any], *args: Any) -> float:
  start = time.perf_counter()
  call(*args)
  return time.perf_counter() - start
