"""Runs every JAX harness through the converter and writes docs/coverage.md; run from a checkout.

`make conformance` uses both cores and resumes where it stopped, with the failures again: results are kept line by line in
build/conformance/, one file for each JAX version, and a crash of the process fails one harness only.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import jax
import tqdm
from absl import app, flags

from jax2tf.tools.sweeps import coverage, workers

_WORKERS = flags.DEFINE_integer("workers", 2, "Processes that run harnesses side by side.", lower_bound=1)
_GROUP = flags.DEFINE_list("groups", [], "Only these groups (primitives); all by default.")
_WAYS = flags.DEFINE_list("ways", ["graph", "gradient"], "Ways to run every case in; of graph, eager, xla, gradient, second, empty.")
_SAMPLED_WAYS = flags.DEFINE_list("sampled_ways", ["eager", "xla", "second"], "Ways to run a seeded sample of the cases in.")
_FRESH = flags.DEFINE_boolean("fresh", False, "Forget earlier results of the chosen cases.")
_SAMPLE = flags.DEFINE_integer("sample", 1000, "The size of that sample.", lower_bound=1)

_FOLDER = pathlib.Path("build/conformance")
# What JAX says where its cache, after many cases, has an executable of another function; in a fresh worker it runs.
_MIXED_UP = "RuntimeProgramInputMismatch"
# TensorFlow and JAX keep what they compile.
_CASES_PER_WORKER = 400
# A case that takes so many seconds hangs.
_PATIENCE = 600


def results_file() -> pathlib.Path:
  """One JSON line for each (harness, way), of the installed JAX."""
  return _FOLDER / f"jax-{jax.__version__}.jsonl"


def read_results() -> dict[tuple[str, str], dict[str, object]]:
  """{(harness, way): outcome}; a later line replaces an earlier one."""
  if not results_file().exists():
    return {}
  rows = [json.loads(line) for line in results_file().read_text().splitlines()]
  return {(row["harness"], row["way"]): row for row in rows}


def main(_: list[str]) -> None:
  """Runs what is missing, then writes the report."""
  from tests.conformance import harnesses  # noqa: PLC0415

  _FOLDER.mkdir(parents=True, exist_ok=True)
  everything = harnesses.load()
  cases_of = [(sorted(everything), _WAYS.value), (harnesses.sample(_SAMPLE.value, seed=0), _SAMPLED_WAYS.value)]
  chosen = [(name, way) for names, ways in cases_of for name in names for way in ways]
  chosen = [(name, way) for name, way in chosen if not _GROUP.value or everything[name].group_name in _GROUP.value]
  done = {} if _FRESH.value else read_results()
  missing = [case for case in chosen if case not in done or done[case]["status"] == "fail" or _MIXED_UP in str(done[case]["detail"])]
  with (
    tqdm.tqdm(total=len(missing), desc=f"JAX {jax.__version__} harnesses", unit="case") as report,
    results_file().open("a", encoding="utf-8", buffering=1) as file,
  ):
    options = {"processes": _WORKERS.value, "renewed_after": _CASES_PER_WORKER, "seconds": _PATIENCE}
    for outcome in workers.each(harnesses.run, missing, harnesses.lost, **options):
      file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
      report.update()
  results = read_results()
  failed = [results[c] for c in chosen if results[c]["status"] == "fail"]
  for row in failed[:50]:
    print(f"FAILED {row['harness']} ({row['way']}): {str(row['detail'])[:300]}")
  coverage.write(row for row in results.values() if row["harness"] in everything)
  counts = {s: sum(results[c]["status"] == s for c in chosen) for s in ("pass", "limit", "skip", "fail")}
  print(", ".join(f"{n} {status}" for status, n in counts.items()))
  sys.exit(bool(failed))


if __name__ == "__main__":
  app.run(main)
