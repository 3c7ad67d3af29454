"""Tables of plain text, by rich."""

from __future__ import annotations

from collections.abc import Iterable


def text(titles: Iterable[str], rows: Iterable[Iterable[str]], *, width: int | None = None) -> str:
  """The rows below their titles, in aligned columns.

  Args:
    titles: of the columns.
    rows: the cells of each row. Nothing in them is markup.
    width: beyond which cells are wrapped; by default never.
  """
  from rich import box, console, table  # noqa: PLC0415  (not for `jax2tf --help`)
  from rich.text import Text  # noqa: PLC0415

  rendered = table.Table(box=box.SIMPLE_HEAD)
  for title in titles:
    rendered.add_column(Text(title))
  for row in rows:
    rendered.add_row(*map(Text, row))
  if width is None:
    width = max(console.Console(width=2**16).measure(rendered).maximum, 1)
  screen = console.Console(width=width, color_system=None)
  with screen.capture() as captured:
    screen.print(rendered)
  lines = [line.rstrip() for line in captured.get().splitlines()]
  return "\n".join(lines).strip("\n")
