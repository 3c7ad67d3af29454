"""The charts of docs/reports, drawn anew from the numbers that are kept there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jax2tf.examples import palette
from jax2tf.tools.lab import model_table, redraw, reports
from tests.support import runtimes

ROOT = Path(__file__).resolve().parents[2]


def test_every_chart_is_drawn_from_what_is_kept(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.chdir(tmp_path)
  shutil.copytree(ROOT / reports.data("speed-models").parent, reports.data("speed-models").parent)
  redraw.main()
  drawn, kept = (
    {file.stem for file in (root / "docs" / "reports").glob("*.[ps][nv]g")}
    for root in (tmp_path, ROOT)
  )
  assert drawn == kept


@pytest.mark.parametrize(("name", "markdown"), [("model-table", model_table.markdown)])
def test_a_page_of_models_has_its_numbers(name: str, markdown: Callable[..., str]) -> None:
  assert reports.page(name).read_text(encoding="utf-8") == markdown(reports.read(name))


def test_each_runtime_has_a_colour_of_its_own() -> None:
  colours = [palette.COLOURS[target] for target in runtimes.TARGETS]
  assert len(set(colours)) == len(colours)
