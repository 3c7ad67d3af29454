"""JAX's own harnesses there and back: exported, serialized, and read by `stablehlo.load`.

The reference is `jax.jit` of the harness, the tolerance that of its group in `tolerances.py`.
"""

from __future__ import annotations

import random
import warnings
import zlib
from typing import Any

import jax
import numpy as np

from jax2tf import stablehlo
from jax2tf.errors import LoweringError
from tests.support.conformance import harnesses, symbolic_batch
from tests.support.conformance.harnesses import X64, Outcome, compare, load, outcome_of

WAYS = ("artifact", "symbolic")


def sample(size: int) -> list[str]:
  """A seeded sample with at least one harness of each group."""
  return harnesses.sample(size, seed=41)


def symbolic_sample(size: int) -> list[str]:
  """As `sample`, of those whose arguments can be batched."""
  names = [name for name in sample(4 * size) if load()[name].dyn_args_maker(_rng(name))]
  return sorted(random.Random(41).sample(names, min(size, len(names))))


def _rng(name: str) -> np.random.RandomState:
  return np.random.RandomState(zlib.crc32(name.encode()))


def run(name: str, way: str) -> Outcome:
  """One harness; never raises. If its artifact is refused, it is a `limit`, with the reason."""
  harness, outcome = load()[name], outcome_of(name, way)
  with jax.enable_x64(name.endswith(X64)), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
      blob, calls = (_fixed if way == "artifact" else _batched)(name, harness)
    except Exception as error:  # JAX itself cannot run or export it
      return outcome("skip", detail=f"JAX: {type(error).__name__}: {error}"[:200])
    try:
      function = jax.jit(stablehlo.load(blob))
      for args, expected in calls:
        result = compare(harness, args, function(*args), expected, outcome, "graph")
        if result.status == "fail":
          break
      return result
    except LoweringError as error:
      return outcome("limit", detail=" ".join(str(error).split())[:600])
    except Exception as error:
      return outcome("fail", detail=f"{type(error).__name__}: {error}"[:2000])


def _fixed(name: str, harness: Any) -> tuple[bytes, list[Any]]:
  """(the artifact, [(arguments, JAX's results)])."""
  args = list(harness.dyn_args_maker(_rng(name)))
  jitted = jax.jit(lambda *args: harness.dyn_fun(*args))
  expected = jax.block_until_ready(jitted(*args))
  return bytes(jax.export.export(jitted)(*args).serialize()), [(args, expected)]


def _batched(name: str, harness: Any) -> tuple[bytes, list[Any]]:
  """The same of the harness, vmapped over an axis of symbolic size; called with two sizes."""
  fun, batches = symbolic_batch.batched(name, harness, symbolic_batch.SIZES)
  jitted = jax.jit(fun)
  calls = [(batch, jax.block_until_ready(jitted(*batch))) for batch in batches]
  specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batches[0]]
  symbolic = jax.export.symbolic_args_specs(specs, [symbolic_batch.SPEC] * len(specs))
  return bytes(jax.export.export(jitted)(*symbolic).serialize()), calls
