"""`make pipelines`: what its report says, and how outputs are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jax2tf.tools.lab import pipeline_data, reports
from jax2tf.tools.lab.pages import serving


def test_the_report_has_rates_and_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
  numbers = {
    "rows": 100,
    "rows_per_second": {"batch 1": [10.0, 12.0, 30.0]},
    "start_seconds": {"batch 1": [3.0, 4.0, 6.0]},
    "faults": ["engines, spark: no Java"],
  }
  kept, read = {"pipelines": {"0.10.2": {"engines": numbers}}}, reports.read
  monkeypatch.setattr(reports, "read", lambda name: kept.get(name) or read(name))
  page = serving.text()
  assert "| batch 1 | 12 | 4.0 |" in page
  assert "- engines, spark: no Java" in page


def test_outputs_are_compared_by_id(tmp_path: Path) -> None:
  y = np.arange(8, dtype=np.float32).reshape(4, 2)
  order = [2, 0, 3, 1]
  pq.write_table(pa.table({"id": order, "y": y[order].tolist()}), tmp_path / "a.parquet")
  pipeline_data.compare(pipeline_data.answers(4, tmp_path), y)
  with pytest.raises(ValueError, match="its outputs differ by 1"):
    pipeline_data.compare(pipeline_data.answers(4, tmp_path), y + 1)
  with pytest.raises(ValueError, match="5 rows went in, and 4 came out, 4 of them different"):
    pipeline_data.answers(5, tmp_path)
