"""What long and deep functions cost to convert and to differentiate; on Linux.

A chain of elementwise equations (time, nodes, peak memory), converted and hand-written in
TensorFlow; the gradient of a scanned transformer of 24 layers with and without jax.checkpoint (peak
memory), converted and in JAX. Each row is measured in its own process, because a peak is per
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf.tools.lab import workers
from tests.support.measure import nodes, peak_megabytes

Numbers = dict[str, float]


def rows() -> list[str]:
  """The chains and the transformers."""
  return [*_ROWS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """The numbers of each row, measured in its own process."""
  for name in names:
    yield name, workers.alone(*_ROWS[name])


# -----------------------------------------------------------------------------------------------
# chain


def _chain(n: int, sin: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """f32[8] -> f32[8] by n equations: sine, product and sum in turn."""

  def chain(x: Any) -> Any:
    for _ in range(n // 3):
      x = sin(x) * 1.01 + 0.1
    return x

  return chain


def chain(who: str, n: int) -> Numbers:
  """Seconds, nodes and megabytes from the function to its first gradient; `who` is "ours" or
  "hand"."""
  spec = tf.TensorSpec([8])
  numbers: Numbers = {}

  def timed(name: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = call()
    numbers[name] = time.perf_counter() - start
    return result

  def build(fun: Callable[..., Any]) -> Any:
    return tf.function(fun, autograph=False).get_concrete_function(spec)

  def convert(**options: Any) -> Callable[..., Any]:
    return jax2tf.convert(_chain(n, jnp.sin), **options) if who == "ours" else _chain(n, tf.sin)

  def gradient(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = converted(x)
    return tape.gradient(y, x)

  def everything() -> None:
    graph = timed("gradient", lambda: build(gradient))
    numbers["nodes"] = len(nodes(graph.graph))
    timed("first run", lambda: graph(tf.ones([8])))

  build(jax2tf.convert(jnp.sin))  # excludes what JAX and TensorFlow do once per process
  if who == "ours":
    timed("trace", lambda: jax.make_jaxpr(_chain(n, jnp.sin))(np.ones(8, np.float32)))
    timed(
      "trace vjp",
      lambda: jax.make_jaxpr(lambda x: jax.vjp(_chain(n, jnp.sin), x))(np.ones(8, np.float32)),
    )
  timed("inference", lambda: build(convert(with_gradient=False)))
  converted = convert()
  numbers["peak MB"] = peak_megabytes(everything)
  return numbers


# -----------------------------------------------------------------------------------------------
# transformer

_LAYERS, _WIDTH, _LENGTH, _BATCH, _HEADS = 24, 128, 256, 12, 4


def _layer(x: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
  def normal(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

  *qkv, out, up, down = weights
  q, k, v = (jnp.reshape(normal(x) @ w, (*x.shape[:2], _HEADS, -1)) for w in qkv)
  attention = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]))
  x = x + jnp.reshape(jnp.einsum("bhqk,bkhd->bqhd", attention, v), x.shape) @ out
  return x + jax.nn.gelu(normal(x) @ up) @ down


def transformer(who: str, remat: bool) -> Numbers:
  """Megabytes and seconds of value and gradient; `who` is "ours" or "jax"."""
  layer = jax.checkpoint(_layer) if remat else _layer

  def loss(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    y, _ = lax.scan(lambda x, weights: (layer(x, weights), None), x, weights)
    return jnp.mean(y**2)

  random = np.random.default_rng(0)
  shapes = [*[(_WIDTH, _WIDTH)] * 4, (_WIDTH, 4 * _WIDTH), (4 * _WIDTH, _WIDTH)]
  weights = [
    random.standard_normal((_LAYERS, *shape), np.float32) * np.float32(0.05) for shape in shapes
  ]
  x = random.standard_normal((_BATCH, _LENGTH, _WIDTH), np.float32)
  if who == "jax":
    arrays = jax.tree.map(jnp.asarray, (weights, x))
    compiled = jax.jit(jax.value_and_grad(loss)).lower(*arrays).compile()
    return _first_run(lambda: jax.block_until_ready(compiled(*arrays)))
  variables, tensor, converted = (
    [tf.Variable(w) for w in weights],
    tf.constant(x),
    jax2tf.convert(loss),
  )

  def value_and_grad(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      value = converted(variables, x)
    return value, tape.gradient(value, variables)

  graph = tf.function(value_and_grad, autograph=False).get_concrete_function(tensor)
  return _first_run(lambda: graph(tensor))


def _first_run(call: Callable[[], Any]) -> Numbers:
  """The peak of the first run, because neither library returns memory; the time of the second run,
  after all optimisation."""
  peak = peak_megabytes(call)
  start = time.perf_counter()
  call()
  return {"peak MB": peak, "seconds": time.perf_counter() - start}


# For the hand-written gradient TensorFlow's optimiser takes time quadratic in the length; 3,000 is
# enough to show it.
_ROWS: dict[str, tuple[Any, ...]] = {
  **{f"chain {n}, ours": (chain, "ours", n) for n in (300, 3_000, 30_000)},
  **{f"chain {n}, hand": (chain, "hand", n) for n in (300, 3_000)},
  **{f"transformer, {who}": (transformer, who, False) for who in ("jax", "ours")},
  **{
    f"transformer with jax.checkpoint, {who}": (transformer, who, True) for who in ("jax", "ours")
  },
}
