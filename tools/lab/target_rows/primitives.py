"""Primitives and random programs in every exporter.

It takes JAX's own harnesses, a few dtypes of each primitive, and 300 seeded programs of
the fuzzer. It exports each to each target. The exporter compares it with JAX in the target's
runtime before it writes a file; the sweep then runs the file on other inputs. It resumes where it
stopped: outcomes are lines in build/targets/, one file for each JAX version.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import pathlib
import random
import re
import tempfile
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis
import jax
import numpy as np

from jax2tf.converters import saved_model
from jax2tf.converters.bundle import children
from jax2tf.converters.export.source import ExportError
from jax2tf.converters.verify import answers as compare
from jax2tf.converters.verify.precision import of_results
from jax2tf.tools.lab import matrix, reports, sweeps, workers
from jax2tf.tools.lab.pages.targets import TITLES
from tests.support.conformance import harnesses, program_rows_arrays, programs

# Workers are renewed, because TensorFlow and JAX never free compiled functions.
_SUBJECTS_PER_WORKER = 100
# Random programs, of at most so many functions, and cases of each primitive, of different dtypes.
_PROGRAMS, _STEPS, _CASES = 300, 4, 4
# An export that takes longer, in seconds, hangs.
_PATIENCE = 180
# The first dtypes for a primitive: those of models.
_DTYPES = (
  "float32",
  "int32",
  "bool",
  "uint32",
  "float16",
  "int8",
  "bfloat16",
  "complex64",
  "uint8",
)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of one subject at one target.

  Attributes:
    subject: "harness:NAME" or "program:NUMBER".
    status: "equal"; "noted": equal except for NaN, infinities or extreme numbers, with a warning;
      "lacks": refused, because the target lacks ops or dtypes; "differs": refused, because its
      answers differ; "silent": a file was written and is wrong; "fails": another error; "skip": JAX
      itself rejects it, or there is nothing to export.
    ops: the ops that the target lacks.
  """

  subject: str
  group: str
  dtype: str
  target: str
  status: str
  ops: Sequence[str] = ()
  detail: str = ""


def subjects(programs: int, most_cases: int) -> list[str]:
  """The names of all subjects, in a seeded order, so that any part of the sweep is a sample."""
  groups: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
  for name, harness in sorted(harnesses.load().items()):
    if not name.endswith(harnesses.X64):
      groups[harness.group_name].append(
        (name, np.dtype(harness.dtype).name if harness.dtype is not None else "")
      )
  rng, chosen = random.Random(0), []
  for cases in groups.values():
    rng.shuffle(cases)
    cases.sort(key=lambda case: _DTYPES.index(case[1]) if case[1] in _DTYPES else len(_DTYPES))
    seen = collections.Counter[str]()
    # the first case of each dtype, then the second, and so on
    ranked: list[tuple[int, int, str]] = []
    for name, dtype in cases:
      ranked.append((seen[dtype], len(ranked), name))
      seen[dtype] += 1
    chosen += [f"harness:{name}" for *_, name in sorted(ranked)[:most_cases]]
  chosen += [f"program:{i}" for i in range(programs)]
  rng.shuffle(chosen)
  return chosen


def _program(number: int, steps: int) -> Any:
  """The fuzzer's program for a seed."""
  found: list[Any] = []

  @hypothesis.seed(number)
  @hypothesis.settings(
    max_examples=8,
    phases=[hypothesis.Phase.generate],
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  @hypothesis.given(programs.programs(tuple(program_rows_arrays.ROWS), steps))
  def collect(program: Any) -> None:
    found.append(program)

  collect()
  return found[-1]  # hypothesis draws the simplest programs first


def function(subject: str, steps: int) -> tuple[Callable[..., Any], list[np.ndarray], str, str]:
  """(the JAX function, its arguments, group, dtype)."""
  kind, _, name = subject.partition(":")
  if kind == "program":
    program = _program(int(name), steps)
    arrays = program.arrays()
    return program, arrays, "program", "x64" if program.x64 else ""
  harness = harnesses.load()[name]
  args = list(harness.dyn_args_maker(np.random.RandomState(zlib.crc32(name.encode()))))
  leaves, tree = jax.tree.flatten(args)
  dtype = np.dtype(harness.dtype).name if harness.dtype is not None else ""
  arrays = [np.asarray(x, jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)) for x in leaves]
  return (
    lambda *xs: harness.dyn_fun(*jax.tree.unflatten(tree, xs)),
    arrays,
    harness.group_name,
    dtype,
  )


