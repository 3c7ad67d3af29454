"""The charts of docs/reports, drawn anew from the numbers that are kept there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jax2tf.examples import palette
from jax2tf.tools.lab import pages
from tests.support import runtimes

ROOT = Path(__file__).resolve().parents[2]


def test_every_chart_is_drawn_from_what_is_kept(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  shutil.copytree(ROOT / "docs", "docs", ignore=shutil.ignore_patterns("*.png", "*.svg"))
  pages.write()
  drawn, kept = (
    {file.stem for file in (root / "docs" / "reports").glob("*.[ps][nv]g")}
    for root in (tmp_path, ROOT)
  )
  assert drawn == kept


def test_each_runtime_has_a_colour_of_its_own() -> None:
  colours = [palette.COLOURS[target] for target in runtimes.TARGETS]
  assert len(set(colours)) == len(colours)
