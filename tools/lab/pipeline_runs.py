"""Runs files of rows in one way, in a process without JAX. Prints a line of JSON with the seconds
of the rows and those of the start.

Usage: python -m jax2tf.tools.lab.pipeline_runs WAY (mlp|encoder|small) MODEL SOURCE TARGET. WAYS
has the ways.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Span = tuple[int, float, float, int]  # process, begin, end, rows


def _bare(name: str, model: str, files: Sequence[str], target: str, ready: Any) -> list[Span]:
  """The code that a user would write by hand."""
  sys.modules["jax"] = None  # type: ignore[assignment]
  import pyarrow as pa  # noqa: PLC0415
  import pyarrow.parquet as pq  # noqa: PLC0415
  import tensorflow as tf  # noqa: PLC0415

  loaded = tf.saved_model.load(f"{model}/1")
  function = loaded.signatures["serving_default"]
  ready.wait()
  spans = []
  for file in files:
    begin, table = time.time(), pq.read_table(file)
    if name == "mlp":
      x = table["x"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
      y = np.concatenate(
        [function(x=tf.constant(x[i : i + 256]))["y"].numpy() for i in range(0, len(x), 256)]
      )
    else:
      rows = table["ids"].to_pylist()
      order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
      y = np.empty((len(rows), 384), np.float32)
      for begin_row in range(0, len(rows), 256):
        part = order[begin_row : begin_row + 256]
        longest = len(rows[part[-1]])
        ids = np.array([rows[i] + [0] * (longest - len(rows[i])) for i in part], np.int32)
        mask = np.array(
          [[1] * len(rows[i]) + [0] * (longest - len(rows[i])) for i in part], np.int32
        )
        y[part] = function(ids=tf.constant(ids), attention_mask=tf.constant(mask))["y"].numpy()
    values = pa.FixedSizeListArray.from_arrays(pa.array(y.ravel()), y.shape[1])
    pq.write_table(
      pa.table({"id": table["id"], "y": values}), f"{target}/{pathlib.Path(file).name}"
    )
    spans.append((os.getpid(), begin, time.time(), len(y)))
  return spans


def bare(processes: int) -> Callable[..., list[Span]]:
  def run(name: str, model: str, files: Sequence[str], target: str) -> list[Span]:
    context = multiprocessing.get_context("spawn")
    with (
      context.Manager() as manager,
      concurrent.futures.ProcessPoolExecutor(processes, context) as pool,
    ):
      ready = manager.Barrier(processes)
      tasks = [(name, model, files[i::processes], target, ready) for i in range(processes)]
      return list(itertools.chain.from_iterable(pool.map(_bare, *zip(*tasks, strict=True))))

  return run


def _file(model: str, file: str, target: str) -> Span:
  from jax2tf.tools.batch import engines, worker  # noqa: PLC0415

  runner = engines.Rows(model).runner
  begin = time.time()
  rows = worker.run(runner, pathlib.Path(file), pathlib.Path(target, pathlib.Path(file).name))[
    "rows"
  ]
  return os.getpid(), begin, time.time(), rows


def dask(name: str, model: str, files: Sequence[str], target: str) -> list[Span]:
  from dask import config  # noqa: PLC0415
  from distributed import Client  # noqa: PLC0415

  from jax2tf.tools.batch import worker  # noqa: PLC0415

  # Dask sets 64 KiB, at which glibc returns freed memory to the system; a quarter of the encoder's
  # rate was lost.
  keep = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
  with (
    config.set(keep),
    Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client,
  ):
    spans: list[Span] = client.gather([client.submit(_file, model, file, target) for file in files])
  worker.clean(pathlib.Path(target))  # after killed workers
  return spans


def ray(name: str, model: str, files: Sequence[str], target: str) -> list[Span]:
  import pyarrow.parquet as pq  # noqa: PLC0415
  import ray  # noqa: PLC0415

  from jax2tf.tools.batch import on_ray  # noqa: PLC0415

  class Timed(on_ray.Actor):
    def __call__(self, table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
      begin = time.time()
      found = super().__call__(table)
      stamp = np.full(len(found["id"]), 1.0)
      return found | {
        "pid": stamp * os.getpid(),
        "begin": stamp * begin,
        "end": stamp * time.time(),
      }

  on_ray.Actor = Timed  # type: ignore[misc]
  # Logical CPUs, not cores: one for each actor, and some for the tasks that read and write.
  ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
  rows = on_ray.mapped(ray.data.read_parquet(list(files)), model, actors=2)
  rows.write_parquet(target)
  written = time.time()
  table = pq.read_table(target, columns=["pid", "begin", "end"]).to_pandas()
  spans = [(int(p), b, e, len(part)) for (p, b, e), part in table.groupby(["pid", "begin", "end"])]
  return [*spans, (0, written, written, 0)]


def spark(name: str, model: str, files: Sequence[str], target: str) -> list[Span]:
  """Record batches through `mapInArrow`; Spark keeps its processes of Python, and they their
  model."""
  if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    raise SystemExit("Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless")
  import pyspark.sql  # noqa: PLC0415

  from jax2tf.tools.batch.engines import Rows  # noqa: PLC0415

  rows = Rows(model)
  os.environ["PYSPARK_PYTHON"] = sys.executable

  def mapped(batches: Any) -> Any:
    _ = rows.runner
    for batch in batches:
      begin = time.time()
      yield from rows.record_batches([batch])
      with open(f"{target}.spans", "a", encoding="utf-8") as file:
        file.write(json.dumps((os.getpid(), begin, time.time(), batch.num_rows)) + "\n")

  session = (
    pyspark.sql.SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
  )
  session.sparkContext.setLogLevel("ERROR")
  found = session.read.parquet(*files).mapInArrow(mapped, "id long, y array<float>")
  found.write.mode("append").parquet(f"file://{target}")
  written = time.time()
  session.stop()
  return _spans(target, written)


def _spans(target: str, written: float) -> list[Span]:
  """The lines that processes have written, one for each table."""
  lines = pathlib.Path(f"{target}.spans").read_text(encoding="utf-8").splitlines()
  return [*(tuple(json.loads(line)) for line in lines), (0, written, written, 0)]


def beam_elements(name: str, model: str, files: Sequence[str], target: str) -> list[Span]:
  """Elements through Beam's RunInference."""
  import apache_beam  # noqa: PLC0415
  import pyarrow as pa  # noqa: PLC0415
  from apache_beam.ml.inference.base import RunInference  # noqa: PLC0415

  from jax2tf.tools.batch import on_beam  # noqa: PLC0415

  inner = on_beam.handler(model)

  class Timed(type(inner)):  # type: ignore[misc]
    def run_inference(self, batch: Any, *others: Any) -> Any:
      begin = time.time()
      yield from super().run_inference(batch, *others)
      with open(f"{target}.spans", "a", encoding="utf-8") as file:
        file.write(json.dumps((os.getpid(), begin, time.time(), len(batch))) + "\n")

  schema = pa.schema({"id": pa.int64(), "y": pa.list_(pa.float32())})
  with apache_beam.Pipeline(runner="FnApiRunner") as pipeline:
    read = pipeline | apache_beam.io.ReadFromParquet(f"{pathlib.Path(files[0]).parent}/*.parquet")
    rows = (
      read
      | RunInference(Timed())
      | apache_beam.Map(
        lambda found: {"id": found.example["id"], "y": found.inference["y"].tolist()}
      )
    )
    _ = rows | apache_beam.io.WriteToParquet(f"{target}/part", schema, file_name_suffix=".parquet")
  return _spans(target, time.time())


