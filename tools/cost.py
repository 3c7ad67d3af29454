"""What the rules cost: docs/cost.md, its numbers docs/cost.json and its picture docs/cost.png.

Usage: OPENBLAS_NUM_THREADS=1 python -m jax2tf.tools.cost [--rows=regular expression] from a checkout. Each row is a function at two
sizes, n and 8n, in a tf.function without XLA and in jax.jit, by turns in one process, because the ratio of two times outlives a noisy
machine. JAX's LAPACK is OpenBLAS, whose threads wait for each other by spinning: on busy cores they cost it a factor of hundreds.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
import tqdm
from absl import app, flags, logging

import jax2tf
from jax2tf.tools.cost_rows import ROWS, Row

_ROWS = flags.DEFINE_string("rows", "", "Only rows whose name matches this regular expression; the others keep their numbers.")
_SECONDS = flags.DEFINE_float("seconds", 0.4, "How long to measure each function at each size.", lower_bound=0.01)

_DOCS = pathlib.Path("docs")
_GROWTH = 8
_WAYS = ("forward", "gradient")
# What is flagged: an exponent this much above JAX's, or a ratio above this, where the time of the larger size matters.
_WORSE_EXPONENT, _SLOW, _MATTERS_MS = 0.3, 5.0, 1.0

# {"nodes": [n, 8n], "tf_ms": [n, 8n], "jax_ms": [n, 8n], "flags": [...]}
Numbers = dict[str, Any]


def _loss(fun: Callable[..., Any]) -> Callable[..., jax.Array]:
  """The sum of the squared floating results, whose cotangents are the results themselves."""

  def loss(*args: Any) -> jax.Array:
    leaves = [y for y in jax.tree.leaves(fun(*args)) if jnp.issubdtype(y.dtype, jnp.inexact)]
    return sum((jnp.sum(jnp.real(y * jnp.conj(y))) for y in leaves), jnp.zeros(()))

  return loss


def _gradients(fun: Callable[..., Any], args: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
  """(with a GradientTape, with jax.grad) by all floating arguments."""
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
  """(nodes of the graph and of its functions, a call of TensorFlow, a call of JAX)."""
  args = row.args(n)
  in_tf, in_jax = _gradients(row.fun, args) if gradient else (jax2tf.convert(row.fun, with_gradient=False), row.fun)
  tensors, arrays = [tf.constant(x) for x in args], [jnp.asarray(x) for x in args]
  concrete = tf.function(in_tf, autograph=False).get_concrete_function(*tensors)
  definition, jitted = concrete.graph.as_graph_def(), jax.jit(in_jax)
  nodes = len(definition.node) + sum(len(function.node_def) for function in definition.library.function)
  return nodes, lambda: concrete(*tensors), lambda: jax.block_until_ready(jitted(*arrays))


def _milliseconds(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
  """The median time of each call, run by turns, after one round to warm up."""
  times: list[list[float]] = [[] for _ in calls]
  for call in calls:
    call()
  end = time.perf_counter() + seconds
  while time.perf_counter() < end or len(times[0]) < 3:
    for call, series in zip(calls, times, strict=True):
      start = time.perf_counter()
      call()
      series.append(time.perf_counter() - start)
  return [1e3 * statistics.median(series) for series in times]


def measured(row: Row, gradient: bool, seconds: float) -> Numbers:
  """The numbers of a row. What is flagged is measured again, and stays flagged if it repeats."""
  built = [_calls(row, n, gradient) for n in (row.n, _GROWTH * row.n)]
  runs = []
  for _ in range(2):
    tf_ms, jax_ms = zip(*(_milliseconds(calls, seconds) for _, *calls in built), strict=True)
    numbers: Numbers = {"nodes": [nodes for nodes, *_ in built], "tf_ms": list(tf_ms), "jax_ms": list(jax_ms)}
    runs.append(numbers | {"flags": _flags(numbers)})
    if not set(runs[0]["flags"]) - {"nodes"}:
      break
  best = min(runs, key=lambda run: ratio(run, 1))
  return best | {"flags": [flag for flag in runs[0]["flags"] if flag in runs[-1]["flags"]]}


def ratio(numbers: Numbers, size: int) -> float:
  """TensorFlow's time over JAX's, at the smaller (0) or the larger (1) size."""
  return numbers["tf_ms"][size] / numbers["jax_ms"][size]


def exponent(times: Sequence[float]) -> float:
  """The x of time ~ n**x."""
  return math.log(times[1] / times[0]) / math.log(_GROWTH)


def _flags(numbers: Numbers) -> list[str]:
  matters = numbers["tf_ms"][1] > _MATTERS_MS
  found = {
    "growth": matters and exponent(numbers["tf_ms"]) > exponent(numbers["jax_ms"]) + _WORSE_EXPONENT,
    "slow": matters and ratio(numbers, 1) > _SLOW,
    "nodes": numbers["nodes"][1] > numbers["nodes"][0],
  }
  return [name for name, flagged in found.items() if flagged]


def write(section: dict[str, dict[str, Numbers]]) -> None:
  """Puts the rows of the installed JAX into the report, next to those of other versions."""
  path = _DOCS / "cost.json"
  report = json.loads(path.read_text()) if path.exists() else {}
  known = report.get(jax.__version__, {}) | section
  report[jax.__version__] = {row.name: known[row.name] for row in ROWS if row.name in known}
  rounded = json.loads(json.dumps(report), parse_float=lambda text: float(f"{float(text):.4g}"))
  path.write_text(json.dumps(rounded, indent=1) + "\n")
  (_DOCS / "cost.md").write_text(_markdown(rounded))
  _picture(rounded)


def _markdown(report: dict[str, Any]) -> str:
  reasons = {row.name: row.reason for row in ROWS}
  lines = [
    "# What the rules cost",
    "",
    "Generated by `python -m jax2tf.tools.cost`; do not edit. Every row is one function at two sizes, n and 8n, on CPU: as a `tf.function`",
    "without XLA, and in `jax.jit`, run by turns in one process; times are medians. *Grows* is x in time ~ n^x between the two sizes.",
    "A gradient is that of the sum of squares of the results, by `tf.GradientTape` and by `jax.grad`.",
    "",
    "JAX's LAPACK had one thread (`OPENBLAS_NUM_THREADS=1`).",
    "",
    f"Flags: **growth**, TensorFlow's exponent is more than {_WORSE_EXPONENT} above JAX's; **slow**, more than {_SLOW:g} times JAX's time",
    f"at 8n; both only above {_MATTERS_MS:g} ms and only if a second measurement repeats them; **nodes**, the graph grows with the size.",
    "",
  ]
  for version, section in sorted(report.items()):
    lines += [f"## JAX {version}", ""]
    lines += ["| function | n | way | nodes | TF ms | JAX ms | ratio | grows, TF | grows, JAX | flags |", "|---" * 10 + "|"]
    lines += [_line(row, way, section[row.name][way]) for row in ROWS if row.name in section for way in section[row.name]]
    flagged = [name for name, ways in section.items() if any(numbers["flags"] for numbers in ways.values())]
    lines += ["", *(f"- **{name}**: {reasons[name] or 'no reason known'}" for name in flagged), ""]
  return "\n".join([*lines, "![ratios](cost.png)", ""])


def _line(row: Row, way: str, numbers: Numbers) -> str:
  pairs = [f"{numbers[key][0]:.3g}, {numbers[key][1]:.3g}" for key in ("tf_ms", "jax_ms")]
  cells = [
    row.name,
    f"{row.n}, {_GROWTH * row.n}",
    way,
    f"{numbers['nodes'][0]}, {numbers['nodes'][1]}",
    *pairs,
    f"{ratio(numbers, 0):.2g}, {ratio(numbers, 1):.2g}",
    f"{exponent(numbers['tf_ms']):.2f}",
    f"{exponent(numbers['jax_ms']):.2f}",
    " ".join(numbers["flags"]),
  ]
  return "| " + " | ".join(cells) + " |"


def _picture(report: dict[str, Any]) -> None:
  """The ratio at the larger size, a dot for each row and version, forward and gradient."""
  import matplotlib  # noqa: PLC0415  (an extra that only this report needs)

  matplotlib.use("Agg")
  from matplotlib import pyplot  # noqa: PLC0415

  names = [row.name for row in ROWS if any(row.name in section for section in report.values())]
  figure, panels = pyplot.subplots(1, 2, figsize=(11, 2 + 0.17 * len(names)), layout="constrained", sharey=True)
  for axes, way in zip(panels, _WAYS, strict=True):
    for marker, (version, section) in zip("ox+", sorted(report.items()), strict=False):
      shown = [(ratio(section[name][way], 1), i) for i, name in enumerate(names) if way in section.get(name, {})]
      axes.plot(*zip(*shown, strict=True), marker, markersize=4, label=f"JAX {version}") if shown else None
    axes.axvline(1, color="gray", linewidth=1)
    axes.axvline(_SLOW, color="gray", linewidth=1, linestyle=":")
    axes.set(xscale="log", xlabel="TensorFlow's time / JAX's, at the larger size", title=way)
    axes.grid(axis="both", alpha=0.3)
  panels[0].set_yticks(range(len(names)), names, fontsize=7)
  panels[0].margins(y=0.01)
  panels[0].invert_yaxis()
  panels[1].legend()
  figure.savefig(_DOCS / "cost.png", dpi=110)
  pyplot.close(figure)


def main(_: Sequence[str]) -> None:
  """Measures the chosen rows and writes the report."""
  logging.set_verbosity(logging.WARNING)  # JAX tells absl which accelerators it did not find
  chosen = [row for row in ROWS if re.search(_ROWS.value, row.name)]
  section: dict[str, dict[str, Numbers]] = {}
  progress = tqdm.tqdm(chosen, unit="row")
  try:
    for row in progress:
      progress.set_postfix_str(row.name)
      section[row.name] = {way: measured(row, way == "gradient", _SECONDS.value) for way in _WAYS[: 1 + row.differentiable]}
      for way, numbers in section[row.name].items():
        progress.write(_line(row, way, numbers))
      jax.clear_caches()
  finally:  # an interrupted run keeps what it has
    write(section)


if __name__ == "__main__":
  app.run(main)
