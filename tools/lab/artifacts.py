"""Runs JAX's harnesses there and back, through `stablehlo.load`, for docs/reports/artifacts.md;
needs a checkout.

`make artifacts` resumes where it stopped and repeats failures. Results are lines in
build/artifacts/, one file for each JAX version.
"""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from jax2tf.tools.lab import pages, sweeps
from jax2tf.tools.lab.options import commas
from tests.support.conformance import artifacts, harnesses

_CASES_PER_WORKER = 400
_PATIENCE = 300  # seconds, beyond which a case hangs
# How many harnesses run; with symbolic sizes, how many of these.
_SAMPLES = {"artifact": 1500, "symbolic": 300}


@click.command
@click.option("--groups", default="", callback=commas, help="Run only these groups (primitives).")
@click.option("--fresh", is_flag=True, help="Discard earlier results of the chosen cases.")
@click.option("--processes", default=2, show_default=True, help="How many run at a time.")
def main(groups: list[str], fresh: bool, processes: int) -> None:
  """Runs the missing cases and writes the report."""
  chosen = [(name, "artifact") for name in artifacts.sample(_SAMPLES["artifact"])]
  chosen += [(name, "symbolic") for name in artifacts.symbolic_sample(_SAMPLES["symbolic"])]
  chosen = harnesses.in_groups(chosen, groups)
  results = sweeps.run(
    "artifacts",
    artifacts.run,
    chosen,
    harnesses.lost,
    key=("harness", "way"),
    again=lambda row: row["status"] == "fail",
    fresh=fresh,
    processes=processes,
    renewed_after=_CASES_PER_WORKER,
    seconds=_PATIENCE,
  )
  rows = [results[case] for case in chosen]
  for row in rows:
    if row["status"] == "fail":
      print(f"FAILED {row['harness']} ({row['way']}): {str(row['detail'])[:300]}")
  if not groups:
    pages.keep("artifacts", "artifacts-harnesses", summary(rows))
  sys.exit(any(row["status"] == "fail" for row in rows))


_KINDS = {"pass": "right", "limit": "refused", "fail": "wrong", "skip": "left out"}


def _kind(row: Mapping[str, Any]) -> str:
  """What the page calls a case. One that raised has no values, and so no wrong ones."""
  raised = row["status"] == "fail" and re.match(r"\w+(Error|Exception): ", str(row["detail"]))
  return "error" if raised else _KINDS[row["status"]]


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """{way: counts}, the ways, and the cases that are not right."""
  found: dict[str, Any] = {"ways": list(artifacts.WAYS)}
  for way in artifacts.WAYS:
    of_way = [row for row in rows if row["way"] == way]
    tally = collections.Counter(map(_kind, of_way))
    counts = {kind: tally[kind] for kind in (*_KINDS.values(), "error")}
    found[way] = {"groups": len({row["group"] for row in of_way}), **counts}
  found["others"] = [
    f"{row['harness'][:80]} ({row['way']}): {' '.join(str(row['detail']).split())[:160]}"
    for row in rows
    if row["status"] in ("limit", "fail")
  ]
  return found


if __name__ == "__main__":
  main()
