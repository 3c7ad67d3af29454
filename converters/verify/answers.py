"""Runs the reference, and compares the answers of a model with it: tolerances and differences."""

from __future__ import annotations

import contextlib
import functools
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from ..bundle.calls import Answer, median_seconds
from ..saved_model import draws
from ..saved_model.draws import SUBNORMAL
from . import plan
from .agreement import Agreement
from .precision import of_results as precision_of_results
from .report import Latency, Report, Row
from .rounding import SHARE_OF_LARGEST, Measure, Rounding

# |model - reference| <= atol + rtol * |reference|, in units of the dtype's precision (2**-23 for
# float32); `precision` gives the dtype. TensorFlow's kernels and XLA add in different orders and
# round different products. So a sum of n terms differs by about sqrt(n) units, and the errors of
# layers add up. Narrow dtypes are summed in float32 and rounded only a few times. If terms cancel,
# the error is relative to the terms: hence atol, which fits outputs of about 1 and grows with their
# median size. A difference beyond these tolerances is compared with JAX's own rounding too; see
# `rounding`.
_RTOL_UNITS = {8: 256, 4: 256, 2: 8, 1: 2}  # by itemsize
_ATOL_UNITS = {8: 32, 4: 32, 2: 8, 1: 2}


@dataclass(frozen=True)
class Expected:
  """The answer of the reference to one run.

  Attributes:
    outputs: {output: array}.
    precisions: {output: the dtype that sets the tolerance}, where it differs from the dtype of the
      array.
    seconds: the median time of a timed call.
    refuses: the message of a failing `checkify.check`; empty without one.
    rounding: measures the rounding of each output, at the first call; None where it cannot be
      measured.
  """

  outputs: Mapping[str, np.ndarray]
  precisions: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
  seconds: float | None = None
  refuses: str = ""
  rounding: Callable[[], Mapping[str, Rounding]] | None = None

  def computed_in(self, dtype: np.dtype[Any]) -> Expected:
    """The same for a model that computes in a coarser dtype than the reference."""
    floats = [name for name, y in self.outputs.items() if jnp.issubdtype(y.dtype, np.inexact)]
    rounding = self.rounding

    def coarser() -> Mapping[str, Rounding]:
      assert rounding
      return {
        name: one.times(float(jnp.finfo(dtype).eps / jnp.finfo(self.outputs[name].dtype).eps))
        for name, one in rounding().items()
        if name in floats
      }

    return replace(
      self, precisions=dict.fromkeys(floats, dtype), rounding=coarser if rounding else None
    )


def reference_answers(
  runs: Sequence[plan.Run], lead: tuple[Any, ...], initial: Sequence[Any] = ()
) -> Iterator[Expected]:
  """Yields the answer of the reference to each run. A stateful run starts from the state of the
  previous one, or from `initial`."""
  # by signature, because they are the same at all sizes
  precisions: dict[str, Mapping[str, np.dtype[Any]]] = {}
  measures: dict[str, Measure] = {}
  state = initial
  on_device = jax.tree.map(
    lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, lead
  )
  for run in runs:
    subject = run.subject
    before = [list(state if run.continues else initial)] * subject.record.stateful
    first = (*(on_device if subject.only_jax else lead), *before)
    # It keeps no arrays of JAX beside those of the run, until a rounding is measured.
    given = functools.partial(_arguments, first, run)
    arguments = given()

    def call(subject: plan.Subject = subject, arguments: tuple[Any, ...] = arguments) -> Any:
      with contextlib.redirect_stdout(io.StringIO()):  # keeps its prints out of the report
        result = jax.block_until_ready(subject.reference(*arguments))
        jax.effects_barrier()
        return result

    try:
      result = call()
      outputs = subject.named(result, run.inputs)
    except checkify.JaxRuntimeError as error:
      yield Expected({}, refuses=str(error))
      continue
    except Exception as error:
      error.add_note(
        f"in the reference of signature {subject.name!r}, at {dict(run.sizes)} with {run.values} "
        "inputs"
      )
      raise
    if subject.record.stateful:
      state = result[0]
    if subject.name not in precisions:
      precisions[subject.name] = (
        _precisions(subject, arguments, run.inputs) if subject.only_jax else {}
      )
    measure = measures.setdefault(subject.name, Measure(subject.reference))
    rounding = (
      functools.cache(functools.partial(_rounding, measure, run, given))
      if subject.only_jax
      else None
    )
    seconds = median_seconds(call) if run.timed else None
    yield Expected(outputs, precisions[subject.name], seconds, rounding=rounding)


