"""The section of docs/reports/devices.md about what ran on a GPU."""

from __future__ import annotations

from typing import Any

from jax2tf.tools.lab import reports
from jax2tf.tools.lab.pages import table

_ABOUT = """## On a GPU

{machine}; {libraries}. CI has no GPU. This ran
once, by hand, with `python -m jax2tf.tools.lab.gpu_rows tensorflow` and `jax`.

Tests of rules, gradients, refs, idioms and shapes, with TensorFlow's ops on the GPU and without
TensorFloat-32, compared with JAX on the CPU: {passed:,} passed. {failed} that pass on that
machine's CPU failed.

Milliseconds of a call, for ten calls in a row. The error is the largest difference from JAX on
the CPU, relative to the largest element, with TensorFloat-32 and without. Ops of a graph start one
by one, so small programs take the time of the host; `jit_compile=True` combines many kernels.
"""

_BEFORE = """Copies from the GPU to the CPU in a call, and its milliseconds when the host waits for
every call, before the lowering considered devices and now:
"""

_PITFALL = """Without TensorFloat-32, convolutions that had already run kept it: TensorFlow
remembers the algorithm that it chose for a shape. Turn it off before the first convolution.
"""


def section() -> list[str]:
  """The lines of the section."""
  data = reports.read("devices-h100")
  about = _ABOUT.format(
    machine=data["machine"],
    libraries=data["libraries"],
    passed=data["tests"]["passed"],
    failed=data["tests"]["passed on its CPU, failed on the GPU"] or "None",
  )
  head = ["program", "ms", "jit_compile", "jax.jit", "gradient", "jax.jit", "error", "without TF32"]
  cells = [_cells(name, row) for name, row in data["programs"].items()]
  before = [
    [name, *map(str, row["to the CPU"]), *(f"{ms:.1f}" for ms in row["ms"])]
    for name, row in data["before"].items()
  ]
  return [
    *about.splitlines(),
    "",
    *table(head, cells),
    "",
    *_PITFALL.splitlines(),
    "",
    *_BEFORE.splitlines(),
    "",
    *table(["program", "copies before", "now", "ms before", "now"], before),
  ]


def _cells(name: str, row: dict[str, Any]) -> list[str]:
  forward, gradient = (row["tensorflow"].get(part, {}) for part in ("forward", "gradient"))
  jax = row.get("jax", {})
  times = [forward.get("ms_tf32"), forward.get("ms_xla"), jax.get("forward")]
  times += [gradient.get("ms_tf32"), jax.get("gradient")]
  errors = [forward.get("error_tf32"), forward.get("error_f32")]
  return [
    name,
    *("-" if ms is None else f"{ms:.2f}" for ms in times),
    *("-" if error is None else f"{error:.1e}" for error in errors),
  ]
