"""Quantised .tflite models: conversion, and comparison with the function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf
import tqdm

from ..comparison import answers as compare
from ..comparison import plan
from ..comparison.report import Report, Row
from ..export.source import ExportError, Source
from . import runtime
from .float16 import half_precision
from .runtime import RUNTIME, TARGET

Samples = Iterable[Mapping[str, Any]]

# {scheme: the least cosine between an output and the reference's}. It does not bound single elements: the error of a quantised weight is
# proportional to the largest weight of its row, so the relative error of a small output can be large. The values leave a margin below
# those that tests/converters/test_tflite_quantized.py measures: 1 - cosine grows with the square of the step, 2**-11, 2**-8 and 2**-4 of
# the range.
LEAST_COSINE: Mapping[str, float] = {"float16": 0.9999, "dynamic_int8": 0.99, "int8": 0.98, "int4": 0.9}


@dataclass(frozen=True)
class QuantizedRow(Row):
  """A row of the report for a quantised model, which is compared by cosine.

  Attributes:
    cosine: the least cosine of all samples.
  """

  cosine: float = 0.0


def check(scheme: str | None, representative_dataset: Any) -> None:
  """Raises ValueError if the scheme is unknown, or its calibration data are missing."""
  if scheme is not None and scheme not in LEAST_COSINE:
    raise ValueError(f"quantization = {scheme!r}; give None, or one of: {', '.join(LEAST_COSINE)}")
  if (scheme == "int8") != (representative_dataset is not None):
    raise ValueError(
      f"quantization = {scheme!r} with representative_dataset {'missing' if scheme == 'int8' else 'given'}; "
      'quantization="int8", and only it, needs one: typical inputs of the model, [{input: array}, ...]'
    )


def options(scheme: str | None, representative_dataset: Any, functions: Mapping[str, Any]) -> Callable[[Any], None]:
  """A function that sets the converter's options, for None or a scheme that is not in `FROM_FLOAT`."""

  def configure(converter: Any) -> None:
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if scheme is not None:
      converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if scheme == "int8":
      # Ops without an int8 kernel stay float32.
      converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8, tf.lite.OpsSet.TFLITE_BUILTINS]
      converter.representative_dataset = lambda: _samples(representative_dataset, functions)

  return configure


def _samples(given: Any, functions: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """Yields (signature, inputs) for each sample."""
  by_signature = given if isinstance(given, Mapping) else dict.fromkeys(functions, given)
  if set(by_signature) != set(functions) or (len(functions) > 1 and not isinstance(given, Mapping)):
    raise ValueError(
      f"representative_dataset is not for the signatures {', '.join(functions)}; give {{signature: [{{input: array}}, ...]}}"
    )
  for name, samples in by_signature.items():
    count = 0
    for sample in tqdm.tqdm(samples, desc=f"calibrate {name}", leave=False, disable=None):
      count += 1
      specs = functions[name].structured_input_signature[1]
      if sample.keys() != specs.keys():
        raise ValueError(f"representative_dataset has a sample of {', '.join(sample)}, and signature {name!r} takes {', '.join(specs)}")
      yield name, {key: np.asarray(value, specs[key].dtype.as_numpy_dtype) for key, value in sample.items()}
    if not count:
      raise ValueError(f"representative_dataset has no sample for signature {name!r}; pass a list, or an iterator that is not exhausted")


def four_bits(model: bytes) -> bytes:
  """The float model with 4-bit weights, and 8-bit activations in ops that LiteRT computes in int8."""
  recipe, quantizer = runtime.extra("ai_edge_quantizer.recipe"), runtime.extra("ai_edge_quantizer.quantizer")
  with runtime.quiet():
    return bytes(quantizer.Quantizer(model, recipe.dynamic_wi4_afp32()).quantize().quantized_model)


# {scheme: what makes its model of the converted float model}
FROM_FLOAT: Mapping[str, Callable[[bytes], bytes]] = {"float16": half_precision, "int4": four_bits}


def compared(
  source: Source, file: Path, scheme: str, asked: plan.Comparison, *, least_cosine: float, versions: Mapping[str, str]
) -> Report:
  """Compares the quantised file with the reference, on ordinary inputs and those of the caller.

  NaN, infinities and extreme numbers are left out, because they are outside the range of a quantised tensor.

  Raises:
    ExportError: the file fails, has a NaN where the reference has none, or the cosine of an output is too small.
  """
  runs = [run for run in source.runs(asked) if run.values in ("ordinary", "given")]
  with tqdm.tqdm(total=len(runs), desc=f"compare {scheme}", leave=False, disable=None) as progress:
    expected = list(compare.reference_answers(runs, (), progress))
  found = runtime.answers(file, runs)
  cosines: dict[tuple[Any, ...], list[float]] = {}
  for run, answer, right in zip(runs, found, expected, strict=True):
    for name, y in right.outputs.items():
      if name in answer["outputs"] and answer["outputs"][name].shape == y.shape:
        cosines.setdefault((run.subject.name, *run.sizes.items(), run.values, name), []).append(cosine(answer["outputs"][name], y))
  rows = []
  for row in compare.rows(runs, found, expected, 0.0, float("inf")):
    least = min(cosines.get((row.signature, *row.sizes.items(), row.values, row.output), [0.0]))
    rows.append(_judged(row, least, least_cosine))
  report = Report(
    f"{source.label} in {RUNTIME}, {scheme}: an output agrees from a cosine of {least_cosine} on",
    tuple(rows),
    compare.latencies(runs, found, expected),
    {},
    {"jax": jax.__version__, **versions},
  )
  if wrong := [row for row in rows if row.problem]:
    lines = "\n".join(f"  {row.place}: {row.problem}" for row in wrong[:8])
    raise ExportError(TARGET, f"{RUNTIME} with quantization={scheme!r} is too far from the reference, so nothing was written:\n{lines}")
  return report


def _judged(row: Row, least: float, wanted: float) -> QuantizedRow:
  """Judges a row by its cosine. Integers may differ, for example an argmax of almost equal values."""
  figures = asdict(row) | {"cosine": least, "of_tolerance": (1 - least) / (1 - wanted) if wanted < 1 else None}
  if not row.problem or (row.max_abs is not None and "NaN" not in row.problem):
    figures["problem"] = "" if least >= wanted else f"the cosine with the reference is {least:.6f}, less than {wanted}"
  return QuantizedRow(**figures)


def cosine(x: Any, y: Any) -> float:
  """The cosine of two arrays as vectors; 1 if both are zero, or empty."""
  x, y = (np.asarray(a).astype(np.float64).ravel() for a in (x, y))
  both = np.isfinite(x) & np.isfinite(y)
  x, y = x[both], y[both]
  lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
  return float(x @ y) / lengths if lengths else float(not (x.any() or y.any()))
