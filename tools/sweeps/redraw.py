"""The charts of docs/ anew from the numbers in docs/*.json; nothing is measured.

Usage: python -m jax2tf.tools.sweeps.redraw
"""

from __future__ import annotations

import json

from jax2tf.tools.sweeps import cost, coverage, growth, measure, minilm_table, speed

PICTURES = {
  "cost": cost.picture,
  "coverage": coverage.picture,
  "growth": growth.picture,
  "minilm": minilm_table.picture,
  "speed": speed.picture,
}


def main() -> None:
  for name, picture in PICTURES.items():
    picture(json.loads((measure.DOCS / f"{name}.json").read_text()))


if __name__ == "__main__":
  main()
