"""Quantised models: the options of every target, and the comparison with the function, which is by
cosine and by the first class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.messages import Argument, ArgumentError, Aside, Text

from ..bundle import progress
from ..saved_model import kinds
from ..saved_model.draws import REPRESENTATIVE
from ..verify import answers as compare
from ..verify import plan
from ..verify.agreement import Agreement, cosine
from ..verify.report import Report, Row
from . import ranges
from .calibration import Dataset
from .ends import complex_names
from .source import ExportError, Runner, Source

# {scheme: the least cosine between an output and the reference's}. It does not bound single
# elements: the error of a quantised weight is proportional to the largest weight of its row, so the
# relative error of a small output can be large. The values leave a margin below those that
# tests/converters/test_tflite_quantized.py measures: 1 - cosine grows with the square of the step,
# 2**-11, 2**-8 and 2**-4 of the range.
LEAST_COSINE: Mapping[str, float] = {
  "float16": 0.9999,
  "dynamic_int8": 0.99,
  "int8": 0.98,
  "int4": 0.9,
}


# The least share of rows with the reference's first class, for outputs that are scores; of few
# rows, rounded down to whole rows.
LEAST_TOP_1: Mapping[str, float] = {"float16": 0.9, "dynamic_int8": 0.9, "int8": 0.9, "int4": 0.75}


@dataclass(frozen=True)
class QuantizedRow(Row):
  """A row of the report for a quantised model, which is compared by cosine.

  Attributes:
    cosine: of representative samples, of all elements of all samples; of other inputs, the least of
      all samples.
    variation: of representative samples, the cosine without the mean of the reference; see
      `agreement.Agreement`.
    top_1: of representative samples, the share of rows with the reference's first class; None if
      the output is not scores.
  """

  cosine: float = 0.0
  variation: float | None = None
  top_1: float | None = None


@dataclass(frozen=True)
class Quantization:
  """How a model is quantised and compared; see `save_model` of a target.

  Attributes:
    schemes: those of the target.
  """

  schemes: ClassVar[tuple[str, ...]]

  scheme: str | None = None
  representative_dataset: Any = None
  least_cosine: float | None = None
  least_top_1: float | None = None
  scores: Sequence[str] | None = None
  narrow_inputs: Sequence[str] = ()

  @cached_property
  def dataset(self) -> Dataset | None:
    """The samples, which are read once."""
    data = self.representative_dataset
    return None if data is None else Dataset.of(data)

  def check(self, comparison: plan.Comparison) -> None:
    """Checks the options, and then reads the samples, which may take minutes.

    Args:
      comparison: that of the export.

    Raises:
      ValueError: the scheme is unknown; an option does not apply to it, or has another kind; the
        samples are missing, or not samples.
    """
    self._check_scheme()
    self._check_options()
    self._check_tolerances(comparison)
    _ = self.dataset

  def _check_scheme(self) -> None:
    if self.scheme is not None and self.scheme not in self.schemes:
      raise ArgumentError(
        "quantization",
        self.scheme,
        advice=f"give one of: {', '.join(self.schemes)}; or leave it out",
      )
    if self.scheme is None and self.representative_dataset is not None:
      raise ArgumentError(
        "quantization",
        None,
        problem="a representative_dataset is for a scheme",
        advice=Text("name one, or give ", Argument("examples"), " for the comparison"),
      )

  def check_ranges(self, source: Source) -> None:
    """Checks that there are ranges for "int8".

    Raises:
      ArgumentError: there are no samples, and the functions quantize nothing themselves.
    """
    if self.scheme != "int8" or self.dataset or ranges.has_any(source):
      return
    raise ArgumentError(
      "representative_dataset",
      None,
      problem="int8 needs typical inputs of the model, whose function has no quant.fake_quant",
      advice="give [{input: array}, ...]",
    )

  def _check_options(self) -> None:
    kinds.check_names("scores", self.scores)
    kinds.check_names("narrow_inputs", self.narrow_inputs)
    for name, least in (("least_cosine", self.least_cosine), ("least_top_1", self.least_top_1)):
      if least is not None and self.scheme is None:
        raise ArgumentError(
          name,
          least,
          problem="it is for a quantised model, and this one is compared with rtol and atol",
          advice=Text("leave it out, or name a scheme as ", Argument("quantization")),
        )
      if least is not None and not 0 <= least <= 1:
        raise ArgumentError(name, least, advice="give a number from 0 to 1")

  def _check_tolerances(self, comparison: plan.Comparison) -> None:
    if self.scheme is not None and (comparison.rtol, comparison.atol) != (None, None):
      name = "atol" if comparison.rtol is None else "rtol"
      raise ArgumentError(
        name,
        getattr(comparison, name),
        problem=f"outputs of {self.scheme} are compared by their cosine",
        advice=Text("leave it out, or give ", Argument("least_cosine")),
      )

  @property
  def cosine_limit(self) -> float:
    """The least cosine, of the caller or of the scheme."""
    return LEAST_COSINE[self.scheme or ""] if self.least_cosine is None else self.least_cosine

  @property
  def top_1_limit(self) -> float:
    """The least share of rows with the reference's first class, likewise."""
    return LEAST_TOP_1[self.scheme or ""] if self.least_top_1 is None else self.least_top_1

  def fitting(self, source: Source) -> Self:
    """The same with samples in the dtypes of the signatures.

    Raises:
      ValueError: the samples do not fit the signatures, or calibrate nothing; `scores` names an
        unknown output.
    """
    records = {name: signature.record for name, signature in source.signatures.items()}
    outputs = {name for record in records.values() for name in record.outputs}
    kinds.check_known("scores", self.scores or (), sorted(outputs), "there is no output")
    dataset = self.dataset.checked(records, self.narrow_inputs) if self.dataset else None
    return replace(self, representative_dataset=dataset)


