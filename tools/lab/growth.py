"""Measures the cost of converting and differentiating long and deep functions: the report growth.

Usage: python -m jax2tf.tools.lab.growth from a checkout, on Linux. It measures a chain of
elementwise equations of three lengths (time, nodes, peak memory), converted and hand-written in
TensorFlow. It also measures the gradient of a scanned transformer of 24 layers with and without
jax.checkpoint (peak memory), converted and in JAX. Each measurement runs in its own process,
because a peak is per process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import tqdm
from absl import logging
from jax import lax

import jax2tf
from jax2tf.examples.palette import COLOURS
from jax2tf.tools.lab import measure, reports
from tests.support.measure import nodes, peak_megabytes

_LENGTHS = (300, 3_000, 30_000)
# For the hand-written gradient TensorFlow's optimiser takes time quadratic in the length; 3,000 is
# enough to show it.
_MEASUREMENTS = (
  *(("chain", "ours", n) for n in _LENGTHS),
  *(("chain", "hand", n) for n in _LENGTHS[:2]),
  *(("transformer", who, remat) for remat in (False, True) for who in ("jax", "ours")),
)

Numbers = dict[str, float]


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


# -----------------------------------------------------------------------------------------------
# report


def _row(what: str, who: str, argument: Any) -> str:
  return (
    f"{what} {argument}, {who}"
    if what == "chain"
    else f"{what}{' with jax.checkpoint' * argument}, {who}"
  )


_ROWS = [_row(*measurement) for measurement in _MEASUREMENTS]
_CHAIN_COLUMNS = ("trace", "trace vjp", "inference", "gradient", "first run")


def _markdown(report: dict[str, Any]) -> str:
  lines = [
    "# The cost of long and deep functions",
    "",
    "Generated by `python -m jax2tf.tools.lab.growth`; do not edit. Each line was measured in "
    "its own process.",
    "",
    "A chain of n equations, `x = sin(x) * 1.01 + 0.1`, of f32[8]. The columns are microseconds "
    "for each equation. *Trace*: `make_jaxpr`.",
    "*Trace vjp*: the same for `jax.vjp`. *Inference*: trace and graph without gradient. "
    "*Gradient*: trace and graph of the value and the",
    "`tf.GradientTape` gradient. *First run*: the first run of that graph, mostly TensorFlow's "
    "optimiser. *Nodes* and *peak* are those of",
    "the gradient. *Hand* is the same chain in TensorFlow; its first run grows with the square of "
    "n, so 30,000 is not measured.",
    "",
    f"The transformer has {_LAYERS} layers in a scan, width {_WIDTH}, sequence {_LENGTH}, batch "
    f"{_BATCH}; value and gradient by all",
    "weights. *Peak* is the memory of the first run above that before it, after everything is "
    "traced and compiled.",
    "",
  ]
  for version, section in sorted(report.items()):
    lines += [f"## JAX {version}, TensorFlow {tf.__version__}", ""]
    lines += [
      "| n | who | " + " | ".join(f"{name} µs" for name in _CHAIN_COLUMNS) + " | nodes | peak MB |",
      "|---" * 9 + "|",
    ]
    for what, who, n in _MEASUREMENTS:
      if what == "chain" and (numbers := section.get(_row(what, who, n))):
        cells = [
          f"{1e6 * numbers[name] / n:.0f}" if name in numbers else "" for name in _CHAIN_COLUMNS
        ]
        lines += [
          f"| {n:,} | {who} | "
          + " | ".join(cells)
          + f" | {numbers['nodes']:,.0f} | {numbers['peak MB']:.0f} |"
        ]
    lines += [
      "",
      "| gradient of the transformer | peak MB, jax.jit | peak MB, ours | ratio | seconds, "
      "jax.jit | seconds, ours |",
    ]
    lines += ["|---" * 6 + "|"]
    for remat in (False, True):
      jaxs, ours = (section.get(_row("transformer", who, remat)) for who in ("jax", "ours"))
      if jaxs and ours:
        cells = [
          f"{jaxs['peak MB']:.0f}",
          f"{ours['peak MB']:.0f}",
          f"**{ours['peak MB'] / jaxs['peak MB']:.2f}**",
        ]
        cells += [f"{jaxs['seconds']:.2f}", f"{ours['seconds']:.2f}"]
        lines += [
          f"| {'with' if remat else 'without'} jax.checkpoint | " + " | ".join(cells) + " |"
        ]
    lines += [""]
  return "\n".join([*lines, "![growth](growth.png)", ""])


def picture(report: dict[str, Any]) -> None:
  """Plots seconds against the length of the chain: a panel for each step, a colour for each
  runtime, a style for each version."""
  pyplot = measure.pyplot()
  steps = {
    "inference": "to make the graph",
    "gradient": "to make its gradient",
    "first run": "to run it the first time",
  }
  figure, panels = pyplot.subplots(
    1, len(steps), figsize=(13, 4.4), layout="constrained", sharey=True
  )
  for axes, (step, title) in zip(panels, steps.items(), strict=True):
    for (version, section), style in zip(sorted(report.items()), ("--", "-"), strict=False):
      for who, label in (("ours", "jax2tf"), ("hand", "TensorFlow by hand")):
        lengths = [n for n in _LENGTHS if _row("chain", who, n) in section]
        seconds = [section[_row("chain", who, n)][step] for n in lengths]
        axes.loglog(
          lengths,
          seconds,
          style,
          color=COLOURS[who],
          marker="o",
          markersize=5,
          label=f"{label}, JAX {version}",
        )
    axes.set(xlabel="equations of the function", title=title)
    axes.grid(alpha=0.3)
  panels[0].set_ylabel("seconds")
  figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
  figure.savefig(reports.picture("growth.png"), dpi=110)
  pyplot.close(figure)


@click.command
@click.option(
  "--one", default="", help="Internal: the single measurement of this process, as JSON."
)
def main(one: str) -> None:
  """Measures everything and writes the report."""
  logging.set_verbosity(logging.WARNING)  # JAX logs the accelerators that it did not find
  if one:
    what, who, argument = json.loads(one)
    print(json.dumps(chain(who, argument) if what == "chain" else transformer(who, argument)))
    return
  section: dict[str, Numbers] = {}
  progress = tqdm.tqdm(_MEASUREMENTS, unit="measurement")
  for measurement in progress:
    progress.set_postfix_str(_row(*measurement))
    command = [sys.executable, "-m", "jax2tf.tools.lab.growth", f"--one={json.dumps(measurement)}"]
    section[_row(*measurement)] = json.loads(
      subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    )
  reports.update("growth", section, _ROWS, _markdown, picture)


if __name__ == "__main__":
  main()
