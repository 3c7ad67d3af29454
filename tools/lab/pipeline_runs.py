"""Runs files of rows in one way, in a process without JAX, as docs/guide/batch.md has it.

Usage: python -m jax2tf.tools.lab.pipeline_runs WAY (mlp|encoder) MODEL FILES TARGET. WAYS has the
ways; FILES is a pattern.
"""

from __future__ import annotations

import concurrent.futures
import glob
import logging
import multiprocessing
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax2tf.tools.batch import engines, on_beam, on_ray, worker


def _bare(name: str, model: str, files: Sequence[str], target: str) -> None:
  """The code that a user would write by hand."""
  import pyarrow as pa  # noqa: PLC0415
  import pyarrow.parquet as pq  # noqa: PLC0415
  import tensorflow as tf  # noqa: PLC0415

  loaded = tf.saved_model.load(f"{model}/1")
  function = loaded.signatures["serving_default"]
  for file in files:
    table = pq.read_table(file)
    if name == "mlp":
      x = table["x"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
      parts = [x[i : i + 256] for i in range(0, len(x), 256)]
      y = np.concatenate([function(x=tf.constant(part))["y"].numpy() for part in parts])
    else:
      rows = table["ids"].to_pylist()
      order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
      y = np.empty((len(rows), 384), np.float32)
      for begin in range(0, len(rows), 256):
        part = order[begin : begin + 256]
        lengths = np.array([len(rows[i]) for i in part])
        mask = (np.arange(lengths[-1]) < lengths[:, None]).astype(np.int32)
        ids = np.zeros(mask.shape, np.int32)
        ids[mask == 1] = np.concatenate([rows[i] for i in part])
        y[part] = function(ids=tf.constant(ids), attention_mask=tf.constant(mask))["y"].numpy()
    values = pa.FixedSizeListArray.from_arrays(pa.array(y.ravel()), y.shape[1])
    path = f"{target}/{pathlib.Path(file).name}"
    pq.write_table(pa.table({"id": table["id"], "y": values}), path)


def bare(processes: int) -> Callable[..., None]:
  def run(name: str, model: str, pattern: str, target: str) -> None:
    files, context = sorted(glob.glob(pattern)), multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
      shares = [files[i::processes] for i in range(processes)]
      for future in [pool.submit(_bare, name, model, share, target) for share in shares]:
        future.result()

  return run


def dask(name: str, model: str, pattern: str, target: str) -> None:
  from dask import config  # noqa: PLC0415
  from distributed import Client  # noqa: PLC0415

  rows, out = engines.Rows(model), pathlib.Path(target)
  # Dask sets 64 KiB, at which glibc returns freed memory to the system; a quarter of the encoder's
  # rate was lost.
  keep = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
  cluster = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
  with config.set(keep), Client(**cluster) as client:
    files = [*map(pathlib.Path, sorted(glob.glob(pattern)))]
    client.gather(client.map(lambda file: worker.run(rows.runner, file, out / file.name), files))
  worker.clean(out)  # after killed workers


def ray(name: str, model: str, pattern: str, target: str) -> None:
  import ray  # noqa: PLC0415

  # Logical CPUs, not cores: one for each actor, and some for the tasks that read and write.
  ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
  rows = on_ray.mapped(ray.data.read_parquet(sorted(glob.glob(pattern))), model, actors=2)
  rows.write_parquet(target)


def spark(name: str, model: str, pattern: str, target: str) -> None:
  """Record batches through `mapInArrow`; Spark keeps its processes of Python, and they their
  model."""
  if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    raise SystemExit("Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless")
  import pyspark.sql  # noqa: PLC0415

  os.environ["PYSPARK_PYTHON"] = sys.executable
  builder = pyspark.sql.SparkSession.builder.master("local[2]")
  session = builder.config("spark.ui.enabled", "false").getOrCreate()
  session.sparkContext.setLogLevel("ERROR")
  batches = engines.Rows(model).record_batches
  found = session.read.parquet(pattern).mapInArrow(batches, "id long, y array<float>")
  found.write.mode("append").parquet(f"file://{target}")
  session.stop()


def beam_elements(name: str, model: str, pattern: str, target: str) -> None:
  """Elements through Beam's RunInference."""
  import apache_beam  # noqa: PLC0415
  import pyarrow as pa  # noqa: PLC0415
  from apache_beam.ml.inference.base import RunInference  # noqa: PLC0415

  def row(found: Any) -> dict[str, Any]:
    return {"id": found.example["id"], "y": found.inference["y"].tolist()}

  schema = pa.schema({"id": pa.int64(), "y": pa.list_(pa.float32())})
  write = apache_beam.io.WriteToParquet(f"{target}/part", schema, file_name_suffix=".parquet")
  with apache_beam.Pipeline(runner="FnApiRunner") as pipeline:
    read = pipeline | apache_beam.io.ReadFromParquet(pattern)
    _ = read | RunInference(on_beam.handler(model)) | apache_beam.Map(row) | write


def beam_tables(name: str, model: str, pattern: str, target: str) -> None:
  """Tables through Beam's DirectRunner."""
  import apache_beam  # noqa: PLC0415
  import pyarrow.parquet as pq  # noqa: PLC0415

  first = pq.read_table(min(glob.glob(pattern))).slice(0, 1)
  schema, part = engines.Rows(model).arrow(first).schema, f"{target}/part"
  write = apache_beam.io.WriteToParquetBatched(part, schema, file_name_suffix=".parquet")
  with apache_beam.Pipeline(runner="FnApiRunner") as pipeline:
    read = pipeline | apache_beam.io.ReadFromParquetBatched(pattern)
    _ = read | apache_beam.ParDo(on_beam.tables(model)) | write


WAYS: dict[str, Callable[..., None]] = {
  "bare 1": bare(1),
  "bare 2": bare(2),
  "dask": dask,
  "ray": ray,
  "beam tables": beam_tables,
  "beam elements": beam_elements,
  "spark": spark,
}


if __name__ == "__main__":
  sys.modules["jax"] = None  # type: ignore[assignment]
  way, *arguments = sys.argv[1:]
  WAYS[way](*arguments)
