"""TF.js as a target: the folder of a graph model, and its comparison in TF.js on Node.js."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from jax2tf.messages import ArgumentError, Text, message_of

from ..bundle import publish
from ..bundle.notation import Spec
from ..export import freezing
from ..export.pipeline import Target, Written
from ..export.source import ExportError, Signature, Source
from ..verify.plan import Comparison
from ..verify.report import Report
from . import files, runtime
from .dtypes import HELD
from .replacements import FUSED_TABLE, TABLE

BACKENDS = ("wasm", "cpu")  # the backends of Node.js, the fastest first
RUNTIME = f"TF.js {runtime.VERSION}"
MODEL = "model.json"
TARGET = "tfjs"
# For outputs of about 1 and weights rounded to 8, 16 or 11 bits.
_QUANTIZATION_TOLERANCES = {"uint8": 0.1, "uint16": 1e-3, "float16": 1e-2}


@dataclass(frozen=True)
class Folder(Written):
  """A written model.

  Attributes:
    unquantized: the same model with its weights as they are; None where `path` is that.
  """

  unquantized: Path | None = field(kw_only=True)


@dataclass(frozen=True)
class TFJS(Target[Folder]):
  """An export to TF.js.

  Attributes:
    quantization: the dtype that stores large weights, or None.
    backends: the backends of the comparison.
  """

  name = TARGET
  runtime = RUNTIME
  of_one = "a model of TF.js"

  quantization: str | None
  backends: Sequence[str]

  def check_path(self, path: Path) -> None:
    if (
      path.exists()
      and not (path / MODEL).is_file()
      and not (path.is_dir() and not any(path.iterdir()))
    ):
      raise FileExistsError(
        f"{path} exists, and it is not a TF.js model (model.json), so it is not replaced; choose "
        "another path"
      )
    if not self.overwrite:
      publish.refuse_existing(path, "or another path")
    publish.check_replaceable(path)
    publish.check_writable(path.parent)

  def check(self) -> None:
    if self.quantization is not None and self.quantization not in files.QUANTIZED:
      raise ArgumentError(
        "quantization",
        self.quantization,
        advice=f"give one of: {', '.join(files.QUANTIZED)}; or leave it out",
      )
    if not self.backends or set(self.backends) - set(BACKENDS):
      raise ArgumentError(
        "backends",
        self.backends,
        problem="at least one is needed for the comparison",
        advice=f"choose from {', '.join(BACKENDS)}",
      )
    runtime.packages()

  def accept(self, source: Source) -> None:
    super().accept(source)
    (signature,) = source.signatures.values()
    _check_dtypes(signature)

  def write(self, source: Source, place: Path, name: str) -> Folder:
    (signature,) = source.signatures.values()
    table = TABLE if source.idioms == "exact" else FUSED_TABLE
    frozen = freezing.frozen_graph(signature.function, table, HELD)
    graph, described = files.definition(frozen)
    if files.missing(graph):  # ops that only a refused op used are no longer in `graph`
      raise signature.refuse(TARGET, RUNTIME, files.missing(frozen.graph.as_graph_def()))
    metadata = {
      "asynchronous": files.is_asynchronous(graph),
      "backends": [*BACKENDS] if files.needs_whole_int32(graph) else ["webgl", *BACKENDS],
      "compared": [*self.backends],
      "constraints": [*source.constraints],
      "inputs": signature.record.inputs,
      "outputs": signature.record.outputs,
    }
    files.write(graph, described, place, quantization=None, metadata=metadata)
    written = Folder(place, unquantized=None)
    if self.quantization:
      written = Folder(place.with_name("quantized"), unquantized=place)
      files.write(graph, described, written.path, quantization=self.quantization, metadata=metadata)
    return written

  def compare(self, source: Source, written: Folder) -> Report:
    if written.unquantized is None:
      return self._compared(source, written.path, self.comparison)
    within = dataclasses.replace(self.comparison, rtol=None, atol=None)
    self._compared(source, written.unquantized, within)
    usual = _QUANTIZATION_TOLERANCES[self.quantization or ""]
    tolerances = self.comparison.rtol, self.comparison.atol
    rtol, atol = (usual if tolerance is None else tolerance for tolerance in tolerances)
    within = dataclasses.replace(self.comparison, rtol=rtol, atol=atol)
    return self._compared(source, written.path, within)

  def _compared(self, source: Source, folder: Path, within: Comparison) -> Report:
    """The report of all backends."""
    (signature,) = source.signatures.values()
    reports = []
    for backend in self.backends:
      answers = functools.partial(
        runtime.answers, runtime.packages(), folder, backend, signature.record.outputs
      )
      try:
        report = source.compared(
          answers,
          TARGET,
          f"{RUNTIME} ({backend})",
          within,
          versions={"tfjs": runtime.VERSION},
          timed=backend == self.backends[0],
        )
      except ExportError:
        raise
      except RuntimeError as error:
        raise ExportError(TARGET, Text(message_of(error), "; nothing was written")) from error
      reports.append(report)
    return _joined(reports, self.backends)

  def publish(self, written: Folder, path: Path) -> None:
    if path.exists():
      publish.replace_folder(written.path, path)
    else:
      publish.move(written.path, path, last=MODEL)


def _check_dtypes(signature: Signature) -> None:
  """Raises ExportError for inputs, outputs and parameters that TF.js cannot hold without loss."""
  record = signature.record
  listed = {
    f"{kind} {name}: {text}": tf.as_dtype(Spec.parse(text).dtype)
    for kind, specs in (("input", record.inputs), ("output", record.outputs))
    for name, text in specs.items()
  }
  listed |= {
    f"parameter {v.name.removesuffix(':0')}: {v.dtype.name}": v.dtype
    for v in signature.function.graph.variables
  }
  wrong = [f"  {text}" for text, dtype in listed.items() if not files.is_held(dtype)]
  if wrong:
    raise ExportError(
      TARGET, "\n".join([f"{RUNTIME} has no dtype for these; take float32, int32 or bool:", *wrong])
    )


def _joined(reports: Sequence[Report], backends: Sequence[str]) -> Report:
  """Joins the reports of all backends. Rows name their backend; latencies are those of the
  first."""
  rows = [
    dataclasses.replace(row, signature=f"{row.signature} ({backend})")
    for report, backend in zip(reports, backends, strict=True)
    for row in report.rows
  ]
  return dataclasses.replace(reports[0], rows=tuple(rows))
