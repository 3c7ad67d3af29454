"""Times and sizes of lowering rules at two sizes, n and 8n, without XLA, against jax.jit.

JAX's LAPACK is OpenBLAS, whose threads spin while they wait. On busy cores that slows it down by a
factor of hundreds, so it gets one thread: OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf

import jax2tf
from jax2tf.tools.lab import measure, workers
from jax2tf.tools.lab.speed_rows.rule_rows import ROWS, Row
from tests.support.measure import nodes

_SECONDS = 0.4  # of measurement for each way at each size
_FACTOR = 8  # between the sizes
# A way is flagged if its exponent is this much above JAX's or its ratio above this limit, and the
# larger size takes enough time.
WORSE_EXPONENT, SLOW, MATTERS_MS = 0.3, 5.0, 1.0

# {"nodes": [n, 8n], "tf_ms": [n, 8n], "jax_ms": [n, 8n], "flags": [...]}
Numbers = dict[str, Any]


def rows() -> list[str]:
  """The functions."""
  return [*ROWS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Numbers]]]:
  """(name, {way: its numbers}) of each function."""
  os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before the process that loads it
  yield from workers.each(_row, [(name,) for name in names], workers.failed)


def _row(name: str) -> tuple[str, dict[str, Numbers]]:
  row = ROWS[name]
  ways = ("forward", "gradient")[: 1 + row.differentiable]
  found = {way: _times(row, way == "gradient") for way in ways}
  jax.clear_caches()
  return name, found


def _times(row: Row, gradient: bool) -> Numbers:
  """The numbers of a way. A flagged measurement is repeated, and stays flagged if the repetition
  agrees."""
  built = [_calls(row, n, gradient) for n in (row.n, _FACTOR * row.n)]
  runs = []
  for _ in range(2):
    ms = [
      measure.milliseconds({"tf_ms": in_tf, "jax_ms": in_jax}, _SECONDS, warmup=1, least=3)
      for _, in_tf, in_jax in built
    ]
    numbers: Numbers = {"nodes": [nodes for nodes, *_ in built]} | {
      who: [times[who] for times in ms] for who in ms[0]
    }
    runs.append(numbers | {"flags": _flags(numbers)})
    if not set(runs[0]["flags"]) - {"nodes"}:
      break
  best = min(runs, key=lambda run: ratio(run, 1))
  return best | {"flags": [flag for flag in runs[0]["flags"] if flag in runs[-1]["flags"]]}


def _loss(fun: Callable[..., Any]) -> Callable[..., jax.Array]:
  """The sum of squares of the floating point results. Their cotangents are twice the results."""

  def loss(*args: Any) -> jax.Array:
    leaves = [y for y in jax.tree.leaves(fun(*args)) if jnp.issubdtype(y.dtype, jnp.inexact)]
    return sum((jnp.sum(jnp.real(y * jnp.conj(y))) for y in leaves), jnp.zeros(()))

  return loss


def _gradients(
  fun: Callable[..., Any], args: Sequence[Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
  """(gradient by a GradientTape, by jax.grad), with respect to all floating point arguments."""
  argnums = tuple(i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.inexact))
  converted = jax2tf.convert(_loss(fun))

  def gradient(*tensors: tf.Tensor) -> Any:
    watched = [tensors[i] for i in argnums]
    with tf.GradientTape() as tape:
      tape.watch(watched)
      loss = converted(*tensors)
    return tape.gradient(loss, watched)

  return gradient, jax.grad(_loss(fun), argnums)


def _calls(row: Row, n: int, gradient: bool) -> tuple[int, Callable[[], Any], Callable[[], Any]]:
  """(number of nodes in the graph and its functions, a call in TensorFlow, a call in JAX)."""
  args = row.args(n)
  in_tf, in_jax = (
    _gradients(row.fun, args)
    if gradient
    else (jax2tf.convert(row.fun, with_gradient=False), row.fun)
  )
  tensors, arrays = [tf.constant(x) for x in args], [jnp.asarray(x) for x in args]
  concrete = tf.function(in_tf, autograph=False).get_concrete_function(*tensors)
  jitted = jax.jit(in_jax)
  return (
    len(nodes(concrete.graph)),
    lambda: concrete(*tensors),
    lambda: jax.block_until_ready(jitted(*arrays)),
  )


def ratio(numbers: Numbers, size: int) -> float:
  """The ratio of TensorFlow's time to JAX's, at the smaller (0) or larger (1) size."""
  return numbers["tf_ms"][size] / numbers["jax_ms"][size]


def exponent(times: Sequence[float]) -> float:
  """The exponent x in time ~ n**x."""
  return math.log(times[1] / times[0]) / math.log(_FACTOR)


def _flags(numbers: Numbers) -> list[str]:
  matters = numbers["tf_ms"][1] > MATTERS_MS
  found = {
    "growth": matters and exponent(numbers["tf_ms"]) > exponent(numbers["jax_ms"]) + WORSE_EXPONENT,
    "slow": matters and ratio(numbers, 1) > SLOW,
    "nodes": numbers["nodes"][1] > numbers["nodes"][0],
  }
  return [name for name, flagged in found.items() if flagged]