def compared(
  source: Source,
  answer: Runner,
  target: str,
  runtime: str,
  comparison: plan.Comparison,
  quantization: Quantization,
  *,
  versions: Mapping[str, str],
) -> Report:
  """Compares the quantised file with the reference: on the representative samples, and on the
  inputs of the caller.

  Without calibration also on random ordinary inputs, which may be outside of a calibrated range.
  NaN, infinities and extreme numbers are left out, because they are outside the range of a
  quantised tensor.

  Raises:
    ExportError: the file fails, has a NaN where the reference has none, or an output agrees too
      little.
  """
  scheme = quantization.scheme
  is_calibrated = scheme == "int8" and quantization.dataset is not None
  kinds_of_inputs = ("given",) if is_calibrated else ("ordinary", "given")
  runs = [run for run in source.runs(comparison) if run.values in kinds_of_inputs]
  runs += _representative(source, quantization)
  answers = compare.reference_answers(runs, ())
  expected = [*progress.over(answers, f"compare {scheme}", len(runs))]
  answered = answer(runs)
  agreements = _agreements(runs, answered, expected, quantization.scores)
  rows = [
    _judged(
      row, agreements.get(_key(row.signature, row.sizes, row.values, row.output)), quantization
    )
    for row in compare.rows(runs, answered, expected, 0.0, float("inf"))
  ]
  report = Report(
    f"{source.label} in {runtime}, {scheme}: an output agrees from a cosine of "
    f"{quantization.cosine_limit} on",
    tuple(rows),
    compare.latencies(runs, answered, expected),
    {},
    {"jax": jax.__version__, **versions},
    remark=_remark(rows, agreements, quantization),
  )
  if wrong := [row for row in rows if row.problem]:
    lines = "\n".join(f"  {row.place}: {row.problem}" for row in wrong[:8])
    limits = Aside(
      " (", Argument("least_cosine"), " and ", Argument("least_top_1"), " set the limits)"
    )
    message = Text(
      f"{runtime} with ",
      Argument("quantization", scheme),
      " is too far from the reference, so nothing was written",
      limits,
      f":\n{lines}",
    )
    raise ExportError(target, message)
  return report