def _precisions(
  subject: plan.Subject, arguments: Sequence[Any], inputs: Mapping[str, Any]
) -> Mapping[str, np.dtype[Any]]:
  try:
    zeros = precision_of_results(subject.reference, *arguments)
  except jax.errors.JAXTypeError:  # for example a function in NumPy
    return {}
  named = subject.named(zeros, inputs)
  return {name: array.dtype for name, array in named.items()}


def _arguments(first: Sequence[Any], run: plan.Run) -> tuple[Any, ...]:
  """The arguments of the reference: `first`, and the inputs of the run."""
  inputs = (run.inputs[name] for name in run.subject.order)
  return (*first, *(map(jnp.asarray, inputs) if run.subject.only_jax else inputs))


def _rounding(
  measure: Measure, run: plan.Run, arguments: Callable[[], Sequence[Any]]
) -> Mapping[str, Rounding]:
  subject = run.subject
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      distances, terms, steps = measure.with_steps(*arguments())
    named = subject.named(distances, run.inputs)
    stepped = subject.named(steps, run.inputs)
  # a function that cannot be called again, or not with other inputs: the fixed tolerances remain
  except Exception:
    return {}
  return {
    name: Rounding(array, terms, bool(stepped[name].any()))
    for name, array in named.items()
    if name not in subject.record.passed_through
  }


def report(
  model: str,
  runs: Sequence[plan.Run],
  answers: Sequence[Answer],
  expected: Sequence[Expected],
  *,
  tolerances: tuple[float | None, float | None],
  hostile: bool,
  skipped: Mapping[str, str],
  versions: Mapping[str, str],
) -> Report:
  """The comparison of the answers of a model with those of the reference.

  Args:
    model: its name.
    tolerances: relative and absolute, as in `rows`.
    hostile: whether differences for hostile inputs count.
    skipped: {signature: why}.
    versions: of what computed, besides JAX.
  """
  rtol, atol = tolerances
  noted = (SUBNORMAL,) if hostile else (SUBNORMAL, draws.HOSTILE)
  compared = tuple(rows(runs, answers, expected, rtol, atol, noted=noted))
  return Report(
    model,
    compared,
    latencies(runs, answers, expected),
    skipped,
    {"jax": jax.__version__, **versions},
    remark=_agreement_of_steps(compared, runs, answers, expected),
  )


def _agreement_of_steps(
  rows: Sequence[Row],
  runs: Sequence[plan.Run],
  answers: Sequence[Answer],
  expected: Sequence[Expected],
) -> str:
  """How well the outputs agree that differ by steps of a rounding, in words."""
  stepped = dict.fromkeys((row.signature, row.output) for row in rows if row.steps and row.counts)
  texts = []
  for signature, output in stepped:
    pairs = [
      (draws.as_numpy(answer["outputs"][output]), right.outputs[output])
      for run, answer, right in zip(runs, answers, expected, strict=True)
      if run.subject.name == signature and run.values not in (SUBNORMAL, draws.HOSTILE)
    ]
    actual, wanted = zip(*pairs, strict=True)
    agreement = Agreement.of(actual, wanted, scores=wanted[0].ndim > 1)
    texts.append(f"{output} rounds, and differs by steps: {agreement.text()}")
  return "; ".join(texts)


def rows(
  runs: Sequence[plan.Run],
  answers: Sequence[Answer],
  expected: Sequence[Expected],
  rtol: float | None,
  atol: float | None,
  noted: Sequence[str] = (SUBNORMAL,),
) -> Iterator[Row]:
  """One row for each output, assignment of sizes and kind of inputs, in the order of the runs.
  Problems with inputs of the `noted` kinds do not count."""
  joined: dict[tuple[Any, ...], Row] = {}
  for run, answer, right in zip(runs, answers, expected, strict=True):
    measured = right.rounding if run.values != SUBNORMAL and rtol is None and atol is None else None
    for output, difference in _differences(answer, right, rtol, atol, measured):
      key = (run.subject.name, *run.sizes.items(), run.values, output)
      joined[key] = difference.joined(
        joined.get(key)
        or Row(run.subject.name, output, run.sizes, run.values, counts=run.values not in noted)
      )
  yield from joined.values()


