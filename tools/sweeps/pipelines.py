"""Files of rows through two models by `jax2tf batch`, bare processes and engines: docs/pipelines.json and docs/pipelines.md.

Usage: python -m jax2tf.tools.sweeps.pipelines [--parts=mlp,encoder,kills,millions]. A part that the report has is not run again
with --resume. Rates leave out what a process needs until it has loaded the model. Each rate is the best of a few runs by turns.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from jax2tf.converters import saved_model
from jax2tf.tools.batch import plan, supervisor
from jax2tf.tools.sweeps import measure, options, pipeline_runs

_FILES = 8
_ROWS = {"mlp": 40_000, "encoder": 3_000}
_WIDTH, _LAYERS = 384, 6
# (what, of what, at least)
ASKED = {"mlp": [("ray", "bare 2", 0.6)], "encoder": [("batch 2", "batch 1", 1.8), ("batch 2", "bare 2", 0.95), ("ray", "bare 2", 0.95)]}


def mlp(params: Any, x: jax.Array) -> jax.Array:
  """x f32[b,784] -> f32[b,10]; bound by what surrounds it."""
  for w in params[:-1]:
    x = jnp.tanh(x @ w)
  return x @ params[-1]


def encode(params: Any, ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
  """ids i32[b,s], attention_mask i32[b,s] -> f32[b,384]; bound by its products, of MiniLM's sizes."""
  mask = attention_mask.astype(jnp.float32)
  x = params["embedding"][ids]
  for layer in params["layers"]:
    query, key, value = (x @ w for w in layer["attention"])
    scores = query @ key.swapaxes(1, 2) / _WIDTH**0.5 + jnp.where(mask[:, None] > 0, 0.0, -1e9)
    x = x + jax.nn.softmax(scores) @ value
    x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def _save(name: str, folder: pathlib.Path) -> None:
  random = np.random.default_rng(0)

  def weights(*shape: int) -> np.ndarray:
    return random.normal(0, 0.05, shape).astype(np.float32)

  if name == "encoder":
    layers = [
      {"attention": [weights(_WIDTH, _WIDTH) for _ in range(3)], "up": weights(_WIDTH, 4 * _WIDTH), "down": weights(4 * _WIDTH, _WIDTH)}
      for _ in range(_LAYERS)
    ]
    params: Any = {"embedding": weights(1000, _WIDTH), "layers": layers}
    saved_model.save(encode, params, folder, inputs={"ids": "i32[b,s]", "attention_mask": "i32[b,s]"}, outputs=["y"])
  else:
    sizes = [784, 512, 512, 10] if name == "mlp" else [4, 8, 1]
    params = [weights(*pair) for pair in itertools.pairwise(sizes)]
    saved_model.save(mlp, params, folder, inputs={"x": f"f32[b,{sizes[0]}]"}, outputs=["y"])


def _write(name: str, folder: pathlib.Path, rows: int, files: int = _FILES) -> None:
  folder.mkdir()
  random, each = np.random.default_rng(1), rows // files
  for k in range(files):
    ids = np.arange(k * each, (k + 1) * each)
    if name == "encoder":
      column: Any = pa.array([random.integers(0, 1000, random.integers(8, 65)) for _ in ids])
      table = pa.table({"id": ids, "ids": column})
    else:
      width = 784 if name == "mlp" else 4
      flat = random.normal(size=each * width).astype(np.float32)
      table = pa.table({"id": ids, "x": pa.FixedSizeListArray.from_arrays(pa.array(flat), width)})
    pq.write_table(table, folder / f"part-{k:04}.parquet")


def _batch(model: str, source: str, target: pathlib.Path, workers: int) -> supervisor.Outcome:
  with plan.opened([f"{source}/*.parquet"], target, plan.Asked(model, "serving_default", {}, [], "", 256)) as found:
    return supervisor.run(found, workers, 1)


def _checked(rows: int, target: pathlib.Path) -> None:
  ids = np.sort(pq.read_table(target, columns=["id"])["id"].to_numpy())
  if not np.array_equal(ids, np.arange(rows)):
    raise SystemExit(f"{target}: {rows} rows went in, {len(ids)} came out, {len(np.unique(ids))} of them different")


