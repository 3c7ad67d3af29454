"""docs/reports/serving.md: the server and batches under load, random requests, and power cuts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax2tf.tools.lab import bounds, measure, reports
from jax2tf.tools.lab.pages import table

_ABOUT = """# The server and batches under load

Generated from the numbers in `docs/reports/data`; do not edit. `make serving` measures the server,
`make power-cut` and `make pipelines` the rest. Every answer is compared with JAX's.

## Replicas

{concurrency} clients send requests of {rows[0]} to {rows[1]} rows by gRPC. They share
{cores} cores with the server. The prediction for n replicas is the smaller of n times the rate of
one replica, and the rate at which all cores are busy by the CPU time that a request takes.
"""

_KILLED = """
## Killed processes

With two replicas, one process of each kind is killed (`kill -9`) under the same load.
Clients repeat `UNAVAILABLE` for two minutes.
"""

_SOAK = f"""
## A long run

Requests at a constant rate, while models are added, replaced, removed and damaged and replicas are
killed. Memory is the largest in each third of the run; `make serving` fails if the last third needs
more than {bounds.GROWTH - 1:.0%} more than the second.
"""

_REQUESTS = """
## Random requests

Each valid request has to be answered with JAX's values, and each invalid one
refused with 4xx, or with a status such as `INVALID_ARGUMENT`. A request with changed bytes may be
refused, or answered as a parser of its own reads it.
[The numbers](data/server-fuzz.json) have a row for each of the {kinds} kinds.
"""
# Requests that JAX answers, by the beginnings of their kinds; others but these have to be refused.
_VALID, _CHANGED = ("values of", "texts", "a product"), "changed bytes"

_CUTS = """
## Power cuts while models are saved

`make power-cut` saves models to ext4 on a loop device, and cuts the power at a random moment:
before one of the calls of the system that publish the model, or up to a second after `save`
returned. `EXT4_IOC_SHUTDOWN` is the cut: nothing more reaches the device, and what the system held
in memory is lost. The file system is mounted again and the model is run. Before half of the cuts
another program synced a file of its own, which writes the journal. *New* and *old*: the whole new
model, or the whole one before, where the save had not ended. *Half*: a model that does not load, or
computes something else. *None*: no model, where one had been. *Lost*: the old one, although the
save had ended. *Without*: `os.fsync` does nothing, and the cuts are the same.
"""
_AFTER_CUTS = """
What the disk's own cache would lose is not simulated: fsync empties that cache, where the disk is
honest. *LiteRT* without fsync is never half: ext4 itself writes a file that replaces another by a
rename. Other file systems need not.

Seconds of `Model.save`, median (least to most) of runs in turn, while other programs ran. A ratio
below 1 is less than the runs differ.
"""
CUTS = ("new", "old", "half", "none", "lost")
WITH, WITHOUT = "with fsync", "without"

_PIPELINES = """
## Batches

`make pipelines`, on two cores; [batch.md](../guide/batch.md) is the guide. Each process has one
thread of TensorFlow within and one between ops. Rates exclude the start-up, the mean time until a
process has loaded the model. Ray's includes reading the rows into its object store. All ways run
once in each round. A ratio is of two rates of one round: the median of all rounds, and the smallest
and largest. The outputs of each way are those of `jax2tf batch`, whose first rows are compared with
JAX, to 1e-5 of the largest.
"""


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
  rows = []
  for name, seconds in report["cost"].items():
    ratio = statistics.median(seconds[WITH]) / statistics.median(seconds[WITHOUT])
    rows.append([name, *(measure.spread(seconds[way]) for way in (WITHOUT, WITH)), f"{ratio:.1f}"])
  yield from table(["model", WITHOUT, WITH, "ratio"], rows, words=3)


def _pipelines() -> Iterator[str]:
  report = sorted(reports.read("pipelines").items())
  yield _PIPELINES
  for version, section in report:
    yield from _pipelines_of(version, section)
  yield from ("### Many rows", "")
  for version, section in report:
    if found := section.get("millions"):
      first, last = found["megabytes"]
      yield (
        f"JAX {version}: {found['rows']:,} rows in {found['seconds']:.0f} s, of which "
        f"{found['start_seconds']:.1f} s for start-up. The rate of the last "
        f"{found['window_seconds']:.0f} s is {found['last_by_first']:.2f} times that of the first. "
        f"The largest worker used {first:.0f} MB at the beginning and {last:.0f} MB at the end."
      )
  for version, section in report:
    missed = [text for part in section for text in bounds.missed(part, section[part])]
    if missed:
      yield from ("", f"### Missed, JAX {version}", "", *(f"- {text}" for text in missed))


_TITLES = {
  "mlp": "mlp",
  "encoder": "encoder",
  "engines": "Engines that handle elements or small batches, mlp",
}


def _pipelines_of(version: str, section: Mapping[str, Any]) -> Iterator[str]:
  for part, title in _TITLES.items():
    if part not in section:
      continue
    found = section[part]
    per_second, start = found["rows_per_second"], found["start_seconds"]
    rounds = max(map(len, per_second.values()), default=0)
    yield from (f"### {title}, {found['rows']:,} rows, rounds: {rounds}, JAX {version}", "")
    rows = [
      [
        way,
        f"{statistics.median(rates):,.0f}",
        f"{max(rates):,.0f}",
        f"{statistics.median(start[way]):.1f}",
      ]
      for way, rates in per_second.items()
    ]
    yield from table(["", "rows/s, median", "rows/s, best", "start-up apart, s, median"], rows)
    yield ""
    if part in bounds.RATIOS:
      rows = [
        [f"{way} / {other}", *_spread(bounds.ratios(per_second, way, other)), f">= {least}"]
        for way, other, least in bounds.RATIOS[part]
      ]
      share = f"{min(found['ray_shares'], default=0):.2f}"
      rows.append(["smallest share of a Ray actor", share, "", f">= {bounds.SHARE}"])
      yield from (*table(["ratio", "median", "smallest to largest", "required"], rows), "")


def _spread(ratios: Sequence[float]) -> tuple[str, str]:
  if not ratios:
    return "not run", ""
  return f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"