def _representative(source: Source, quantization: Quantization) -> Iterator[plan.Run]:
  if not quantization.dataset:
    return
  subjects = {subject.name: subject for subject in source.subjects()}
  for name, samples in quantization.dataset.compared(quantization.scheme == "int8").items():
    for i, sample in enumerate(samples):
      yield plan.Run(subjects[name], {}, REPRESENTATIVE, sample, timed=i == 0)


def _key(signature: str, sizes: Mapping[str, int], values: str, output: str) -> tuple[Any, ...]:
  return signature, *sizes.items(), values, output


def _agreements(
  runs: Sequence[plan.Run],
  answers: Sequence[Any],
  expected: Sequence[compare.Expected],
  scores: Sequence[str] | None,
) -> dict[tuple[Any, ...], Agreement]:
  """{key of a row: the agreement}, for outputs of the right shapes."""
  pairs: dict[tuple[Any, ...], list[tuple[np.ndarray, np.ndarray]]] = {}
  for run, answer, right in zip(runs, answers, expected, strict=True):
    for name, y in right.outputs.items():
      if name in answer["outputs"] and answer["outputs"][name].shape == y.shape:
        pairs.setdefault(_key(run.subject.name, run.sizes, run.values, name), []).append(
          (answer["outputs"][name], y)
        )
  agreements = {}
  for key, both in pairs.items():
    if key[-2] == REPRESENTATIVE:
      outputs, references = zip(*both, strict=True)
      agreements[key] = Agreement.of(
        outputs, references, None if scores is None else key[-1] in scores
      )
    else:
      agreements[key] = Agreement(min(cosine(x, y) for x, y in both))
  return agreements


def _judged(row: Row, agreement: Agreement | None, quantization: Quantization) -> QuantizedRow:
  """Judges a row by its agreement. Integers may differ, for example an argmax of almost equal
  values."""
  limit = quantization.cosine_limit
  agreement = agreement or Agreement(0.0)
  share = (1 - agreement.cosine) / (1 - limit) if limit < 1 else None
  figures = asdict(row) | {
    "cosine": agreement.cosine,
    "variation": agreement.variation,
    "top_1": agreement.top_1,
    "of_tolerance": share,
  }
  if not row.problem or (row.max_abs is not None and "NaN" not in row.problem):
    integers = not jnp.issubdtype(jnp.dtype(row.dtype), np.inexact) and row.values == REPRESENTATIVE
    figures["problem"] = agreement.problem(
      -math.inf if integers else limit, quantization.top_1_limit
    )
  return QuantizedRow(**figures)


def _remark(
  rows: Sequence[QuantizedRow],
  agreements: Mapping[tuple[Any, ...], Agreement],
  quantization: Quantization,
) -> str:
  """The agreement on the representative samples, in words."""
  own = [key for key in agreements if key[-2] == REPRESENTATIVE]
  if not quantization.dataset or not own:
    return ""
  several = len({row.output for row in rows}) > 1
  figures = [f"{f'{key[-1]}: ' if several else ''}{agreements[key].text()}" for key in own]
  return f"{'; '.join(figures)} {quantization.dataset.how(quantization.scheme == 'int8')}"


def refuse_complex(source: Source, target: str, runtime: Any) -> None:
  """Refuses complex inputs and outputs of a quantised file.

  Args:
    runtime: what cannot take them, in words.

  Raises:
    ExportError: a signature has one.
  """
  for signature in source.signatures.values():
    if names := complex_names(signature.record):
      raise ExportError(
        target,
        Text(
          runtime,
          f" cannot take complex {names[0]!r} of signature {signature.name!r}; take and return its "
          "parts, as real numbers",
        ),
      )