def rates(name: str, work: pathlib.Path, rounds: int) -> dict[str, Any]:
  """Rows a second by each way, the best of some rounds, and the share of each actor of Ray."""
  model, source, rows = str(work / f"{name}-model"), str(work / f"{name}-rows"), _ROWS[name]
  _save(name, pathlib.Path(model))
  _write(name, pathlib.Path(source), rows)
  best: dict[str, float] = collections.defaultdict(float)
  shares: list[float] = []

  def ours(workers: int) -> Callable[[pathlib.Path], float]:
    def run(target: pathlib.Path) -> float:
      outcome = _batch(model, source, target, workers)
      return rows / (outcome.seconds - outcome.started)

    return run

  def other(kind: str) -> Callable[[pathlib.Path], float]:
    def run(target: pathlib.Path) -> float:
      target.mkdir()
      said = _run(kind, name, model, source, str(target))
      shares[:] = said.get("shares") or shares
      return rows / said["seconds"]

    return run

  ways = {
    "batch 1": ours(1),
    "batch 2": ours(2),
    "bare 1": other("bare1"),
    "bare 2": other("bare2"),
    "ray": other("ray"),
    "dask": other("dask"),
  }
  for turn in range(rounds):
    for way, run in list(ways.items()):
      target = work / f"{name}-{way.replace(' ', '')}-{turn}"
      try:
        best[way] = max(best[way], run(target))
        _checked(rows, target)
      except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{name}, {way}: {error}", flush=True)
        del ways[way]
      else:
        print(f"{name}, {way}: {best[way]:,.0f} rows/s", flush=True)
  asked = [
    {"what": a, "of": b, "asked": least, "ratio": best[a] / best[b] if a in best and b in best else None} for a, b, least in ASKED[name]
  ]
  return {"rows": rows, "rows_per_second": dict(best), "ratios": asked, "ray_shares": shares}


