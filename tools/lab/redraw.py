"""Redraws the charts of docs/reports from the numbers in docs/reports/data, without measurements.

Usage: python -m jax2tf.tools.lab.redraw
"""

from __future__ import annotations

from jax2tf.tools.lab import cost, coverage, growth, minilm_table, model_table, reports, speed

PICTURES = {
  "cost": cost.picture,
  "coverage": coverage.picture,
  "growth": growth.picture,
  "minilm": minilm_table.picture,
  "model-table": model_table.picture,
  "speed": speed.picture,
}


def main() -> None:
  for name, picture in PICTURES.items():
    picture(reports.read(name))


if __name__ == "__main__":
  main()
