"""Runs every JAX harness through the converter and writes docs/coverage.md; needs a checkout.

`make conformance` resumes where it stopped and repeats failures. Results are lines in
build/conformance/, one file for each JAX version. A crash of a process fails only one harness.
"""

from __future__ import annotations

import sys

import click

from jax2tf.tools.lab import coverage, sweeps
from jax2tf.tools.lab.options import commas
from tests.support.conformance import harnesses

# JAX's error if its cache, after many cases, returns the executable of another function. In a fresh
# worker the case runs.
_MIXED_UP = "RuntimeProgramInputMismatch"
# Workers are renewed, because TensorFlow and JAX never free compiled functions.
_CASES_PER_WORKER = 400
# A case that takes longer, in seconds, hangs.
_PATIENCE = 600


# The ways in which every case runs, and those in which a seeded sample of so many cases runs.
_WAYS = ("graph", "gradient")
_SAMPLED_WAYS, _SAMPLE = ("eager", "xla", "second"), 1000


@click.command
@click.option("--groups", default="", callback=commas, help="Run only these groups (primitives).")
@click.option("--fresh", is_flag=True, help="Discard earlier results of the chosen cases.")
def main(groups: list[str], fresh: bool) -> None:
  """Runs the missing cases and writes the report."""
  everything = harnesses.load()
  sample = harnesses.sample(_SAMPLE, seed=0)
  cases_of = [(sorted(everything), _WAYS), (sample, _SAMPLED_WAYS)]
  chosen = [(name, way) for names, ways in cases_of for name in names for way in ways]
  chosen = harnesses.in_groups(chosen, groups)
  results = sweeps.run(
    "conformance",
    harnesses.run,
    chosen,
    harnesses.lost,
    key=("harness", "way"),
    again=lambda row: row["status"] == "fail" or _MIXED_UP in str(row["detail"]),
    fresh=fresh,
    processes=2,
    renewed_after=_CASES_PER_WORKER,
    seconds=_PATIENCE,
  )
  failed = [results[c] for c in chosen if results[c]["status"] == "fail"]
  for row in failed[:50]:
    print(f"FAILED {row['harness']} ({row['way']}): {str(row['detail'])[:300]}")
  coverage.write(row for row in results.values() if row["harness"] in everything)
  counts = {
    s: sum(results[c]["status"] == s for c in chosen) for s in ("pass", "limit", "skip", "fail")
  }
  print(", ".join(f"{n} {status}" for status, n in counts.items()))
  sys.exit(bool(failed))


if __name__ == "__main__":
  main()
