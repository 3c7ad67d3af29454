"""Runs random programs through the converter and compares each step with JAX; needs a checkout.

The same --seed and --programs give the same programs. Workers are renewed every few hundred
programs. Hypothesis shrinks each mismatch, which is printed as Python for a `Case` row.
docs/reports/data/fuzz.json holds the counts by JAX version.

With --control the programs have branches, loops, rematerialisation and custom rules, and their
derivatives are compared too. The counts are in docs/reports/data/fuzz-control.json.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
import jax
from rich.progress import track

from jax2tf.tools.lab import pages, workers
from jax2tf.tools.lab.options import commas

# Workers are renewed, because TensorFlow and JAX never free compiled functions.
_PROGRAMS_PER_WORKER = 250
_PROGRAMS, _STEPS = 2000, 8
# A program that takes longer, in seconds, hangs.
_PATIENCE = 60
# The number of programs that hypothesis may try to shrink one mismatch.
_SHRINK = 60
_FEW_OPTIMIZATIONS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def _run_batch(count: int, seed: int, functions_of: Sequence[str], steps: int) -> dict[str, Any]:
  """The counts and mismatches of `count` programs."""
  import hypothesis  # noqa: PLC0415  (the test extra)

  from tests.support.conformance import differential, program_rows_arrays, programs  # noqa: PLC0415  (only a checkout has them)

  names = tuple(functions_of or program_rows_arrays.ROWS)
  options: dict[str, Any] = {
    "database": None,
    "deadline": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
  }
  functions: collections.Counter[str] = collections.Counter()
  ran, found = [0], dict[tuple[str, str], Any]()

  @hypothesis.seed(seed)
  @hypothesis.settings(max_examples=count, phases=[hypothesis.Phase.generate], **options)
  @hypothesis.given(programs.programs(names, steps))
  def collect(program: Any) -> None:
    ran[0] += 1
    functions.update(step.name for step in program.steps)
    print(program, file=sys.stderr, flush=True)  # if this process dies, the last one is the cause
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    for mismatch in differential.check(program):
      found.setdefault((mismatch.kind, mismatch.name), mismatch)

  collect()
  faulthandler.cancel_dump_traceback_later()
  print(f"{ran[0]} programs, {len(found)} mismatches to shrink", file=sys.stderr)
  failures = [
    (m.kind, m.name, m.detail, repr(m.program))
    for m in (_shrunk(m, options) for m in found.values())
  ]
  return {"programs": ran[0], "functions": functions, "failures": failures}


def _run_control_batch(count: int, seed: int) -> dict[str, Any]:
  """As `_run_batch`, of programs with control flow and their derivatives."""
  # Each program is compiled for one run. XLA reads its flags when it starts.
  jax.config.update("jax_disable_most_optimizations", True)
  os.environ.setdefault("XLA_FLAGS", _FEW_OPTIMIZATIONS)

  from tests.support.conformance import control_differential, control_programs  # noqa: PLC0415

  generator = control_programs.Generator(seed)
  functions: collections.Counter[str] = collections.Counter()
  found: dict[tuple[str, str], Any] = {}
  for _ in range(count):
    program = generator.program()
    functions.update([f"way: {program.way}", *(node.kind for node in program.nodes())])
    print(program, file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    for mismatch in control_differential.check(program):
      if mismatch.kind == "jax":  # some combinations of transformations are beyond JAX
        functions["refused by JAX itself"] += 1
      else:
        found.setdefault((mismatch.kind, mismatch.detail[:60]), mismatch)
  faulthandler.cancel_dump_traceback_later()
  print(f"{count} programs, {len(found)} mismatches to shrink", file=sys.stderr)
  smallest = [control_differential.shrunk(m) for m in found.values()]
  failures = [(m.kind, m.name, m.detail, repr(m.program)) for m in smallest]
  return {"programs": count, "functions": functions, "failures": failures}


class _EnoughError(BaseException):
  """Ends a search of hypothesis. It is no Exception, because hypothesis treats those as failures of
  the program."""


def _shrunk(mismatch: Any, options: dict[str, Any]) -> Any:
  """The smallest program of the same function that hypothesis finds with the same failure; else the
  mismatch itself."""
  import hypothesis  # noqa: PLC0415

  from tests.support.conformance import differential, program_rows_arrays, programs  # noqa: PLC0415

  best, calls = mismatch, 0

  def fails(program: Any) -> bool:
    nonlocal best, calls
    calls += 1
    if calls > _SHRINK:
      raise _EnoughError
    same = [
      m for m in differential.check(program) if (m.kind, m.name) == (mismatch.kind, mismatch.name)
    ]
    if same and len(repr(same[0].program)) <= len(repr(best.program)):
      best = same[0]
    return bool(same)

  if mismatch.name in program_rows_arrays.ROWS:
    with contextlib.suppress(_EnoughError, hypothesis.errors.NoSuchExample):
      hypothesis.find(
        programs.programs((mismatch.name,), 1),
        fails,
        settings=hypothesis.settings(max_examples=_SHRINK, **options),
      )
  return best


def _lost(error: workers.LostError, _: int, seed: int, *__: Any) -> dict[str, Any]:
  """The result of a batch whose process died: a failure."""
  culprit = [line for line in error.said.splitlines() if line.startswith("Program(")][-1:]
  return {
    "programs": 0,
    "functions": {},
    "failures": [("crash", f"seed {seed}", error.said[-1000:] or str(error), *(culprit or [""]))],
  }


@click.command
@click.option("--programs", type=click.IntRange(1), default=_PROGRAMS, help="How many programs.")
@click.option("--seed", type=int, default=0, help="Of the first batch; each takes the next one.")
@click.option("--functions", "names", default="", callback=commas, help="Use only these functions.")
@click.option("--control", is_flag=True, help="Programs with control flow and derivatives.")
def main(programs: int, seed: int, names: list[str], control: bool) -> None:
  """Runs all batches, prints the mismatches, and records the counts of a whole run."""
  whole, rest = divmod(programs, _PROGRAMS_PER_WORKER)
  counts = [_PROGRAMS_PER_WORKER] * whole + [rest] * bool(rest)
  run: Any = _run_control_batch if control else _run_batch
  more = () if control else (names, _STEPS)
  batches = [(count, seed + i, *more) for i, count in enumerate(counts)]
  total, functions = 0, collections.Counter[str]()
  failures: dict[str, str] = {}  # the mismatch -> its detail and its program
  results = workers.each(run, batches, _lost, processes=2, renewed_after=1)
  for result in track(results, "batches of random programs", total=len(batches)):
    total += result["programs"]
    functions.update(result["functions"])
    for kind, name, detail, program in result["failures"]:
      failures.setdefault(f"{kind}: {name}", f"{detail}\n  {program}\n")
  for mismatch, detail in failures.items():
    print(f"MISMATCH {mismatch}: {detail}")
  if programs == _PROGRAMS and not names:
    kept = "fuzz-control" if control else "fuzz"
    counted = {"programs": total, "seed": seed, "mismatches": sorted(failures)}
    pages.keep("coverage", kept, counted | {"functions": dict(sorted(functions.items()))})
  print(
    f"{total} programs, {sum(functions.values())} steps of {len(functions)} functions, "
    f"{len(failures)} mismatches"
  )
  sys.exit(bool(failures))


if __name__ == "__main__":
  main()
