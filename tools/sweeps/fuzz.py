"""Runs random programs through the converter and compares each step with JAX; run from a checkout.

`make conformance` draws the same programs for the same --seed and --programs. Workers are renewed every few hundred programs. Each mismatch
is shrunk by hypothesis and printed as Python that a `Case` row can take; the counts go to docs/fuzz.json, one entry for each JAX version.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import tqdm
from absl import app, flags

from jax2tf.tools.sweeps import workers

_PROGRAMS = flags.DEFINE_integer("programs", 2000, "How many programs.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the first batch; each batch takes the next.")
_WORKERS = flags.DEFINE_integer("workers", 1, "Processes that run batches side by side.", lower_bound=1)
_FUNCTIONS = flags.DEFINE_list("functions", [], "Only programs of these functions; all by default.")
_STEPS = flags.DEFINE_integer("steps", 8, "Functions in a program, at most.", lower_bound=1)
_RECORD = flags.DEFINE_boolean("record", True, "Write docs/fuzz.json.")

_REPORT = pathlib.Path("docs/fuzz.json")
# TensorFlow and JAX keep what they compile.
_PROGRAMS_PER_WORKER = 250
# A program that takes so many seconds hangs.
_PATIENCE = 60
# How many programs hypothesis may try to shrink one mismatch.
_SHRINK = 60


def _run_batch(count: int, seed: int, functions_of: Sequence[str], steps: int) -> dict[str, Any]:
  """Counts and mismatches of `count` programs."""
  import hypothesis  # noqa: PLC0415  (the test extra)

  from tests.conformance import differential, program_rows_arrays, programs  # noqa: PLC0415  (only a checkout has them)

  names = tuple(functions_of or program_rows_arrays.ROWS)
  options: dict[str, Any] = {"database": None, "deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
  functions: collections.Counter[str] = collections.Counter()
  ran, found = [0], dict[tuple[str, str], Any]()

  @hypothesis.seed(seed)
  @hypothesis.settings(max_examples=count, phases=[hypothesis.Phase.generate], **options)
  @hypothesis.given(programs.programs(names, steps))
  def collect(program: Any) -> None:
    ran[0] += 1
    functions.update(step.name for step in program.steps)
    print(program, file=sys.stderr, flush=True)  # the last one is the culprit if this process dies
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    for mismatch in differential.check(program):
      found.setdefault((mismatch.kind, mismatch.name), mismatch)

  collect()
  faulthandler.cancel_dump_traceback_later()
  print(f"{ran[0]} programs, {len(found)} mismatches to shrink", file=sys.stderr)
  failures = [(m.kind, m.name, m.detail, repr(m.program)) for m in (_shrunk(m, options) for m in found.values())]
  return {"programs": ran[0], "functions": functions, "failures": failures}


class _EnoughError(BaseException):
  """Ends a search of hypothesis, which takes any Exception for a failure of the program."""


def _shrunk(mismatch: Any, options: dict[str, Any]) -> Any:
  """The smallest program of one such function that hypothesis finds to fail in the same way; else the mismatch itself."""
  import hypothesis  # noqa: PLC0415

  from tests.conformance import differential, program_rows_arrays, programs  # noqa: PLC0415

  best, calls = mismatch, 0

  def fails(program: Any) -> bool:
    nonlocal best, calls
    calls += 1
    if calls > _SHRINK:
      raise _EnoughError
    same = [m for m in differential.check(program) if (m.kind, m.name) == (mismatch.kind, mismatch.name)]
    if same and len(repr(same[0].program)) <= len(repr(best.program)):
      best = same[0]
    return bool(same)

  if mismatch.name in program_rows_arrays.ROWS:
    with contextlib.suppress(_EnoughError, hypothesis.errors.NoSuchExample):
      hypothesis.find(programs.programs((mismatch.name,), 1), fails, settings=hypothesis.settings(max_examples=_SHRINK, **options))
  return best


def _lost(error: workers.LostError, _: int, seed: int, *__: Any) -> dict[str, Any]:
  """What a batch comes to whose process died: a failure."""
  culprit = [line for line in error.said.splitlines() if line.startswith("Program(")][-1:]
  return {"programs": 0, "functions": {}, "failures": [("crash", f"seed {seed}", error.said[-1000:] or str(error), *(culprit or [""]))]}


def main(_: list[str]) -> None:
  """Runs all batches, prints the mismatches and records the counts."""
  whole, rest = divmod(_PROGRAMS.value, _PROGRAMS_PER_WORKER)
  counts = [_PROGRAMS_PER_WORKER] * whole + [rest] * bool(rest)
  total, functions, failures = 0, collections.Counter[str](), dict[tuple[str, str], tuple[str, ...]]()
  batches = [(count, _SEED.value + i, _FUNCTIONS.value, _STEPS.value) for i, count in enumerate(counts)]
  with tqdm.tqdm(total=_PROGRAMS.value, desc=f"JAX {jax.__version__} random programs", unit="program") as report:
    for result in workers.each(_run_batch, batches, _lost, processes=_WORKERS.value, renewed_after=1):
      total += result["programs"]
      functions.update(result["functions"])
      for kind, name, detail, program in result["failures"]:
        if (kind, name) not in failures:
          failures[kind, name] = (detail, program)
          tqdm.tqdm.write(f"MISMATCH ({kind}) {name}: {detail}\n  {program}\n")
      report.update(result["programs"])
  if _RECORD.value and not _FUNCTIONS.value:
    _record(total, functions, failures)
  print(f"{total} programs, {sum(functions.values())} steps of {len(functions)} functions, {len(failures)} mismatches")
  sys.exit(bool(failures))


def _record(total: int, functions: dict[str, int], failures: dict[tuple[str, str], tuple[str, ...]]) -> None:
  rows = json.loads(_REPORT.read_text(encoding="utf-8")) if _REPORT.exists() else {}
  rows[jax.__version__] = {
    "programs": total,
    "seed": _SEED.value,
    "mismatches": [f"{kind}: {name}" for kind, name in sorted(failures)],
    "functions": dict(sorted(functions.items())),
  }
  _REPORT.write_text(json.dumps(dict(sorted(rows.items())), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
