"""Writes the pages and charts of docs/reports anew from the numbers in docs/reports/data, without
measurements.

Usage: python -m jax2tf.tools.lab.redraw
"""

from __future__ import annotations

from jax2tf.tools.lab import minilm_table, model_table, pages, reports
from jax2tf.tools.lab.pages import coverage, speed

PICTURES = {
  "coverage": coverage.picture,
  "minilm": minilm_table.picture,
  "model-table": model_table.picture,
}


def main() -> None:
  for name, picture in PICTURES.items():
    picture(reports.read(name))
  speed.draw()


if __name__ == "__main__":
  main()
  pages.write()
