"""Times to save and to load whole models, and the sizes of their graphs."""

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
from jax2tf.tools.lab.speed_rows.harness import Row
from jax2tf.tools.lab.speed_rows.models import MODELS

_RUNS = 5
_MINILM = "MiniLM"
# What is saved -> options of `saved_model.save`.
_OURS: Mapping[str, Mapping[str, Any]] = {
  "no gradient": {},
  "first derivatives": {"with_gradient": True},
  "first and second": {"with_gradient": True, "gradient_orders": 2},
}
_HAND = "hand-written TensorFlow"

# {"save": seconds of each run, "load": seconds of each run, "kB": size of saved_model.pb}
Numbers = dict[str, Any]


def rows() -> list[str]:
  """Each model, saved in each way."""
  of_models = [f"{name}: {way}" for name in MODELS for way in (_HAND, *_OURS)]
  return [*of_models, *(f"{_MINILM}: {way}" for way in _OURS)]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Saves and loads each row in two processes."""
  for row in names:
    name, way = row.split(": ")
    with tempfile.TemporaryDirectory(prefix="jax2tf-saving-") as folder:
      numbers = {
        "save": workers.alone(saved, name, way, folder),
        "load": workers.alone(loaded, folder),
        "kB": Path(folder, "0", "saved_model.pb").stat().st_size / 1e3,
      }
    yield row, numbers


def saved(name: str, way: str, folder: str) -> list[float]:
  """Seconds to build and save a model, each time with a new trace, as `folder/<run>`."""
  # excludes what JAX and TensorFlow do once per process
  _save(next(iter(MODELS)), way, f"{folder}/first", 0)
  return [_seconds(_save, name, way, folder, run) for run in range(_RUNS)]


def _save(name: str, way: str, folder: str, run: int) -> None:
  jax.clear_caches()
  if way == _HAND:
    _save_by_hand(MODELS[name], f"{folder}/{run}")
    return
  inputs: dict[str, str]
  if name == _MINILM:
    fun, params = minilm.encode, minilm.parameters()
    inputs = {"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"}
    constraints = ["s<=512"]
  else:
    fun, params, [x] = MODELS[name].in_jax, MODELS[name].params, MODELS[name].args
    inputs, constraints = {"x": str(Spec.of(x))}, []
  saved_model.save(
    fun,
    params,
    folder,
    inputs=inputs,
    outputs=["y"],
    version=run,
    polymorphic_constraints=constraints,
    **_OURS[way],
  )


def _save_by_hand(model: Row, folder: str) -> None:
  module, in_tf, [x] = tf.Module(), model.in_tf, model.args
  assert in_tf
  module.params = tf.nest.map_structure(tf.Variable, model.params)
  call = tf.function(lambda x: {"y": in_tf(module.params, x)}, autograph=False)
  signature = call.get_concrete_function(tf.TensorSpec(x.shape, x.dtype, name="x"))
  tf.saved_model.save(module, folder, signatures=signature)


def loaded(folder: str) -> list[float]:
  """Seconds to load a SavedModel, after the first one, which initialises TensorFlow."""
  tf.saved_model.load(f"{folder}/first/0")
  return [_seconds(tf.saved_model.load, f"{folder}/{run}") for run in range(_RUNS)]


def _seconds(call: Callable[..., Any], *args: Any) -> float:
  start = time.perf_counter()
  call(*args)
  return time.perf_counter() - start
