"""docs/reports/devices.md: what stays on a GPU, by TensorFlow's registry of kernels."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax2tf.tools.lab import reports
from jax2tf.tools.lab.pages import Rows, on_a_gpu, sections, table

_ABOUT = """# What stays on a GPU

Generated from the numbers in `docs/reports/data`; do not edit. `make devices` reads all of it
again.

All tables except the first are about graphs for GPUs, `platforms=["cuda"]`. They are read from
TensorFlow's registry, which says for which devices and dtypes an op has a kernel, and which
operands and results the kernel keeps in host memory.
[GPU and TPU](../guide/gpu.md) says what this shows and what it does not show.

A cell has the ops without a GPU kernel and the bounces: tensors that are copied to the host in the
middle of the computation, because an op has no kernel or takes an operand from host memory.
Predicates of loops and int32 arithmetic, which TensorFlow runs on the host, do not count as
bounces. The numbers before come from a lowering that did not yet consider devices.
"""

_MODELS = """## Models

Forward passes, and forward passes with the gradient for all floating point parameters and inputs,
with symbolic sizes: the models of `tests/support/models`, and the small ones of its `zoo.py`. A
dash is a pass that JAX or the lowering refuses, such as the gradient of a `while_loop`.
"""

_FUNCTIONS = """## Functions

Random bits, sorting, indices and integers, whose ops have few kernels. Keys and sizes are
arguments.
"""

_PRIMITIVES = """## Primitives

One case of JAX's own harnesses for every primitive and dtype, with constant sizes. The last column
has ops that XLA cannot compile, judged by its GPU kernels: pip's TensorFlow has no TPU kernels.
"""

_PASSES = ("forward", "with gradient")


def text() -> str:
  """The page."""
  before = reports.read("devices-before")
  tables = {
    "models": (_MODELS, lambda now: _models(now, before["models"])),
    "functions": (_FUNCTIONS, lambda now: _functions(now, before["functions"])),
    "primitives": (_PRIMITIVES, lambda now: _primitives(now, before["primitives"])),
  }
  return "\n".join(
    [*_ABOUT.splitlines(), "", *on_a_gpu.section(), *sections("devices", tables), ""]
  )


def _models(now: Rows, before: Rows) -> list[str]:
  cells = []
  for name, row in now.items():
    cells.append([name])
    for which in _PASSES:
      cells[-1] += [_ops(row[which]), _cell(before[name][which]), _cell(row[which])]
  sums = ["**all**"]
  for which in _PASSES:
    sums += [f"{_sum(now, which, 'ops'):,}", _total(before, which), _total(now, which)]
  head = ["model", "ops", "before", "now", "with gradient: ops", "before", "now"]
  return [*table(head, [sums, *cells]), *_exceptions(_of_passes(now))]


def _functions(now: Rows, before: Rows) -> list[str]:
  cells = [[name, _ops(row), _cell(before[name]), _cell(row)] for name, row in now.items()]
  return [*table(["function", "ops", "before", "now"], cells), *_exceptions(now.items())]


def _primitives(now: Rows, before: Rows) -> list[str]:
  by_primitive: dict[str, dict[str, tuple[Any, Any]]] = collections.defaultdict(dict)
  for name, cases in now.items():
    primitive, _, dtype = name.rpartition(" ")
    [(case, numbers)] = cases.items()
    old = before.get(name, {}).get(case, {"refused": ""})
    by_primitive[primitive][dtype] = (numbers, old)
  cells = []
  for primitive, rows in by_primitive.items():
    kept = {dtype: row for dtype, row in rows.items() if "refused" not in row[0]}
    stay = [dtype for dtype, (numbers, _) in kept.items() if _stays(numbers)]
    changed = [f"{d}: {_cell(numbers)}" for d, (numbers, _) in kept.items() if d not in stay]
    earlier = [f"{d}: {_cell(old)}" for d, (_, old) in kept.items() if not _stays(old)]
    xla = sorted({op for numbers, _ in kept.values() for op in numbers["xla"]})
    cells.append([primitive, ", ".join(stay), *map("; ".join, (changed, earlier, xla))])
  found = [(name, numbers) for name, row in now.items() for numbers in row.values()]
  n_rows = sum("refused" not in numbers for _, numbers in found)
  n_stay = sum(_stays(numbers) for _, numbers in found)
  head = ["primitive", "stays on the GPU", "does not", "did not before", "XLA lacks"]
  summary = f"{n_stay:,} of {n_rows:,} primitives and dtypes stay on the GPU."
  return [summary, "", *table(head, cells, words=5), *_exceptions(found)]


def _stays(numbers: Any) -> bool:
  return "refused" not in numbers and not numbers["no kernel"] and not numbers["bounces"]


def _ops(numbers: Any) -> str:
  return "-" if "refused" in numbers else f"{numbers['ops']:,}"


def _cell(numbers: Any) -> str:
  """The ops without a kernel, the bounces, and how many of both are in loops."""
  if "refused" in numbers:
    return "-"
  in_loops = f" ({numbers['in loops']} in loops)" if numbers["in loops"] else ""
  return f"{numbers['no kernel']} + {numbers['bounces']}{in_loops}"


def _sum(rows: Rows, which: str, count: str) -> int:
  return sum(row[which].get(count, 0) for row in rows.values())


def _total(rows: Rows, which: str) -> str:
  return f"{_sum(rows, which, 'no kernel')} + {_sum(rows, which, 'bounces')}"


def _of_passes(rows: Rows) -> Iterator[tuple[str, Any]]:
  for name, row in rows.items():
    for which in _PASSES:
      yield f"{name}, {which}", row[which]


def _exceptions(rows: Iterable[tuple[str, Any]]) -> Sequence[str]:
  """What does not stay on the GPU, with the rows that have it."""
  by_op: dict[str, list[str]] = collections.defaultdict(list)
  for name, numbers in rows:
    for what in numbers.get("which", ()):
      by_op[what].append(name)
  if not by_op:
    return ["", "Every op stays on the GPU."]
  cells = [[what, _few(names)] for what, names in sorted(by_op.items())]
  return ["", *table(["does not stay", "in"], cells, words=2)]


def _few(names: Sequence[str], most: int = 4) -> str:
  rest = f" and {len(names) - most} more" if len(names) > most else ""
  return ", ".join(names[:most]) + rest
