"""LiteRT (TFLite) as a target: the file, and its comparison in LiteRT's interpreter."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf.messages import Argument, Text

from ..bundle import publish
from ..export import freezing, quantization, replay, weights
from ..export.narrow import OF_4_BITS
from ..export.pipeline import Target, Written
from ..export.source import ExportError, Source
from ..verify.report import Report
from . import binding, flatbuffer, narrow, order, quantized, runtime, state
from .float16 import half_precision
from .integer import Ranges
from .quantized import Quantization
from .replacements import FUSED, TABLE
from .runtime import RUNTIME, TARGET


@dataclass(frozen=True)
class File(Written):
  """A written file.

  Attributes:
    quantization: with samples in the dtypes of the signatures.
  """

  quantization: Quantization = Quantization()  # noqa: RUF009  (frozen)


@dataclass(frozen=True)
class TFLite(Target[File]):
  """An export to TFLite.

  Attributes:
    quantization: how the model is quantised and compared.
  """

  name = TARGET
  runtime = RUNTIME

  quantization: Quantization = Quantization()  # noqa: RUF009  (frozen)

  def check_path(self, path: Path) -> None:
    publish.check_file(path, self.overwrite, "model.tflite")

  def check(self) -> None:
    self.quantization.check(self.comparison)
    runtime.extra("ai_edge_litert")
    if self.quantization.scheme == "int4":
      runtime.extra("ai_edge_quantizer")

  def accept(self, source: Source) -> None:
    scheme = self.quantization.scheme
    runs_in = Text(f"{RUNTIME} with ", Argument("quantization", scheme)) if scheme else RUNTIME
    source.refuse_writers(TARGET, runs_in, has_state=not scheme)
    _refuse_empty(source)
    self.quantization.check_ranges(source)
    if scheme:
      quantization.refuse_complex(source, TARGET, runs_in)

  def write(self, source: Source, place: Path, name: str) -> File:
    del name  # the file has no name inside
    source = narrow.held(source)
    fitting = self.quantization.fitting(source)
    scheme = fitting.scheme
    noted = Ranges() if scheme == "int8" and not fitting.dataset else None
    # The converter quantises weights that it has.
    bits = binding.DYNAMIC.get(scheme or "") if binding.is_large(source) else None
    is_bound = scheme in binding.SCHEMES or noted is not None or bits is not None
    large = binding.inputs_of(source) if is_bound else {}
    is_float = scheme in quantized.FROM_FLOAT or is_bound
    table = dict(TABLE) | binding.quantizing(large, noted)
    contents = _converted(source, Quantization() if is_float else fitting, table, large)
    records = {name: one.record for name, one in source.signatures.items()}
    contents = flatbuffer.with_complex(contents, records)
    if scheme == "int4" and bits is None:
      contents = quantized.four_bits(contents)
    if not large and scheme != "float16" and noted is None:
      place.write_bytes(contents)
      return File(place, quantization=fitting)
    parts = binding.bound(contents, large, noted, bits)
    if scheme == "float16":
      half_precision(parts)
    order.keep(parts)
    parts.write(place)
    return File(place, quantization=fitting)

  def compare(self, source: Source, written: File) -> Report:
    if self.quantization.scheme is None:
      answers = state.with_state(functools.partial(runtime.answers, written.path))
      return source.compared(answers, TARGET, RUNTIME, self.comparison, versions=versions())
    return quantization.compared(
      source,
      functools.partial(runtime.answers, written.path, dequantized=True),
      TARGET,
      RUNTIME,
      self.comparison,
      written.quantization,
      versions=versions(),
    )


def versions() -> dict[str, str]:
  """Those of the packages that make and run the file."""
  return {
    "tensorflow": tf.__version__,
    "ai-edge-litert": runtime.extra("ai_edge_litert").__version__,
  }


def _converted(
  source: Source,
  scheme: Quantization,
  table: Mapping[str, replay.Replacement],
  large: Mapping[str, tf.Variable],
) -> bytes:
  """The converted model, with inputs {name: variable} in place of large weights. Keeps erf where
  the converter can fuse it into GELU."""
  refuse = functools.partial(source.refuse, TARGET, RUNTIME)
  if remembered := state.of(source):
    return state.converted(source, remembered, table, refuse, large)
  functions = None
  if any(
    op in FUSED
    for signature in source.signatures.values()
    for op in replay.op_types(signature.function)
  ):
    fused = _frozen(
      source, {op: replacement for op, replacement in table.items() if op not in FUSED}, large
    )
    with contextlib.suppress(ExportError):
      contents = runtime.converted(fused, Quantization().configure, refuse)
      if scheme.scheme is None:
        return contents
      functions = fused
  functions = functions or _frozen(source, table, large)
  return runtime.converted(functions, scheme.configure, refuse)


def _frozen(
  source: Source, table: Mapping[str, replay.Replacement], large: Mapping[str, tf.Variable]
) -> dict[str, Any]:
  return {
    name: freezing.frozen(one.function, table, OF_4_BITS, weights=weights.used(large, one.function))
    for name, one in source.signatures.items()
  }


def _refuse_empty(source: Source) -> None:
  """Refuses outputs without elements: LiteRT raises "Invalid tensor size" when they are read."""
  for signature in source.signatures.values():
    for name, output in signature.function.structured_outputs.items():
      if 0 in (output.shape.as_list() if output.shape.rank is not None else ()):
        spec = signature.record.outputs[name]
        raise ExportError(
          TARGET,
          f"{RUNTIME} cannot return output {name!r}, {spec}, of signature {signature.name!r}: it "
          "has no elements; leave it out",
        )