def beam(name: str, model: str, files: Sequence[str], target: str) -> list[Span]:
  """Tables through Beam's DirectRunner."""
  sys.modules["jax"] = None  # type: ignore[assignment]
  import apache_beam  # noqa: PLC0415
  import pyarrow.parquet as pq  # noqa: PLC0415
  from apache_beam.options.pipeline_options import PipelineOptions  # noqa: PLC0415

  from jax2tf.tools.batch import on_beam  # noqa: PLC0415
  from jax2tf.tools.batch.engines import Rows  # noqa: PLC0415

  spans = f"{target}.spans"  # one line for each table, from any process

  def tables() -> Any:
    inner = on_beam.tables(model)

    class Timed(type(inner)):  # type: ignore[misc]
      def process(self, table: Any) -> Any:
        begin = time.time()
        yield from super().process(table)
        with open(spans, "a", encoding="utf-8") as file:
          file.write(json.dumps((os.getpid(), begin, time.time(), table.num_rows)) + "\n")

    return Timed()

  schema = Rows(model).arrow(pq.read_table(files[0]).slice(0, 1)).schema
  with apache_beam.Pipeline(options=PipelineOptions([], runner="FnApiRunner")) as pipeline:
    read = pipeline | apache_beam.io.ReadFromParquetBatched(
      f"{pathlib.Path(files[0]).parent}/*.parquet"
    )
    found = read | apache_beam.ParDo(tables())
    _ = found | apache_beam.io.WriteToParquetBatched(
      f"{target}/part", schema, file_name_suffix=".parquet"
    )
  return _spans(target, time.time())


WAYS: dict[str, Callable[..., list[Span]]] = {
  "bare1": bare(1),
  "bare2": bare(2),
  "dask": dask,
  "ray": ray,
  "beam": beam,
  "beam-elements": beam_elements,
  "spark": spark,
}


def main(way: str, name: str, model: str, source: str, target: str) -> None:
  """Prints the seconds from the mean time of the processes' first rows to the last row, those
  before, and the share of each process."""
  started = time.time()
  spans = WAYS[way](name, model, sorted(map(str, pathlib.Path(source).glob("*.parquet"))), target)
  rows: dict[int, int] = collections.Counter()
  begins: dict[int, float] = {}
  for process, begin, _, number in spans:
    rows[process] += number
    if number:
      begins[process] = min(begin, begins.get(process, begin))
  first = sum(begins.values()) / len(begins)
  seconds = max(end for _, _, end, _ in spans) - first
  print(
    json.dumps(
      {
        "seconds": seconds,
        "start": first - started,
        "shares": [n / sum(rows.values()) for n in rows.values() if n],
      }
    )
  )


if __name__ == "__main__":
  main(*sys.argv[1:])