def _run(*words: str) -> dict[str, Any]:
  done = subprocess.run(
    [sys.executable, "-m", pipeline_runs.__name__, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=500, check=True
  )
  found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
  return found


def kills(work: pathlib.Path) -> dict[str, Any]:
  """`jax2tf batch` with two workers, of which one is killed in the middle of a shard and one in its first write."""
  model, source, rows = str(work / "small-model"), str(work / "kill-rows"), 400_000
  _save("small", pathlib.Path(model))
  _write("small", pathlib.Path(source), rows, 4)
  digests, report = set(), {}
  for moment, size in (("never", -1), ("write", 0), ("middle", 1)):
    killed: list[int] = []
    target, ended = work / f"killed-{moment}", threading.Event()

    def kill(target: pathlib.Path = target, killed: list[int] = killed, ended: threading.Event = ended, size: int = size) -> None:
      while not killed and size >= 0 and not ended.wait(0.0005):
        for path in target.glob(".*.writing.*.parquet"):
          if _size(path) >= size:  # bytes that are there: none yet, or those of the windows before
            killed.append(int(path.name.split(".")[1]))
            os.kill(killed[-1], signal.SIGKILL)
            break

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = _batch(model, source, target, 2)
    ended.set()
    killer.join()
    _checked(rows, target)
    files = sorted(target.iterdir())
    digests.add(hashlib.sha256(b"".join(path.read_bytes() for path in files if path.suffix == ".parquet")).hexdigest())
    report[moment] = {"workers_killed": len(killed), "renewed": outcome.renewed, "files": [path.name for path in files]}
  return report | {"rows": rows, "one_checksum": len(digests) == 1}


def _size(path: pathlib.Path) -> int:
  try:
    return path.stat().st_size
  except FileNotFoundError:
    return -1


def millions(work: pathlib.Path, rows: int) -> dict[str, Any]:
  """Many rows with a small model: memory of the workers, and the rate of the last minute by that of the first."""
  model, source, target = str(work / "many-model"), str(work / "many-rows"), work / "many"
  _save("small", pathlib.Path(model))
  _write("small", pathlib.Path(source), rows, 100)
  series: list[tuple[float, int, int]] = []  # seconds, files, bytes
  ended, begin = threading.Event(), time.monotonic()

  def watch() -> None:
    while not ended.wait(1.0):
      workers = [child.memory_info().rss for child in psutil.Process().children() if child.is_running()]
      series.append((time.monotonic() - begin, len(list(target.glob("part-*.parquet"))), max(workers, default=0)))

  watcher = threading.Thread(target=watch)
  watcher.start()
  try:
    outcome = _batch(model, source, target, 2)
  finally:
    ended.set()
    watcher.join()
  _checked(rows // 100 * 100, target)
  running = [each for each in series if each[1]]
  span = min(60.0, (running[-1][0] - running[0][0]) / 2)
  first = [each for each in running if each[0] <= running[0][0] + span]
  last = [each for each in running if each[0] >= running[-1][0] - span]
  speed = [(part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0]) for part in (first, last)]
  memory = [max(each[2] for each in part) / 2**20 for part in (first, last)]
  return {"rows": rows, "seconds": outcome.seconds, "window_seconds": span, "last_by_first": speed[1] / speed[0], "megabytes": memory}


@click.command
@click.option("--parts", callback=options.commas, default="mlp,encoder,kills,millions", help="What to measure.")
@click.option("--rounds", type=click.IntRange(1), default=2, help="How often each rate is measured.")
@click.option("--rows", type=click.IntRange(1000), default=10_000_000, help="Of the part `millions`.")
@click.option("--resume", is_flag=True, help="Keeps the parts that the report has.")
def main(parts: list[str], rounds: int, rows: int, resume: bool) -> None:
  """Measures, and writes the report after each part."""
  file = measure.DOCS / "pipelines.json"
  report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
  for part in parts:
    if resume and part in report:
      continue
    with tempfile.TemporaryDirectory() as folder:
      work = pathlib.Path(folder)
      report[part] = {"kills": kills, "millions": lambda work: millions(work, rows)}.get(
        part, lambda work, part=part: rates(part, work, rounds)
      )(work)
    report[part]["load_at_end"] = os.getloadavg()[0]
    file.write_text(json.dumps(report, indent=2) + "\n")
    (measure.DOCS / "pipelines.md").write_text(page(report))


def page(report: Mapping[str, Any]) -> str:
  """The report in Markdown."""
  lines = [
    "# Batch inference, measured",
    "",
    f"By `make pipelines`, on {os.cpu_count()} cores; start-up apart, the best of some runs. [batch.md](batch.md) is the guide.",
    "",
  ]
  for part in (part for part in ("mlp", "encoder") if part in report):
    found = report[part]
    lines += [f"## {part}, {found['rows']:,} rows (load average {found['load_at_end']:.1f})", "", "| Way | rows/s |", "|---|---|"]
    lines += [f"| {way} | {rate:,.0f} |" for way, rate in found["rows_per_second"].items()] + [
      "",
      "| Ratio | Found | Asked |",
      "|---|---|---|",
    ]
    for each in found["ratios"]:
      ratio = "not run" if each["ratio"] is None else f"{each['ratio']:.2f}"
      lines.append(f"| {each['what']} / {each['of']} | {ratio} | >= {each['asked']} |")
    lines += [f"| least share of an actor of Ray | {min(found['ray_shares'], default=0):.2f} | >= 0.4 |", ""]
  if found := report.get("kills"):
    killed = sum(found[moment]["workers_killed"] for moment in ("write", "middle"))
    same = "the same checksum" if found["one_checksum"] else "another checksum"
    lines += [
      "## Kills",
      "",
      f"`jax2tf batch`, {found['rows']:,} rows, {killed} workers killed, in a write and in the middle: 0 rows lost, 0 twice, {same}.",
      "",
    ]
  if found := report.get("millions"):
    first, last = found["megabytes"]
    lines += [
      "## Many rows",
      "",
      f"{found['rows']:,} rows in {found['seconds']:.0f} s.",
      f"The rate of the last {found['window_seconds']:.0f} s is {found['last_by_first']:.2f} of that of the first.",
      f"The largest worker had {first:.0f} MB then, and {last:.0f} MB at the end.",
      "",
    ]
  return "\n".join(lines)


if __name__ == "__main__":
  main()
