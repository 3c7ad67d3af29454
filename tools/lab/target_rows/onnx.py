"""Exported files in ONNX Runtime 1.13 to 1.32.

It exports the zoo, each row of the replacements, and JAX's harnesses of each primitive in a few
dtypes. Each file runs in each release, on the inputs that the export compared, against JAX. It is a
fault if a release does not agree from which the exporter states that all agree, or if the tables of
`jax2tf.converters.onnx.releases` are not what the releases answer.
"""

from __future__ import annotations

import functools
import pathlib
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.converters import onnx, saved_model
from jax2tf.converters.export.source import ExportError, Source
from jax2tf.converters.onnx import bfloat16
from jax2tf.converters.saved_model.draws import HOSTILE, SUBNORMAL
from jax2tf.converters.verify import answers, plan
from jax2tf.tools.lab import environments, workers
from jax2tf.tools.lab.pages import targets
from jax2tf.tools.lab.target_rows import onnx_tables, primitives
from jax2tf.tools.lab.target_rows.onnx_releases import Release
from tests.support import models, replacement_rows

NUMBERS = tuple(range(13, 33))  # opset 18 opens from 1.14 on
_SUBJECTS_PER_WORKER = 100
_CASES = 3  # of each primitive, of different dtypes
_PATIENCE = 600  # seconds for one subject


def rows() -> list[str]:
  """The files: "model:NAME", "row:NUMBER OP" and "harness:NAME"."""
  replacements = [f"row:{i} {row.op}" for i, row in enumerate(replacement_rows.rows())]
  of_models = [f"model:{name}" for name in models.NAMES]
  return [*of_models, *replacements, *primitives.subjects(0, _CASES)]


def _source(subject: str) -> tuple[Any, dict[str, Any]]:
  """(the `Source` to export, options of the comparison)."""
  kind, _, name = subject.partition(":")
  if kind == "model":
    entry = models.load(name)
    fun, params = entry.build()
    model = saved_model.Model(params, polymorphic_constraints=entry.constraints, idioms=onnx.IDIOMS)
    model.add(fun, inputs=entry.inputs, outputs=entry.outputs)
    options = {"sizes": entry.sizes, "rtol": entry.rtol, "atol": entry.atol}
    return Source.of(model), options | {"examples": entry.examples}
  if kind == "row":
    row = list(replacement_rows.rows())[int(name.split()[0])]
    source, inputs = replacement_rows.packed([row])
    return source, {"examples": inputs}
  fun, arrays, *_ = primitives.function(subject, 0)
  given = {f"x{i}": x for i, x in enumerate(arrays)}
  specs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in given.items()}
  model = saved_model.Model({}, idioms=onnx.IDIOMS)
  model.add(lambda _, *xs: jax.tree.leaves(fun(*xs)), inputs=specs)
  return Source.of(model), {"examples": given}


def row(subject: str) -> dict[str, Any]:
  """The oldest releases of a subject, as the exporter states them and as they are.

  Returns:
    {"stated": [for ordinary inputs, for NaN], "real": the same, "why": the problems of the releases
    before the real ones}; or {"refused": why} without a file.
  """
  with tempfile.TemporaryDirectory(prefix="jax2tf-onnx-") as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    path = pathlib.Path(folder, "model.onnx")
    try:
      source, given = _source(subject)
      made = onnx.save_model(source, path, samples=1, **given)
    except (ExportError, ValueError, NotImplementedError, TypeError) as error:
      return {"refused": str(error).splitlines()[0][:100]}
    found = dict(_problems(source, path, given))
  ordinary = {number: problems[0] for number, problems in found.items()}
  every = {number: problems[0] or problems[1] for number, problems in found.items()}
  (first, why), (first_for_nan, why_for_nan) = _first(ordinary), _first(every)
  stated = [int(x.split(".")[1]) for x in (made.oldest_runtime, made.oldest_runtime_for_nan)]
  return {"stated": stated, "real": [first, first_for_nan], "why": [why, why_for_nan]}


def _first(problems: Mapping[int, str]) -> tuple[int, str]:
  """(the release from which on there is no problem, the problem of the one before)."""
  wrong = [number for number, problem in problems.items() if problem]
  if not wrong:
    return min(problems), ""
  return min(n for n in (*problems, 99) if n > max(wrong)), problems[max(wrong)]


def _problems(
  source: Source, path: pathlib.Path, given: Mapping[str, Any]
) -> Iterator[tuple[int, tuple[str, str]]]:
  """(release, (the first problem with ordinary inputs, with hostile ones)). What the newest release
  does not have right either, the export has warned of, and it does not count."""
  runs = source.runs(plan.Comparison(samples=1, **given))
  expected = list(answers.reference_answers(runs, ()))
  (signature,) = source.signatures.values()
  outputs = signature.record.outputs
  narrow = {name for name, text in outputs.items() if text.startswith("bf16[")}
  ordinary = [_is_ordinary(run) for run in runs]
  known: set[tuple[int, str]] = set()
  for release in reversed(_releases()):
    found = release.answers(path, [run.inputs for run in runs])
    for answer in found:
      for name in narrow & answer["outputs"].keys():
        answer["outputs"][name] = bfloat16.from_held(answer["outputs"][name])
    wrong = {
      (i, one.output): _short(one.problem)
      for i, (run, answer, right) in enumerate(zip(runs, found, expected, strict=True))
      for one in answers.rows([run], [answer], [right], given.get("rtol"), given.get("atol"))
      if one.problem
    }
    if release.number == max(NUMBERS):
      known = set(wrong)
    first = ["", ""]
    for (i, output), problem in wrong.items():
      if (i, output) not in known:
        kind = 0 if ordinary[i] or found[i]["error"] else 1
        first[kind] = first[kind] or problem
    yield release.number, (first[0], first[1])


def _is_ordinary(run: plan.Run) -> bool:
  """Whether the inputs are finite numbers of common size."""
  floats = [x for x in map(np.asarray, run.inputs.values()) if jnp.issubdtype(x.dtype, np.inexact)]
  finite = all(np.isfinite(x.astype(np.float64)).all() for x in floats)
  return finite and run.values not in (HOSTILE, SUBNORMAL)


def _short(problem: str) -> str:
  """The problem without the file and ONNX Runtime's source lines."""
  words = problem.removeprefix("the model fails: ").replace("[ONNXRuntimeError] : ", "")
  if missing := re.search(r"Could not find an implementation for (\S+)", words):
    return f"no kernel of {missing[1]}"
  if opset := re.search(r"Opset (\d+) is under development", words):
    return f"no opset {opset[1]}"
  return words[:160]


@functools.cache
def _releases() -> list[Release]:
  interpreters = environments.interpreters("python3.10", "python3.11", "python3.12")
  return [Release.installed(number, interpreters) for number in NUMBERS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
  """The oldest releases of each file, as the exporter states them and as they are."""
  yield from workers.each(
    _row,
    [(name,) for name in names],
    lambda error, name: (name, {"lost": str(error)}),
    seconds=_PATIENCE,
    renewed_after=_SUBJECTS_PER_WORKER,
    processes=3,
  )


def faults(numbers: Mapping[str, Any]) -> list[str]:
  """What the exporter states otherwise than the releases answer."""
  return [*onnx_tables.differences(_releases()), *targets.too_low(numbers)]


def _row(name: str) -> tuple[str, dict[str, Any]]:
  return name, row(name)