def outcome(subject: str, target: str, steps: int) -> Outcome:
  """The outcome of one subject at one target; never raises. `steps` limits the length of
  programs."""
  children.PATIENCE = _PATIENCE - 60
  try:
    fun, arrays, group, dtype = function(subject, steps)
  except Exception as error:
    return Outcome(subject, "", "", target, "skip", detail=f"{type(error).__name__}: {error}"[:200])
  with jax.enable_x64(dtype == "x64"):
    try:
      expected = [np.asarray(y) for y in jax.tree.leaves(jax.jit(fun)(*arrays))]
    except Exception as error:  # JAX itself cannot run it
      return Outcome(
        subject, group, dtype, target, "skip", detail=f"JAX: {type(error).__name__}: {error}"[:200]
      )
    if not arrays or not expected or all(y.size == 0 for y in expected):
      return Outcome(subject, group, dtype, target, "skip", detail="no inputs, or no results")
    with tempfile.TemporaryDirectory() as folder:
      status, ops, detail = _exported(
        fun, arrays, expected, target, pathlib.Path(folder, "model"), drawn=group == "program"
      )
  return Outcome(subject, group, dtype, target, status, ops, detail)


def _lost(error: workers.LostError, subject: str, target: str, _: int) -> Outcome:
  return Outcome(subject, "", "", target, "fails", detail=str(error))


def _exported(
  fun: Callable[..., Any],
  arrays: Sequence[np.ndarray],
  expected: Sequence[np.ndarray],
  target: str,
  path: pathlib.Path,
  drawn: bool,
) -> tuple[str, Sequence[str], str]:
  """(status, ops, detail). A program's own inputs are the ones that the exporter does not see; a
  primitive's are in its domain."""
  names = [f"x{i}" for i in range(len(arrays))]
  inputs = {
    name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in zip(names, arrays, strict=True)
  }
  given = dict(zip(names, arrays, strict=True))
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
      model = saved_model.Model({}).add(lambda _, *xs: jax.tree.leaves(fun(*xs)), inputs=inputs)
      exporter.save_model(model, path, samples=1, examples={} if drawn else given)
    except ExportError as error:
      ops = sorted({use.op for use in error.uses})
      return (
        (
          "differs"
          if re.search("computes different outputs|did not answer", str(error))
          else "lacks"
        ),
        ops,
        str(error)[:600],
      )
    except Exception as error:
      return "fails", (), f"{type(error).__name__}: {error}"[:600]
  noted = any("extreme numbers" in str(warning.message) for warning in told)
  try:
    found = exporter.run(path, given)
  except Exception as error:
    return "fails", (), f"run: {type(error).__name__}: {error}"[:600]
  outputs = model.records["serving_default"].outputs
  precisions = [zeros.dtype for zeros in jax.tree.leaves(of_results(fun, *arrays))]
  for name, y, precision in zip(outputs, expected, precisions, strict=True):
    if problem := compare.problem(np.asarray(found[name]), y, precision):
      return ("noted" if noted else "silent"), (), f"{name}: {problem}"[:600]
  return ("noted" if noted else "equal"), (), ""


def _summary(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """The numbers of the report, of the outcomes of the installed JAX."""
  primitives: dict[str, dict[str, dict[str, list[str]]]] = {}
  programs: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  ops: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  for row in outcomes:
    if row["status"] == "skip":
      continue
    ops[row["target"]].update(row["ops"])
    if row["subject"].startswith("program:"):
      programs[row["target"]][row["status"]] += 1
    else:
      of_target = primitives.setdefault(row["group"], {}).setdefault(row["target"], {})
      of_target.setdefault(row["status"], []).append(row["dtype"])
  return {
    "primitives": primitives,
    "programs": {target: dict(counts) for target, counts in programs.items()},
    "ops": {target: dict(counts.most_common()) for target, counts in ops.items()},
  }


def sweep(again: bool) -> list[str]:
  """Runs the missing subjects and keeps the counts. Returns wrong files and other errors."""
  chosen = subjects(_PROGRAMS, _CASES)
  rows = sweeps.run(
    "targets",
    outcome,
    [(subject, target, _STEPS) for target in TITLES for subject in chosen],
    _lost,
    key=("subject", "target"),
    fresh=again,
    renewed_after=_SUBJECTS_PER_WORKER,
    seconds=_PATIENCE,
  )
  known = [rows[subject, target] for target in TITLES for subject in chosen]
  summary = _summary(known)
  reports.update("targets-primitives", summary, [*summary], matrix.VERSIONS)
  return [
    f"{row['status'].upper()} {row['subject']} at {row['target']}: {row['detail'][:300]}"
    for row in known
    if row["status"] in ("silent", "fails")
  ]
