"""docs/reports/models.md: which models run where, and how closely."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from jax2tf.tools.lab.pages import Rows, newest_first, sections, table
from tests.support import models, runtimes

_LIBRARY_COLUMNS = ("version", "value", "gradient", "SavedModel")
_TITLES = {target: title for target, (title, _) in runtimes.TARGETS.items()}

_ABOUT = """# Models

Generated from the numbers in `docs/reports/data`; do not edit. `make models` measures all of it
again, and `python -m jax2tf.tools.lab.matrix models zoo` one section.
"""

_ZOO = """## The zoo at every target

Every model of `tests/support/models` is exported to every target, runs there, and is compared with
`jax.jit` at two sizes of each dimension. A cell has the largest difference from JAX over all
outputs, the size of the written files, and the time of a call relative to `jax.jit`, for both
sizes together. For small models the time is mostly the overhead of a call. The C loader has no
times, because its calls read and write files. **no** is a failure; the exporter's reason is
below the table. The first table has all versions of JAX, the second the newest.
"""

_MINILM = """## MiniLM with each quantization

all-MiniLM-L6-v2, 22 million parameters, with dynamic batch and length, on 100 sentences in batches
of 1, 3, 7 and 16. The columns: the largest difference of a component from JAX's (embeddings have
length 1), the smallest cosine similarity with JAX's embedding, the latency of a call relative to
`jax.jit` (on two CPU cores), and the time of the export including its comparison with JAX.
"""

_LIBRARIES = """## Scientific libraries

A cell is the largest difference from `jax.jit` in float64, relative to the largest value, or the
reason why there is none. The column SavedModel is after loading, and includes the gradient if
there is one. Run with `EQX_ON_ERROR=nan`; [custom primitives](../developers/own-primitives.md)
gives the reason.
"""

_QWIX = """## Networks of Qwix in integers

The networks of Qwix' own tests for devices, written again, as `quantization="int8"` of LiteRT with
the ranges of `OdmlConversionProvider`. A trained network has learned handwritten digits, the second
half of the steps with Qwix' rounding. *In float32*: the ops between the ends that compute floats.
*Cosine* and *top-1* are against Qwix' rounded network in JAX, on inputs that were not learned.
*Right*: of the labels, for the network in float32 (with the parameters learned with rounding), for
Qwix' in JAX, and for the file.
"""
_DECODERS = """## Decoders

