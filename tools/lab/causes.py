"""The causes of refusals, each with the line of docs/limitations.md that tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jax2tf.tools.lab import reports

# A pattern of "primitive: reason", and what the first cell of the limitation has.
_LINES: tuple[tuple[str, str], ...] = (
  ("calls back into Python", "A `pure_callback` or `io_callback` in a SavedModel"),
  ("its body is a compiled kernel|FFI|between devices", "FFI and other compiled kernels"),
  ("^bitcast_convert_type: TensorFlow has no bitcast", "Bitcasts of 4-bit types"),
  ("^dot_general: Unsupported precision", "Named dot algorithms"),
  ("is an extended dtype, whose elements", "Extended dtypes whose elements are arrays"),
  ("no lowering rule is registered, and its (lowering|impl)", "Primitives of libraries"),
  ("JAX cannot compare the symbolic sizes", "Symbolic sizes that a rule compares and JAX cannot"),
  (
    "TensorFlow's XLA has no kernel of",
    "complex `svd` and `tridiagonal_solve` with `jit_compile=True`",
  ),
  ("TensorFlow has no cast", "int2, uint2, float4 and the `fnuz` float8 types"),
)
# Names and numbers.
_PARTICULAR = re.compile(r"'[^']*'|\d+(\.\d+)?(e[+-]?\d+)?|0x[0-9a-f]+")


def limitation(cause: str) -> str | None:
  """The first cell of the line in docs/limitations.md; None if there is none."""
  line = next((line for pattern, line in _LINES if re.search(pattern, cause)), None)
  return next((cell for cell in _cells() if line and line in cell), None)


def unknown_lines() -> list[str]:
  """What docs/limitations.md does not have."""
  cells = _cells()
  return [line for _, line in _LINES if not any(line in cell for cell in cells)]


def short(cause: str) -> str:
  """A cause without what differs from case to case: functions, places, shapes, numbers."""
  without_names = re.sub(r"\([^()]*<locals>[^()]*\)", "", cause)
  without_shapes = re.sub(r"\b(\w*[a-z])\d*\[[^\]]*\]", r"\1[...]", without_names)
  return re.sub(r" at /\S+", "", without_shapes).replace("  ", " ").strip()[:200]


def kind_of(row: Mapping[str, object]) -> str:
  """What failures of one cause have in common: the exception, or the function of wrong results."""
  if row["status"] == "crash":
    words = _PARTICULAR.sub("#", str(row.get("detail", "")))
    return f"{row.get('kind', '')} {row.get('where', '')}: {words[:90]}"
  return f"{row.get('kind', '')}: {row['function']}"


def _cells() -> list[str]:
  text = (reports.DOCS / "limitations.md").read_text(encoding="utf-8")
  rows = [line.removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
  return [row.partition(" | ")[0] for row in rows]
