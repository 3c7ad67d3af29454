"""docs/reports/speed.md: how fast converted functions are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from jax2tf.examples.palette import COLOURS
from jax2tf.tools.lab import measure, reports
from jax2tf.tools.lab.pages import Rows, sections, table
from jax2tf.tools.lab.speed_rows import functions, rule_rows, rules

# The aims of single functions: ours over hand-written TensorFlow, and with jit_compile over
# jax.jit.
_BY_HAND, _COMPILED = 1.5, 3.0

_ABOUT = """# Speed

Generated from the numbers in `docs/reports/data`; do not edit. `make speed` measures all of it
again, and `python -m jax2tf.tools.lab.matrix speed rules` one section.

All times are from two CPU cores. The calls of a row alternate in one process, so that noise
of the machine affects all of them and ratios stay valid. A ratio is the median of five runs, with
the least and the most. Below 1 is faster. Unless a column says otherwise, a converted function is a
`tf.function` without XLA.
"""

_MODELS = """## Whole models

Every model in JAX (`jax.jit`), written by hand in TensorFlow (`tf.nn`, `tf.while_loop`), and
converted, with the same weights in `tf.Variable`s. *Fused* is `idioms="fused"` ([Fused
idioms](../guide/fused.md)). *Native* is `native_serialization=True`, also with `jit_compile=True`.
The gradient is the gradient of the mean of the squared results for all weights.

![Times of models relative to jax.jit](speed.png)
"""

_FUNCTIONS = f"""## Single functions and loops

Every function in JAX, in hand-written TensorFlow, and converted, forward. *Fused* is
`idioms="fused"`, *compiled* is ours with `jit_compile=True`. The aims are {_BY_HAND:g} for
ours/hand and {_COMPILED:g} for compiled/jax.jit; a row above one of them has a reason. The exact
idioms keep JAX's values for NaN and infinity, which some ops of TensorFlow lose. Hand-written code
does not.
"""

_RULES = f"""## Lowering rules

{len(rule_rows.ROWS)} functions, in TensorFlow and in `jax.jit`. JAX's LAPACK has one thread. The
gradient is the gradient of the sum of squares of the results. The first table has the time in
TensorFlow divided by the time in JAX: the median of each family, with the least and the most. The
second table has the functions that take more than {rules.SLOW:g} times as long as in JAX, and more
than {rules.MATTERS_MS:g} ms.
"""

_SAVING = """## Saving and loading

