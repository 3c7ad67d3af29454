"""docs/reports/serving.md: the server and batches under load, random requests, and power cuts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from jax2tf.tools.lab import bounds, reports
from jax2tf.tools.lab.pages import table

_ABOUT = """# The server and batches under load

Generated from the numbers in `docs/reports/data`; do not edit. `make serving` measures the server,
`make power-cut` and `make pipelines` the rest. Every answer is compared with JAX.

## Replicas

{concurrency} clients send requests of {rows[0]} to {rows[1]} rows by gRPC. They share
{cores} cores with the server. The prediction for n replicas is the smaller of two rates: n times
the rate of one replica, and the rate at which the CPU time of the requests fills all cores.
"""

_KILLED = """
## Killed processes

With two replicas, one process of each kind is killed (`kill -9`) under the same load.
Clients repeat `UNAVAILABLE` for two minutes.
"""

_SOAK = f"""
## A long run

Requests, while versions are replaced and replicas are killed. Memory is the largest in each third
of the run; `make serving` fails if the last third needs more than {bounds.GROWTH - 1:.0%} more than
the second.
"""

_REQUESTS = """
## Random requests

The server must answer every valid request with JAX's values, and refuse every invalid request
with 4xx, or with a status such as `INVALID_ARGUMENT`. A request with changed bytes may be
refused, or answered as a separate parser reads it.
[The numbers](data/server-fuzz.json) have a row for each of the {kinds} kinds.
"""
# Requests that JAX answers, by the beginnings of their kinds; all others must be refused.
_VALID, _CHANGED = ("values of", "texts", "a product"), "changed bytes"

_CUTS = """
## Power cuts while models are saved

`make power-cut` saves models to ext4 on a loop device, and cuts the power at a random moment:
before one of the calls of the system that publish the model, or up to a second after `save`
returned. `EXT4_IOC_SHUTDOWN` is the cut: nothing more reaches the device, and what the system held
in memory is lost. The file system is mounted again and the model runs. Before half of the cuts,
another program synced a file, which writes the journal. *New* and *old*: the whole new
model, or the whole old model if the save had not ended. *Half*: a model that does not load, or
computes something else. *None*: no model, where one had been. *Lost*: the old model, although the
save had ended. *Without*: `os.fsync` does nothing, and the cuts are the same.
"""
_AFTER_CUTS = """
The test does not simulate what the disk's own cache would lose: fsync empties that cache, if the
disk obeys. *LiteRT* without fsync is never half: ext4 itself writes a file that replaces another by
a rename. Other file systems need not.
"""
CUTS = ("new", "old", "half", "none", "lost")
WITH, WITHOUT = "with fsync", "without"

_PIPELINES = """
## Batches

