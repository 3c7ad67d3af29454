"""Runs files that have been exported before, by anybody, and compares them with JAX functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import stages
from ..bundle import progress
from ..bundle.manifest import SignatureRecord
from ..saved_model import draws
from ..saved_model.domain import Domain
from ..verify import answers as compare
from ..verify import plan, subjects
from ..verify.report import Report
from .contents import Contents
from .source import Runner


def _record(ends: Mapping[str, Mapping[str, str]]) -> SignatureRecord:
  """A signature, with a dimension variable for each size that the file does not name."""
  numbers = itertools.count()
  inputs = {
    name: re.sub(r"\?", lambda _: f"size{next(numbers)}", text)
    for name, text in ends["inputs"].items()
  }
  return SignatureRecord(inputs, dict(ends["outputs"]))


def drawn(
  contents: Contents,
  sizes: Mapping[str, int | Sequence[int]],
  constraints: Sequence[str] = (),
  signature: str | None = None,
) -> dict[str, np.ndarray]:
  """{input: array} for one call of a file: normally distributed numbers, or small integers.

  Args:
    contents: what the file says of its inputs.
    sizes: {dimension variable: size}; others are chosen.
    constraints: conditions on the sizes.
    signature: by default the first.

  Raises:
    ValueError: sizes break a constraint.
  """
  ends = contents.signatures[next(iter(contents.signatures)) if signature is None else signature]
  domain = Domain(_record(ends), constraints)
  shapes = domain.shapes(
    domain.few({name: np.atleast_1d(size).tolist() for name, size in sizes.items()}, {})[0]
  )
  rng = np.random.default_rng(0)
  return {
    name: draws.draw(rng, shape, np.dtype(domain.avals[name].dtype), "ordinary", 0, False)
    for name, shape in shapes.items()
  }


def verified(
  contents: Contents,
  answer: Runner,
  reference: Any,
  params: Any,
  comparison: plan.Comparison,
  *,
  runtime: str,
  versions: Mapping[str, str],
  constraints: Sequence[str] = (),
  signatures: Sequence[str] | None = None,
  hostile: bool = False,
) -> Report:
  """The report on a file; see `jax2tf.converters.verify.verify` for the arguments.

  Args:
    contents: what the file says of its inputs and outputs.
    answer: runs the file.
    comparison: sizes, samples, inputs and tolerances.
    runtime: what runs the file, for the report.
    versions: of its packages.
    constraints: conditions on the sizes.

  Raises:
    ValueError: the function does not take the inputs of the file, or has other results.
  """
  inputs = comparison.examples or {}
  records = {name: _record(ends) for name, ends in contents.signatures.items()}
  chosen = subjects.chosen(records, signatures, inputs)
  lead = () if params is None else (params,)
  compared, skipped = subjects.subjects(chosen, reference, params is not None, inputs)
  runs = plan.plan(compared, constraints, comparison.sizes or {}, comparison.samples, inputs, lead)
  with stages.stage(f"compare in {runtime}"):
    references = compare.reference_answers(runs, lead)
    expected = [*progress.over(references, "verify", len(runs))]
    answered = answer(runs)
  return compare.report(
    f"{contents.path} in {runtime}",
    runs,
    answered,
    expected,
    tolerances=(comparison.rtol, comparison.atol),
    hostile=hostile,
    skipped=skipped,
    versions=versions,
  )
