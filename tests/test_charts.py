"""The charts of docs/, drawn anew from the numbers that are kept there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jax2tf.tools.sweeps import measure, palette, redraw, runtimes

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_every_chart_is_drawn_from_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  for name in redraw.PICTURES:
    shutil.copy(DOCS / f"{name}.json", tmp_path)
  monkeypatch.setattr(measure, "DOCS", tmp_path)
  redraw.main()
  assert {file.stem for file in tmp_path.glob("*.png")} == {*redraw.PICTURES} == {file.stem for file in DOCS.glob("*.png")}


def test_each_runtime_has_a_colour_of_its_own() -> None:
  colours = [palette.COLOURS[target] for target in runtimes.TARGETS]
  assert len(set(colours)) == len(colours)