def latencies(
  runs: Sequence[plan.Run], answers: Sequence[Answer], expected: Sequence[Expected]
) -> tuple[Latency, ...]:
  """The latencies of runs that were timed on both sides."""
  return tuple(
    Latency(run.subject.name, run.sizes, answer["seconds"], right.seconds)
    for run, answer, right in zip(runs, answers, expected, strict=True)
    if right.seconds is not None and answer["seconds"] is not None
  )


@dataclass(frozen=True)
class _Difference:
  """The figures of one array, as in `Row`."""

  dtype: str
  problem: str = ""
  max_abs: float | None = None
  max_rel: float | None = None
  max_ulp: float | None = None
  of_tolerance: float | None = None
  steps: bool = False

  @property
  def beyond_tolerance(self) -> bool:
    """Whether it may be one of rounding, unlike one of dtypes, shapes, integers, NaN and
    infinities."""
    return self.of_tolerance is not None and 1 < self.of_tolerance < float("inf")

  def joined(self, row: Row) -> Row:
    """Adds a sample to the row: keeps the largest figures and the first problem."""
    figures: dict[str, Any] = {}
    for name in ("max_abs", "max_rel", "max_ulp", "of_tolerance"):
      both = [x for x in (getattr(row, name), getattr(self, name)) if x is not None]
      figures[name] = max(both) if both else None
    return replace(
      row,
      dtype=row.dtype or self.dtype,
      samples=row.samples + 1,
      problem=row.problem or self.problem,
      steps=row.steps or self.steps,
      **figures,
    )


def _differences(
  answer: Answer,
  right: Expected,
  rtol: float | None,
  atol: float | None,
  measured: Callable[[], Mapping[str, Rounding]] | None = None,
) -> Iterator[tuple[str, _Difference]]:
  actual, expected = answer["outputs"], right.outputs
  if right.refuses:  # the model must fail too, with TensorFlow's message
    yield (
      "(a check)",
      _Difference(
        "",
        ""
        if answer["error"]
        else f"the reference refuses, and the model does not: {right.refuses}",
      ),
    )
    return
  for name in dict.fromkeys([*expected, *actual]):
    if answer["error"]:
      yield name, _Difference("", f"the model fails: {answer['error']}")
    elif name not in actual:
      yield name, _Difference("", f"the model has no output {name!r}; it has: {', '.join(actual)}")
    elif name not in expected:
      yield (
        name,
        _Difference("", f"the reference has no output {name!r}; it has: {', '.join(expected)}"),
      )
    else:
      compared = functools.partial(
        _difference,
        draws.as_numpy(actual[name]),
        expected[name],
        rtol,
        atol,
        right.precisions.get(name),
      )
      difference = compared()
      if measured and difference.beyond_tolerance and (rounding := measured().get(name)):
        difference = replace(compared(rounding), steps=rounding.has_steps)
      yield name, difference


def problem(
  actual: np.ndarray, expected: np.ndarray, precision: np.dtype[Any] | None = None
) -> str:
  """The difference of one array beyond the tolerances of its precision; empty if there is none."""
  return _difference(actual, expected, None, None, precision).problem


def _difference(
  actual: np.ndarray,
  expected: np.ndarray,
  rtol: float | None,
  atol: float | None,
  precision: np.dtype[Any] | None = None,
  rounding: Rounding | None = None,
) -> _Difference:
  """Compares the model's array with the reference's."""
  dtype = _dtype_name(expected)
  if actual.dtype != expected.dtype:
    return _Difference(
      dtype, f"the model's dtype is {_dtype_name(actual)}, the reference's {dtype}"
    )
  if actual.shape != expected.shape:
    return _Difference(
      dtype, f"the model's shape is {actual.shape}, the reference's {expected.shape}"
    )
  if jnp.issubdtype(expected.dtype, np.inexact):
    return _inexact_difference(actual, expected, rtol, atol, precision or expected.dtype, rounding)
  wrong = np.asarray(actual != expected)
  if dtype in ("string", "bool"):
    return _Difference(dtype, _places(wrong, actual, expected))
  largest = max(
    (abs(int(x) - int(y)) for x, y in zip(actual[wrong], expected[wrong], strict=True)), default=0
  )
  return _Difference(dtype, _places(wrong, actual, expected), float(largest))


