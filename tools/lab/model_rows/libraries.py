"""Functions of scientific libraries against `jax.jit`: value, gradient, both after a SavedModel.

In float64, because adaptive steps amplify rounding errors. EQX_ON_ERROR=nan, because Equinox's
checks are callbacks otherwise.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf.tools.lab import workers
from tests.support import scientific_rows

_WAYS = ("value", "gradient", "SavedModel")
_MODULES = {"mujoco-mjx": "mujoco"}  # where it has another name than the library
_SECONDS = 900  # the time limit of a row

# {"version": of the library, way: the largest difference from JAX, relative to its largest value,
# or the reason why there is none}
Numbers = dict[str, str]


def rows() -> list[str]:
  """Those of the libraries that are installed."""
  found = []
  with jax.enable_x64(True):
    for library, functions in scientific_rows.LIBRARIES.items():
      if importlib.util.find_spec(_MODULES.get(library, library)) is None:
        print(f"{library} is not installed")
        continue
      found += [f"{library}: {name}" for name, *_ in functions()]
  return found


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Each row in another process."""
  os.environ.setdefault("EQX_ON_ERROR", "nan")  # before the processes that import Equinox
  tasks = [tuple(name.split(": ", 1)) for name in names]
  yield from workers.each(_row, tasks, _lost, renewed_after=6, seconds=_SECONDS)


def _row(library: str, name: str) -> tuple[str, Numbers]:
  with jax.enable_x64(True):
    fun, given = scientific_rows.row(library, name)
    numbers = dict(zip(_WAYS, _differences(fun, [np.asarray(x) for x in given]), strict=True))
  return f"{library}: {name}", {"version": importlib.metadata.version(library)} | numbers


def _lost(error: workers.LostError, library: str, name: str) -> tuple[str, Numbers]:
  return f"{library}: {name}", dict.fromkeys(_WAYS, str(error)[:160])


def _differences(fun: Callable[..., Any], args: Sequence[np.ndarray]) -> Iterator[str]:
  """What stands in the columns, in their order."""
  expected = jax.jit(fun)(*args)
  wrt = [i for i, x in enumerate(args) if x.dtype.kind == "f"]

  def loss(*changing: Any) -> Any:
    operands = list(args)
    for i, x in zip(wrt, changing, strict=True):
      operands[i] = x
    return sum(jnp.sum(y**2) for y in jax.tree.leaves(fun(*operands)))

  try:
    gradients = jax.jit(jax.grad(loss, range(len(wrt))))(*(args[i] for i in wrt))
  except Exception as error:
    gradients, none = None, f"JAX has none: {_words(error)}"
  converted = jax2tf.convert(fun, with_gradient=gradients is not None)
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in args]
  function = tf.function(converted, autograph=False, input_signature=specs)

  def pull(function: Any) -> Any:
    watched = [tf.constant(x) for x in args]
    with tf.GradientTape() as tape:
      tape.watch([watched[i] for i in wrt])
      y = sum(tf.reduce_sum(y**2) for y in tf.nest.flatten(function(*watched)))
    return tape.gradient(y, [watched[i] for i in wrt])

  def saved() -> float:
    module = tf.Module()
    module.f = function
    with tempfile.TemporaryDirectory() as folder:
      tf.saved_model.save(module, folder)
      loaded = tf.saved_model.load(folder).f
    error = _difference(loaded(*args), expected)
    return error if gradients is None else max(error, _difference(pull(loaded), gradients))

  yield _shown(lambda: _difference(function(*args), expected))
  yield none if gradients is None else _shown(lambda: _difference(pull(function), gradients))
  yield _shown(saved)


def _shown(measured: Callable[[], float]) -> str:
  try:
    return f"{measured():.0e}"
  except Exception as error:
    return _words(error)


def _words(error: Exception) -> str:
  lines = [line for line in str(error).splitlines() if line.strip()] or [""]
  line = lines[1] if isinstance(error, jax2tf.LoweringError) else lines[0]
  return f"{type(error).__name__}: {line}"[:160].replace("|", "/")


def _difference(actual: Any, expected: Any) -> float:
  found = [0.0]
  for x, y in zip(tf.nest.flatten(actual), jax.tree.leaves(expected), strict=True):
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
      return float("inf")
    largest = np.abs(b[np.isfinite(b)]).max(initial=0.0) or 1.0
    found.append(np.abs(np.where(np.isfinite(a), a - b, 0.0)).max(initial=0.0) / largest)
  return max(found)