`make pipelines`, on two cores; [Batch inference](../guide/batch.md) is the guide. *batch*: `jax2tf
batch` with one and two workers; *bare*: TensorFlow in one and two processes, written by hand; Ray,
Dask and Spark have two processes, Beam has one. Every process has one thread of TensorFlow within
and one between ops. The start-up is not part of the rate. Ray's rate includes reading the rows into
its object store. The numbers are medians of the rounds, in which all ways run in turn. The outputs
of all ways equal `jax2tf batch`, whose first rows are compared with JAX, to 1e-5 of the
largest.
"""
_TITLES = {
  "mlp": "mlp, whose speed is limited by the code around it",
  "encoder": "encoder, whose speed is limited by matrix products of MiniLM's sizes",
  "engines": "mlp, engines that handle elements or small batches",
}


def text() -> str:
  """The page."""
  parts = (_replicas, _kills, _soak, _requests, _power_cuts, _pipelines)
  return "\n".join([line for part in parts for line in part()] + [""])


def _load() -> list[tuple[str, Mapping[str, Any]]]:
  return sorted(reports.read("serving-load").items())


def _replicas() -> Iterator[str]:
  yield _ABOUT.format(**_load()[0][1])
  rows = []
  for version, load in _load():
    one = load[bounds.RUNS[1]]
    for count, name in bounds.RUNS.items():
      run, expected = load[name], bounds.predicted(one, count, load["cores"])
      rate = run["requests per second"]
      rates = [f"{rate:,.0f}", f"{expected:,.0f}", f"{rate / expected:.2f}"]
      latencies = [f"{run[name]:.0f}" for name in ("p50 ms", "p99 ms")]
      rows.append([version, count, f"{run['start s']:.1f}", *rates, *latencies])
  head = ["JAX", "replicas", "start, s", "requests/s", "predicted", "measured / predicted"]
  yield from (*table([*head, "p50, ms", "p99, ms"], rows), "")
  for version, load in _load():
    one = load[bounds.RUNS[1]]
    parts = ", ".join(f"{one[name]:.2f} ms in {words}" for name, words in bounds.COSTS.items())
    yield (
      f"JAX {version}: with one replica, a request takes {parts}, of CPU time. The load of the "
      f"machine before was {load['load before']}."
    )


def _kills() -> Iterator[str]:
  rows = []
  for version, load in _load():
    runs = {name.removesuffix(" killed"): run for name, run in load.items() if " killed" in name}
    runs["the server, started again"] = runs.pop("server killed and started again")
    for name, run in runs.items():
      counts = [run[key] for key in ("requests", "retries", "wrong", "errors")]
      whole = f"{run['whole again s']:.1f}" if "whole again s" in run else ""
      rows.append([version, name, *counts, f"{run['longest outage s']:.1f}", whole])
    counts = [load["with kills"][key] for key in ("requests", "retries", "wrong", "errors")]
    rows.append([version, "all", *counts, "", ""])
  head = ["JAX", "killed", "requests", "sent again", "wrong", "lost"]
  yield _KILLED
  yield from table([*head, "longest time without an answer, s", "whole again after, s"], rows, 2)


def _soak() -> Iterator[str]:
  report = dict(sorted(reports.read("serving-soak").items()))
  figures = next(iter(report.values()))
  rows = [[name, *(soak.get(name, "") for soak in report.values())] for name in figures]
  yield _SOAK
  yield from table(["", *(f"JAX {version}" for version in report)], rows, words=1 + len(report))


def _requests() -> Iterator[str]:
  report = sorted(reports.read("server-fuzz").items())
  [section, *_] = [section for _, section in report]
  yield _REQUESTS.format(kinds=sum(len(section[interface]) for interface in ("REST", "gRPC")))
  columns = ("requests", "answered", "refused", "wrong", "lost")
  for version, section in report:
    rows = []
    for interface in ("REST", "gRPC"):
      sums = {group: dict.fromkeys(columns, 0) for group in ("valid", "invalid", _CHANGED, "all")}
      for kind, numbers in section[interface].items():
        group = "valid" if kind.startswith(_VALID) else kind if kind == _CHANGED else "invalid"
        for column in columns:
          sums[group][column] += numbers[column]
          sums["all"][column] += numbers[column]
      rows += [[interface, group, *counts.values()] for group, counts in sums.items()]
    yield from table([f"JAX {version}", "", *columns], rows, words=2)


def _power_cuts() -> Iterator[str]:
  report = reports.read("power-cut")
  rows = [
    [kind, way, sum(found.values()), *(found.get(outcome, 0) for outcome in CUTS)]
    for kind, ways in report["cuts"].items()
    for way, found in ways.items()
  ]
  yield _CUTS
  yield from table(["saved", "fsync", "cuts", *CUTS], rows, words=2)
  yield _AFTER_CUTS


def _pipelines() -> Iterator[str]:
  report = sorted(reports.read("pipelines").items())
  yield _PIPELINES
  for part, title in _TITLES.items():
    numbers = {version: section[part] for version, section in report if part in section}
    for version, found in numbers.items():
      start, rates = found["start_seconds"], found["rows_per_second"]
      rounds = max(map(len, rates.values()), default=0)
      rows = [
        [
          way,
          *(f"{statistics.median(of[way]):,.{digits}f}" for of, digits in ((rates, 0), (start, 1))),
        ]
        for way in rates
      ]
      yield from (f"### {title}: {found['rows']:,} rows, rounds: {rounds}, JAX {version}", "")
      yield from (*table(["", "rows/s", "start-up, s"], rows), "")
      yield from (f"- {fault}" for fault in found["faults"])