def _inexact_difference(
  actual: np.ndarray,
  expected: np.ndarray,
  rtol: float | None,
  atol: float | None,
  precision: np.dtype[Any],
  rounding: Rounding | None,
) -> _Difference:
  """Compares floating point and complex arrays. NaN equals NaN, and an infinity equals the same
  infinity."""
  info, allowed = jnp.finfo(expected.dtype), jnp.finfo(precision)
  x, y = _parts(actual), _parts(expected)
  # for a complex number, the larger part, because both parts share the error
  size = np.abs(y).max(-1, keepdims=True)
  ordinary = np.where(np.isfinite(size), size, 0)
  largest = float(np.max(ordinary, initial=0.0))
  rtol = _RTOL_UNITS[allowed.bits // 8] * float(allowed.eps) if rtol is None else rtol
  if atol is None:
    finite = size[np.isfinite(size)]
    atol = (
      _ATOL_UNITS[allowed.bits // 8]
      * float(allowed.eps)
      * max(1.0, float(np.median(finite)) if finite.size else 0.0)
    )
  more = rounding.allowed(ordinary[..., 0])[..., None] if rounding else np.zeros_like(ordinary)
  apart = ~((x == y) | (np.isnan(x) & np.isnan(y))).all(-1)  # the other elements are equal
  x, y, size, ordinary, more = (array[apart] for array in (x, y, size, ordinary, more))
  nan = np.isnan(x).any(-1) != np.isnan(y).any(-1)
  with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
    difference = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y))
    difference = np.where(np.isnan(difference), np.inf, difference)
    share = np.where(difference == 0, 0, difference / (atol + rtol * ordinary + more))
    relative = np.where((difference == 0) | (size <= atol), 0, difference / size)
    exponent = np.maximum(np.frexp(ordinary)[1] - 1, info.minexp)
    ulp = np.where(
      (difference == 0) | (size <= atol), 0, difference / np.ldexp(1.0, exponent - info.nmant)
    )
  if nan.any():
    problem = f"NaN at other places: {_places(_spread(nan, apart), actual, expected)}"
  elif problem := _places(_spread((share > 1).any(-1), apart), actual, expected):
    problem += _advice(difference, ordinary, share, rtol, largest)
  figures = [
    float(np.where(np.isnan(a), np.inf, a).max(initial=0))
    for a in (difference, relative, ulp, share)
  ]
  max_abs, max_rel, max_ulp, of_tolerance = figures
  return _Difference(_dtype_name(expected), problem, max_abs, max_rel, max_ulp, of_tolerance)


def _spread(flags: np.ndarray, apart: np.ndarray) -> np.ndarray:
  """bool[...], the flags in order where `apart`, False elsewhere."""
  spread = np.zeros(apart.shape, bool)
  spread[apart] = flags
  return spread


def _advice(
  difference: np.ndarray, ordinary: np.ndarray, share: np.ndarray, rtol: float, largest: float
) -> str:
  """How far beyond the tolerance, and the tolerances that would accept it, unless that is far more
  than rounding."""
  worst = f"; the largest is {np.max(share):.3g} times the tolerance"
  needed = float(np.max(difference - rtol * ordinary))
  if not 0 < needed <= SHARE_OF_LARGEST * largest:
    return worst
  step = 10.0 ** (math.floor(math.log10(needed)) - 1)
  return (
    f"{worst}: atol={math.ceil(1.001 * needed / step) * step:.1e} with rtol={rtol:.1e} accepts it"
  )


def _parts(array: np.ndarray) -> np.ndarray:
  """float64[..., 1], or of a complex array its two parts, float64[..., 2]."""
  if jnp.issubdtype(array.dtype, np.complexfloating):
    return np.stack([array.real, array.imag], -1).astype(np.float64)
  with np.errstate(invalid="ignore"):  # of a signalling NaN
    return array.astype(np.float64)[..., None]


def _places(wrong: np.ndarray, actual: np.ndarray, expected: np.ndarray) -> str:
  """The number of wrong elements, and the first; empty if there is none."""
  if not wrong.any():
    return ""
  first = tuple(int(i) for i in np.argwhere(wrong)[0])
  where = f"at {list(first)} " if first else ""
  return (
    f"{np.count_nonzero(wrong)} of {wrong.size} elements differ; {where}the model has "
    f"{actual[first]}, the reference {expected[first]}"
  )


def _dtype_name(array: np.ndarray) -> str:
  return "string" if array.dtype == object else array.dtype.name