Decoders of language models with random weights, Gemma's layers, a tied embedding and a cache of
512 rows, which is an input and an output. *Seconds* and *peak* are for the export with its
comparison. *Peak* is anonymous and shared memory of the process and its children; *before* is the
memory of the parameters and the libraries before it, and of random numbers that JAX 0.10.2 frees a
moment later. Other programs ran beside these rows, so the seconds are long. *Token* is the time of
the next token relative to `jax.jit` with a donated cache, on two CPU cores, or on one for 1B.
TensorFlow multiplies one row of float32 by a matrix in 1.4 to 1.9 times the time of `jax.jit`, also
in hand-written TensorFlow; *compiled* is the loaded SavedModel in
`tf.function(..., jit_compile=True)`. *Greedy tokens* are those that an engine generates behind
prompts of 5 and of 20 tokens and that equal JAX's without a cache, of all; litert-lm counts LiteRT
with one buffer for the cache and the engine. The peak has the loops in the engines too.
"""


def text() -> str:
  """The page."""
  zoo = _zoo(newest_first("models-zoo"))
  tables = {
    "minilm": (_MINILM, _minilm),
    "libraries": (_LIBRARIES, _libraries),
    "qwix": (_QWIX, _qwix),
    "decoders": (_DECODERS, _decoders),
  }
  others = sections("models", tables)
  return "\n".join([*_ABOUT.splitlines(), "", *_ZOO.splitlines(), *zoo, *others, ""])


# ------------------------------------------------------------------------------------------------
# the zoo


def _zoo(report: Sequence[tuple[str, Rows]]) -> list[str]:
  summary = []
  for versions, rows in report:
    agreeing, medians = [], []
    for target in _TITLES:
      found = [numbers for row, numbers in rows.items() if row.split()[1] == target]
      latencies = [numbers["latency"] for numbers in found if numbers["latency"]]
      agreeing.append(f"{sum(not numbers['reason'] for numbers in found)} of {len(found)}")
      medians.append(f"{statistics.median(latencies):.2g}x" if latencies else "")
    summary += [[f"{versions}: agree with JAX", *agreeing], ["median time", *medians]]
  versions, rows = report[0]
  cells = []
  for name in models.NAMES:
    of_model = [_cell(rows.get(f"{name} {target}")) for target in _TITLES]
    cells.append([name, models.load(name).library, *of_model])
  return [
    "",
    *table(["", *_TITLES.values()], summary),
    "",
    f"**{versions}**",
    "",
    *table(["model", "library", *_TITLES.values()], cells, words=2),
    *_misses(rows),
  ]


def _cell(numbers: Rows | None) -> str:
  if numbers is None:
    return "not run"
  if numbers["reason"]:
    return "**no**"
  kilobytes = numbers["size"] / 1e3
  size = f"{kilobytes / 1e3:.1f} MB" if kilobytes >= 1e3 else f"{kilobytes:.0f} kB"
  error = f"{numbers['error']:.0e}" if numbers["error"] else "0"
  return "<br>".join([error, size, *([f"{x:.2g}x"] if (x := numbers["latency"]) else [])])


def _misses(rows: Rows) -> Iterator[str]:
  missed: dict[tuple[str, str], list[str]] = {}
  for row, numbers in rows.items():
    if numbers["reason"]:
      name, target = row.split()
      missed.setdefault((name, numbers["reason"]), []).append(_TITLES[target])
  for (name, reason), titles in missed.items():
    yield from ("", f"**{name}** on {', '.join(titles)}:", "", "```", reason, "```")


# ------------------------------------------------------------------------------------------------
# MiniLM, libraries and decoders


def _minilm(rows: Rows) -> list[str]:
  cells, refused = [], []
  for name, row in rows.items():
    target, _, scheme = name.partition("-")
    if "refused" in row:
      refused.append(f"{_TITLES[target]} refuses {scheme}: {row['refused']}.")
      continue
    ratio = f"{row['ratio']:.2g}" if row["ratio"] else ""
    megabytes, seconds = f"{row['bytes'] / 1e6:.1f}", f"{row['seconds']:.0f}"
    differences = [f"{row['max_abs']:.1e}", f"{row['cosine']:.5f}"]
    cells.append([_TITLES[target], scheme or "none", megabytes, *differences, ratio, seconds])
  head = ["runtime", "quantization", "MB", "max abs", "cosine", "latency / jax.jit", "export s"]
  return [*table(head, cells, words=2), "", *refused]


def _libraries(rows: Rows) -> list[str]:
  cells = [
    [*name.split(": ", 1), *(numbers[column] for column in _LIBRARY_COLUMNS)]
    for name, numbers in rows.items()
  ]
  return table(["library", "function", *_LIBRARY_COLUMNS], cells, words=3)


def _qwix(rows: Rows) -> list[str]:
  cells, refused = [], []
  for name, row in rows.items():
    if "refused" in row:
      refused.append(f"- {name}: {row['refused']}")
      continue
    sizes = [f"{row[key] / 1e3:.1f}" for key in ("float32", "int8")]
    floats = ", ".join(row["floats"]) or "none"
    top_1 = "{} of {}".format(*row["top_1"]) if "top_1" in row else ""
    right = ", ".join(f"{share:.1%}" for share in row.get("right", {}).values())
    cells.append([name, *sizes, str(row["kernels"]), floats, f"{row['cosine']:.5f}", top_1, right])
  head = ["network", "float32 kB", "int8 kB", "integer ops", "in float32", "cosine", "top-1"]
  return [*table([*head, "right"], cells, words=1), *(["", *refused] if refused else [])]


def _decoders(rows: Rows) -> list[str]:
  cells = []
  for name, row in rows.items():
    sizes = [f"{row[key] / 1e9:.2f}" for key in ("weights", "file", "held", "peak")]
    of_weights = f"{row['peak'] / row['weights']:.1f}"
    seconds = f"{row['seconds']:.0f}"
    token = f"{row['token']:.2f}" if "token" in row else ""
    token += f", compiled {row['compiled']:.2f}" if "compiled" in row else ""
    greedy = "{} of {}".format(*row["tokens"]) if "tokens" in row else ""
    cells.append([*name.split(": "), *sizes, of_weights, seconds, token, greedy])
  head = ["decoder", "target", "weights GB", "file GB", "before GB", "peak GB", "peak / weights"]
  return table([*head, "seconds", "token / jax.jit", "greedy tokens"], cells, words=2)
