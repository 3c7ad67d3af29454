"""Draws docs/quickstart.svg, the output of `make quickstart`.

Usage: python tools/site/quickstart_picture.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

_ROOT = Path(__file__).resolve().parents[2]
WIDTH = 118


def main() -> None:
  command = [sys.executable, str(_ROOT / "examples" / "quickstart.py")]
  said = subprocess.run(
    command, env=os.environ | {"COLUMNS": str(WIDTH)}, stdout=subprocess.PIPE, text=True, check=True
  ).stdout
  screen = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
  screen.print("[bold]$ make quickstart[/bold]")
  screen.print(said.strip(), markup=False)
  svg = screen.export_svg(title="jax2tf", unique_id="quickstart")
  # Rich refers to fonts on a server. Without these references readers use their own fonts, and no
  # page fetches anything.
  (_ROOT / "docs" / "quickstart.svg").write_text(
    re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8"
  )


if __name__ == "__main__":
  main()
