"""Whole models against jax.jit and hand-written TensorFlow: docs/reports/speed.md,
docs/reports/data/speed.json and docs/reports/speed.png.

Usage: python -m jax2tf.tools.lab.speed [--models=regular expression]. jax.jit, the hand-written
graph and the converted one run interleaved in one process, without XLA in TensorFlow, so that noise
of the machine affects all and ratios stay valid.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import tqdm
from absl import logging
from jax.extend.core import jaxprs_in_params

import jax2tf
from jax2tf.examples.palette import COLOURS
from jax2tf.tools.lab import measure, reports
from jax2tf.tools.lab.speed_models import MODELS, Model
from tests.support.case import executed_op_types
from tests.support.measure import nodes

_WAYS = ("forward", "value and gradient")
# The ways with ordinary ops, whose graphs show what runs.
_OF_OPS = ("hand", "ours", "fused")
# The columns of ratios: a way over another.
_RATIOS = (
  ("ours", "jax"),
  ("ours", "hand"),
  ("fused", "hand"),
  ("hand", "jax"),
  ("native", "jax"),
  ("native xla", "jax"),
)
_CONTRACTIONS = re.compile("MatMul|Conv[23]D|Conv2d|Einsum")

# {"ms": {"jax", "hand", "ours", "fused", "native", "native xla": medians of five runs}, "nodes":
# {"hand", "ours", "fused"}, "executed": {...}, "contractions": {"jax", "hand", "ours", "fused"}}
Numbers = dict[str, Any]


def _loss_in_jax(model: Model) -> Callable[..., Any]:
  return lambda params, x: jnp.mean(jnp.square(model.in_jax(params, x)))


def _gradient_in_tf(loss: Callable[..., Any]) -> Callable[..., Any]:
  def value_and_gradient(params: Any, x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      value = loss(params, x)
    return value, tf.nest.pack_sequence_as(params, tape.gradient(value, tf.nest.flatten(params)))

  return value_and_gradient


def functions(
  model: Model, gradient: bool
) -> tuple[Callable[..., Any], dict[str, Callable[..., Any]]]:
  """(in JAX, {hand-written, converted, with fused idioms, natively}): each a function (params, x)
  -> result, or value and gradient."""
  natively = functools.partial(jax2tf.convert, native_serialization=True)
  fused = functools.partial(jax2tf.convert, idioms="fused")
  if not gradient:
    return model.in_jax, {
      "hand": model.in_tf,
      "ours": jax2tf.convert(model.in_jax),
      "fused": fused(model.in_jax),
      "native": natively(model.in_jax),
    }
  loss = _loss_in_jax(model)
  losses = {
    "hand": lambda params, x: tf.reduce_mean(tf.square(model.in_tf(params, x))),
    "ours": jax2tf.convert(loss),
    "fused": fused(loss),
    "native": natively(loss),
  }
  return jax.value_and_grad(loss), {name: _gradient_in_tf(f) for name, f in losses.items()}


def measured(model: Model, gradient: bool, seconds: float) -> Numbers:
  """The numbers of a model. Raises if values differ from JAX's, or if more contractions run than
  JAX has."""
  in_jax, ways = functions(model, gradient)
  params, x = model.params(), model.x()
  variables, tensor = tf.nest.map_structure(tf.Variable, params), tf.constant(x)
  arrays = jax.tree.map(jnp.asarray, (params, x))
  jitted = jax.jit(in_jax)
  in_tf = {
    name: tf.function(lambda x, f=f: f(variables, x), autograph=False) for name, f in ways.items()
  }
  in_tf["native xla"] = tf.function(
    lambda x: ways["native"](variables, x), autograph=False, jit_compile=True
  )
  executed = {name: executed_op_types(in_tf[name], tensor) for name in _OF_OPS}
  graphs = {name: function.get_concrete_function(tensor) for name, function in in_tf.items()}
  expected = jax.tree.leaves(jitted(*arrays))
  for name, graph in graphs.items():
    _assert_close(tf.nest.flatten(graph(tensor)), expected, f"{name}, {model.name}")
  calls = {"jax": lambda: jax.block_until_ready(jitted(*arrays))} | {
    n: lambda g=g: _finished(g(tensor)) for n, g in graphs.items()
  }
  contractions = {"jax": _jaxpr_contractions(jax.make_jaxpr(in_jax)(*arrays).jaxpr)}
  contractions |= {
    name: sum(bool(_CONTRACTIONS.search(op)) for op in ops) for name, ops in executed.items()
  }
  if (most := max(contractions["ours"], contractions["fused"])) > contractions["jax"]:
    raise AssertionError(
      f"{model.name}: {most} matmuls and convolutions run, JAX has {contractions['jax']}"
    )
  return {
    "ms": measure.runs(calls, seconds),
    "nodes": {name: len(nodes(graphs[name].graph)) for name in _OF_OPS},
    "executed": {name: len(ops) for name, ops in executed.items()},
    "contractions": contractions,
  }


def _finished(results: Any) -> Any:
  """The last result as NumPy, to make sure that the computation is done. On CPU it is done when the
  call returns."""
  return tf.nest.flatten(results)[-1].numpy()


def _assert_close(actual: Sequence[Any], expected: Sequence[Any], what: str) -> None:
  """Raises unless values are equal up to rounding, relative to the largest value: some gradients,
  as of key biases, are only rounding."""
  largest = max(float(np.abs(e).max()) for e in map(np.asarray, expected))
  for a, e in zip(actual, expected, strict=True):
    np.testing.assert_allclose(
      np.asarray(a), np.asarray(e), rtol=1e-4, atol=2e-5 * largest, err_msg=what
    )


def _jaxpr_contractions(jaxpr: Any) -> int:
  own = sum(eqn.primitive.name in ("dot_general", "conv_general_dilated") for eqn in jaxpr.eqns)
  return own + sum(
    _jaxpr_contractions(inner) for eqn in jaxpr.eqns for inner in jaxprs_in_params(eqn.params)
  )


def _markdown(report: dict[str, Any]) -> str:
  lines = [
    "# How fast converted models are",
    "",
    "Generated by `python -m jax2tf.tools.lab.speed`; do not edit.",
    "Each model in JAX (`jax.jit`), hand-written in TensorFlow",
    "(`tf.nn`, `tf.while_loop`), and converted by jax2tf, with the same weights in "
    "`tf.Variable`s, in a `tf.function` without XLA on CPU.",
    "The ways are interleaved in one process. Times are medians. Ratios are medians of five runs, "
    "with the least and the most; below 1 is",
    'faster. *Fused* is `idioms="fused"` ([fused.md](../guide/fused.md)). *Native* is '
    "`native_serialization=True`, also in a `tf.function`",
    "with `jit_compile=True`. *Nodes* counts the nodes of the graph as built, *that run* those "
    "after TensorFlow's optimisation.",
    "*Contractions* counts matrix products and convolutions: equations in JAX's jaxpr, ops that "
    "run in TensorFlow. The gradient is that of",
    "the mean of the squared results by all weights, in one `tf.function` with a "
    "`tf.GradientTape`.",
    "",
  ]
  for version, section in sorted(report.items()):
    lines += [f"## JAX {version}, TensorFlow {tf.__version__}", ""]
    lines += [
      "| model | way | jax.jit ms | hand ms | ours ms | ours/jax.jit | ours/hand | fused/hand | "
      "hand/jax.jit |"
    ]
    lines[-1] += (
      " native/jax.jit | with jit_compile | nodes: hand, ours, fused | that run | contractions: "
      "JAX, hand, ours, fused |"
    )
    lines += ["|---" * 14 + "|"]
    lines += [
      line(name, way, numbers) for name, ways in section.items() for way, numbers in ways.items()
    ]
    lines += [""]
  return "\n".join([*lines, "![ratios](speed.png)", ""])


def line(name: str, way: str, numbers: Numbers) -> str:
  """One row of the table."""
  ms, nodes, executed, contractions = (
    numbers[key] for key in ("ms", "nodes", "executed", "contractions")
  )
  cells = [
    name,
    way,
    *(f"{statistics.median(ms[who]):.3g}" for who in ("jax", "hand", "ours")),
    *(measure.spread(measure.ratios(ms, a, b)) for a, b in _RATIOS),
    *(", ".join(map(str, counts.values())) for counts in (nodes, executed, contractions)),
  ]
  return "| " + " | ".join(cells) + " |"


def picture(report: dict[str, Any]) -> None:
  """Plots the times of hand-written TensorFlow and both lowerings relative to jax.jit: a panel for
  each version."""
  pyplot = measure.pyplot()
  figure, panels = pyplot.subplots(
    1,
    len(report),
    figsize=(6.5 * len(report), 4.6),
    layout="constrained",
    sharey=True,
    squeeze=False,
  )
  for axes, (version, section) in zip(panels[0], sorted(report.items()), strict=True):
    rows = [
      (
        f"{re.split('[ ,]', name)[0]}, {way}",
        {who: statistics.median(times) for who, times in numbers["ms"].items()},
      )
      for name, ways in section.items()
      for way, numbers in ways.items()
    ]
    for offset, who, label in (
      (-0.27, "hand", "hand-written TensorFlow"),
      (0, "ours", "jax2tf"),
      (0.27, "native", "jax2tf, native"),
    ):
      axes.barh(
        [i + offset for i in range(len(rows))],
        [ms[who] / ms["jax"] for _, ms in rows],
        0.26,
        color=COLOURS[who],
        label=label,
      )
    axes.axvline(1, color=COLOURS["jax"], linewidth=1, label="jax.jit")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set(xlabel="time of a call, in times of jax.jit's", title=f"JAX {version}")
  panels[0][0].invert_yaxis()
  figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
  figure.savefig(reports.picture("speed.png"), dpi=110)
  pyplot.close(figure)


@click.command
@click.option(
  "--models",
  default="",
  help="Measure only models whose name matches this regular expression; the others keep their "
  "numbers.",
)
@click.option(
  "--seconds",
  type=click.FloatRange(0.01),
  default=10.0,
  help="Seconds of measurement for each model and way.",
)
def main(models: str, seconds: float) -> None:
  """Measures the chosen models and writes the report."""
  logging.set_verbosity(logging.WARNING)  # JAX logs the accelerators that it did not find
  chosen = [(model, way) for model in MODELS if re.search(models, model.name) for way in _WAYS]
  section: dict[str, dict[str, Numbers]] = {}
  progress = tqdm.tqdm(chosen, unit="measurement")
  try:
    for model, way in progress:
      progress.set_postfix_str(f"{model.name}, {way}")
      numbers = measured(model, way != "forward", seconds)
      section.setdefault(model.name, {})[way] = numbers
      progress.write(line(model.name, way, numbers))
  finally:  # an interrupted run keeps the finished models
    whole = {name: ways for name, ways in section.items() if len(ways) == len(_WAYS)}
    reports.update("speed", whole, [model.name for model in MODELS], _markdown, picture)


if __name__ == "__main__":
  main()
