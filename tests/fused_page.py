"""The tables of docs/guide/fused.md that tests make; `python -m tests.fused_page` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests import fused_differences, fused_grappler, fused_layers

PAGE = Path(__file__).parents[1] / "docs/guide/fused.md"


def tables() -> list[list[str]]:
  """The lines of each."""
  return [
    fused_layers.taken(),
    fused_layers.others(),
    fused_differences.table(),
    fused_grappler.table(),
  ]


def on_page(head: str) -> list[str]:
  """The lines of the table with this head."""
  lines = PAGE.read_text(encoding="utf-8").splitlines()
  start, end = _place(lines, head)
  return lines[start:end]


def _place(lines: Sequence[str], head: str) -> tuple[int, int]:
  start = lines.index(head)
  return start, next(
    (i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines)
  )


def main() -> None:
  lines = PAGE.read_text(encoding="utf-8").splitlines()
  for table in tables():
    start, end = _place(lines, table[0])
    lines[start:end] = table
  PAGE.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
  main()
