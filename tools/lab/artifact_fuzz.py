"""Changes stored artifacts at random and loads them; needs a checkout.

Each is refused, or computes what jaxlib computes from the same bytes. The same --seed and --mutants
give the same files. A process runs hundreds of them and is renewed if one ends it. A run resumes
where the last one stopped: the outcomes are lines in build/artifact-fuzz/, one file for each JAX
version. docs/reports/data/artifacts-mutants.json holds the counts of a whole run.
"""

from __future__ import annotations

import collections
import resource
import sys
from collections.abc import Sequence
from typing import Any

import click
import jax

from jax2tf.tools.lab import pages, sweeps, workers
from tests.support.conformance import mutant_runs
from tests.support.conformance.mutant_runs import Outcome

_MUTANTS, _PER_WORKER = 5000, 400
# In seconds, for the phases together and the start of a process, on a machine that has other work.
_PATIENCE = 12 * mutant_runs.SECONDS
_MOST_MEMORY = 4 * 2**30  # of a process


def run(seed: int) -> Outcome:
  """One mutant, in a process with little memory."""
  resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
  jax.config.update("jax_disable_most_optimizations", True)  # each is compiled for one run
  return mutant_runs.run(seed)


def lost(error: workers.LostError, seed: int) -> Outcome:
  """The outcome of a mutant that ended its process."""
  return mutant_runs.lost(error.said, str(error), seed)


@click.command
@click.option("--mutants", type=click.IntRange(1), default=_MUTANTS, help="How many mutants.")
@click.option("--seed", type=int, default=0, help="Of the first mutant; each takes the next one.")
@click.option("--fresh", is_flag=True, help="Discard earlier outcomes.")
@click.option("--processes", default=2, show_default=True, help="How many run at a time.")
def main(mutants: int, seed: int, fresh: bool, processes: int) -> None:
  """Runs all mutants, prints the faults, and records the counts of a whole run."""
  tasks = [(seed + i,) for i in range(mutants)]
  results = sweeps.run(
    "artifact-fuzz",
    run,
    tasks,
    lost,
    key=("seed",),
    again=lambda row: row["status"] not in mutant_runs.FINE,
    fresh=fresh,
    processes=processes,
    renewed_after=_PER_WORKER,
    seconds=_PATIENCE,
  )
  outcomes = [Outcome(**results[task]) for task in tasks]
  faults = [outcome for outcome in outcomes if outcome.status not in mutant_runs.FINE]
  for fault in faults:
    print(f"FAULT {fault}")
  if mutants == _MUTANTS:
    pages.keep("artifacts", "artifacts-mutants", summary(outcomes))
  print(collections.Counter(outcome.status for outcome in outcomes))
  sys.exit(bool(faults))


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
  """{way: counts by status}."""
  found: dict[str, Any] = {}
  for way in sorted({outcome.way for outcome in outcomes}):
    tally = collections.Counter(one.status for one in outcomes if one.way == way)
    fine = {status: tally[status] for status in mutant_runs.FINE}
    found[way] = {**fine, "faults": tally.total() - sum(fine.values())}
  return found


if __name__ == "__main__":
  main()
