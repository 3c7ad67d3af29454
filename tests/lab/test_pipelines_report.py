"""What the report of `make pipelines` says of numbers that fail or miss their bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jax2tf.tools.lab import bounds, pipeline_data, reports
from jax2tf.tools.lab.pages import serving


def measured(**rates: float) -> dict[str, Any]:
  ways = {
    "batch 1": 10.0,
    "batch 2": 19.0,
    "bare 1": 10.0,
    "bare 2": 18.0,
    "ray": 18.0,
    "dask": 15.0,
    "beam tables": 9.0,
  }
  ways |= {way.replace("_", " "): rate for way, rate in rates.items()}
  rows = {way: [rate] * 3 for way, rate in ways.items() if rate}
  start = {way: [3.0, 4.0, 5.0] for way in rows}
  return {
    "rows": 100,
    "rows_per_second": rows,
    "start_seconds": start,
    "ray_shares": [0.5] * 3,
    "faults": [],
    "load_at_end": 0.5,
  }


MILLIONS = {
  "rows": 9,
  "seconds": 150.0,
  "start_seconds": 4.0,
  "window_seconds": 60.0,
  "last_by_first": 0.95,
  "megabytes": [700.0, 710.0],
}
MISSED = [
  ("encoder", measured(), []),
  (
    "encoder",
    measured(batch_2=17.0),
    [
      "encoder, batch 2 / batch 1: 1.70, required >= 1.8",
      "encoder, batch 2 / bare 2: 0.94, required >= 0.95",
    ],
  ),
  ("encoder", measured(beam_tables=0), ["encoder, beam tables / bare 1: not run, required >= 0.8"]),
  (
    "mlp",
    measured() | {"ray_shares": [0.5, 0.3, 0.5]},
    ["mlp, smallest share of a Ray actor: 0.30, required >= 0.4"],
  ),
  ("engines", measured() | {"faults": ["mlp, spark: no Java"]}, ["mlp, spark: no Java"]),
  ("millions", MILLIONS, []),
  (
    "millions",
    MILLIONS | {"last_by_first": 0.8},
    ["millions: the last rate is 0.80 of the first, required >= 0.9"],
  ),
  (
    "millions",
    MILLIONS | {"megabytes": [700.0, 800.0]},
    ["millions: memory grew from 700 to 800 MB"],
  ),
  (
    "millions",
    MILLIONS | {"window_seconds": 30.0},
    ["millions: the rates are of 30 s, required >= 60"],
  ),
]


@pytest.mark.parametrize(("part", "found", "expected"), MISSED)
def test_what_is_missed_is_said(
  part: str, found: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  assert list(bounds.missed(part, found)) == expected
  kept = {"pipelines": {"0.10.2": {}, "0.12.0": {part: {"load_at_end": 0.5} | found}}}
  read = reports.read
  monkeypatch.setattr(reports, "read", lambda name: kept.get(name) or read(name))
  page = serving.text()
  assert all(f"- {text}" in page for text in expected)
  assert ("### Missed" in page) == bool(expected)
  assert part not in ("mlp", "encoder", "engines") or "| batch 1 | 10 | 10 | 4.0 |" in page


def test_outputs_are_compared_by_id(tmp_path: Path) -> None:
  y = np.arange(8, dtype=np.float32).reshape(4, 2)
  order = [2, 0, 3, 1]
  pq.write_table(pa.table({"id": order, "y": y[order].tolist()}), tmp_path / "a.parquet")
  pipeline_data.compare(pipeline_data.answers(4, tmp_path), y)
  with pytest.raises(ValueError, match="its outputs differ by 1"):
    pipeline_data.compare(pipeline_data.answers(4, tmp_path), y + 1)
  with pytest.raises(ValueError, match="5 rows went in, and 4 came out, 4 of them different"):
    pipeline_data.answers(5, tmp_path)
