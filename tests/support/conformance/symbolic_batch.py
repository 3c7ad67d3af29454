"""JAX's own harnesses, vmapped over a symbolic batch: converted once, run at several batch sizes.

The leading axis of every dynamic argument is `b`; a harness without arguments is batched over one
that it does not use. The reference is JAX at the concrete size, the tolerance that of the harness's
group in `tolerances.py`.
"""

from __future__ import annotations

import functools
import random
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from tests.support.case import xla_ops
from tests.support.conformance.harnesses import Outcome, compare, load

WAY = "symbolic_batch"
SIZES = (1, 3)
SPEC = "b, ..."


def cases() -> dict[str, str]:
  """{group: a harness of it}: a seeded choice among those of a floating dtype, or among all where
  there is none."""
  of_group: dict[str, list[str]] = {}
  for name, harness in sorted(load().items()):
    of_group.setdefault(harness.group_name, []).append(name)
  return {
    group: random.Random(group).choice(list(filter(_is_floating, names)) or names)
    for group, names in sorted(of_group.items())
  }


def _is_floating(name: str) -> bool:
  dtype = load()[name].dtype
  return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def run(name: str, sizes: Sequence[int] = SIZES) -> Outcome:
  """One harness: passed, failed, or skipped with JAX's own reason; never raises."""
  harness = load()[name]
  outcome = functools.partial(
    Outcome, name, harness.group_name, str(harness.dtype and np.dtype(harness.dtype)), WAY
  )
  with jax.enable_x64(name.endswith("@x64")), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
      fun, batches = batched(name, harness, sizes)
      references = [jax.block_until_ready(jax.jit(fun)(*batch)) for batch in batches]
      specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batches[0]]
      jax.eval_shape(fun, *jax.export.symbolic_args_specs(specs, [SPEC] * len(specs)))
    except Exception as error:  # JAX itself cannot batch it
      return outcome("skip", detail=f"JAX: {type(error).__name__}: {error}"[:2000])
    try:
      concrete = _concrete_function(fun, batches[0])
      if found := xla_ops(concrete.graph):
        return outcome("fail", detail=f"Xla ops in the graph: {found}")
      for batch, reference in zip(batches, references, strict=True):
        result = compare(
          harness, batch, concrete(*map(tf.constant, batch)), reference, outcome, "graph"
        )
        if result.status == "fail":
          break
      return result
    except Exception as error:
      return outcome("fail", detail=f"{type(error).__name__}: {error}"[:2000])


def batched(name: str, harness: Any, sizes: Sequence[int]) -> tuple[Any, list[list[Any]]]:
  """(the vmapped function, its arguments for each size); every row of a batch has its own
  values."""
  seed = zlib.crc32(name.encode())
  rows = [
    harness.dyn_args_maker(np.random.RandomState((seed + i) % 2**32)) for i in range(max(sizes))
  ]
  if not rows[0]:
    return jax.vmap(lambda _: harness.dyn_fun()), [[np.zeros(size, np.float32)] for size in sizes]
  return jax.vmap(harness.dyn_fun), [
    [np.asarray(jnp.stack(xs)) for xs in zip(*rows[:size], strict=True)] for size in sizes
  ]


def _concrete_function(fun: Any, batch: Sequence[Any]) -> Any:
  """The graph of the conversion of `fun`, which does not know the batch size."""
  converted = jax2tf.convert(fun, polymorphic_shapes=[SPEC] * len(batch))
  return tf.function(converted, autograph=False).get_concrete_function(
    *[tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in batch]
  )