The [transformer above](#whole-models), and MiniLM with symbolic batch and length. *Save* is the
time to trace, lower and save a model in a process that saved one before. *Load* is the time of
`tf.saved_model.load` in another process that loaded one before. *kB* is the size of
`saved_model.pb`, which has the graphs without the variables.
"""


def text() -> str:
  """The page."""
  tables = {
    "models": (_MODELS, _models),
    "functions": (_FUNCTIONS, _functions),
    "rules": (_RULES, _rules),
    "saving": (_SAVING, _saving),
  }
  return "\n".join([*_ABOUT.splitlines(), *sections("speed", tables), ""])


def _ratio(ms: Rows, way: str, other: str) -> str:
  return measure.spread(measure.ratios(ms, way, other)) if way in ms else ""


def _models(rows: Rows) -> list[str]:
  ratios = {
    "ours/jax.jit": ("ours", "jax"),
    "ours/hand": ("ours", "hand"),
    "fused/hand": ("fused", "hand"),
    "hand/jax.jit": ("hand", "jax"),
    "native/jax.jit": ("native", "jax"),
    "native, jit_compile/jax.jit": ("native xla", "jax"),
  }
  return _ratios("model", ratios, rows)


def _functions(rows: Rows) -> list[str]:
  ratios = {
    "ours/hand": ("ours", "hand"),
    "fused/hand": ("fused", "hand"),
    "ours/jax.jit": ("ours", "jax"),
    "hand/jax.jit": ("hand", "jax"),
    "compiled/jax.jit": ("compiled", "jax"),
  }

  def above_an_aim(ms: Rows) -> bool:
    by_hand, compiled = measure.ratios(ms, "ours", "hand"), measure.ratios(ms, "compiled", "jax")
    return by_hand[0] > _BY_HAND or compiled[0] > _COMPILED  # in all runs

  reasons = [
    f"- **{name}** is above an aim: {functions.ROWS[name].reason or 'no reason known'}."
    for name, ms in rows.items()
    if above_an_aim(ms)
  ]
  return [*_ratios("function", ratios, rows), "", *reasons]


def _ratios(what: str, ratios: Mapping[str, tuple[str, str]], rows: Rows) -> list[str]:
  """A table with the time in JAX and ratios of the times of two ways."""
  cells = [
    [name, f"{statistics.median(ms['jax']):.3g}", *(_ratio(ms, *ways) for ways in ratios.values())]
    for name, ms in rows.items()
  ]
  return table([what, "jax.jit ms", *ratios], cells)


def _rules(rows: Rows) -> list[str]:
  families: dict[str, dict[str, list[float]]] = {}
  slow = []
  reasons: dict[str, dict[str, None]] = {}
  for name, ways in rows.items():
    family = families.setdefault(name.partition(":")[0], {"forward": [], "gradient": []})
    for way, numbers in ways.items():
      family[way].append(rules.ratio(numbers))
      if rules.is_slow(numbers):
        milliseconds = [f"{statistics.median(numbers[who]):.3g}" for who in ("ours", "jax")]
        slow.append([name, way, *milliseconds, f"{rules.ratio(numbers):.2g}"])
        reasons.setdefault(rule_rows.reason(name), {})[name] = None
  of_families = [
    [name, *(measure.spread(ratios) if ratios else "" for ratios in ways.values())]
    for name, ways in families.items()
  ]
  return [
    *table(["family", "forward", "gradient"], of_families),
    "",
    *table(["function", "way", "TF ms", "JAX ms", "ratio"], slow, words=2),
    "",
    *(f"- **{'**, **'.join(names)}**: {reason}." for reason, names in reasons.items()),
  ]


def _saving(rows: Rows) -> list[str]:
  cells = [
    [
      *name.split(": "),
      measure.spread(numbers["save"]),
      measure.spread(numbers["load"]),
      f"{numbers['kB']:,.0f}",
    ]
    for name, numbers in rows.items()
  ]
  return table(["model", "what is saved", "save, s", "load, s", "kB"], cells, words=2)


# ------------------------------------------------------------------------------------------------
# the picture


def draw() -> None:
  """The times by hand and of both lowerings, relative to jax.jit: a panel for each version."""
  pyplot = measure.pyplot()
  report = sorted(reports.read("speed-models").items())
  ways = {"hand": "hand-written TensorFlow", "ours": "jax2tf", "native": "jax2tf, native"}
  figure, panels = pyplot.subplots(
    1, len(report), figsize=(6.5 * len(report), 4.6), layout="constrained", sharey=True
  )
  for axes, (versions, rows) in zip(panels, report, strict=True):
    for shift, (way, label) in zip((-0.27, 0, 0.27), ways.items(), strict=True):
      times = [statistics.median(measure.ratios(ms, way, "jax")) for ms in rows.values()]
      places = [i + shift for i in range(len(rows))]
      axes.barh(places, times, 0.26, color=COLOURS[way], label=label)
    axes.axvline(1, color=COLOURS["jax"], linewidth=1, label="jax.jit")
    short = [f"{name.replace(',', ' ').split()[0]}, {name.rpartition(', ')[2]}" for name in rows]
    axes.set_yticks(range(len(rows)), short)
    axes.set(xlabel="time of a call, in times of jax.jit's", title=versions)
  panels[0].invert_yaxis()
  figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
  figure.savefig(reports.picture("speed.png"), dpi=110)
  pyplot.close(figure)
