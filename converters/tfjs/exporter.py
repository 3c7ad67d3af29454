"""A function as a graph model of TF.js, which TF.js has run in node and which agrees with JAX.

The model is a folder: model.json, and the weights in group1-shard1of3.bin ..., for `tf.loadGraphModel("model.json")`. TF.js has
float32, int32 and bool: other floats are given and returned as float32, narrow integers as int32 of their values, and uint32 as the
int32 of the same bits. Loops and branches need `model.executeAsync`; `model.metadata.asynchronous` says whether there are any, and
`model.metadata.backends` where the model may run.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import tensorflow as tf

from ..comparison import plan
from ..comparison.calls import Answer
from ..comparison.report import Report
from ..export.source import Exported, ExportError, Signature, Source, single
from ..saved_model import publish
from ..saved_model.builder import Model
from ..saved_model.notation import Spec
from . import files, runtime
from .dtypes import HELD
from .page import Page, template
from .page import write as write_page
from .replacements import TABLE

packages = runtime.packages
BACKENDS = ("wasm", "cpu")  # those of node, in the order of their worth
RUNTIME = f"TF.js {runtime.VERSION}"
# Of outputs about 1, by what the weights are rounded to: 8, 16 or 11 bits.
_QUANTIZATION_TOLERANCES = {"uint8": 0.1, "uint16": 1e-3, "float16": 1e-2}


def save(
  fun: Any,
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  overwrite: bool = False,
  quantization: str | None = None,
  page: bool | Page = False,
  backends: Sequence[str] = BACKENDS,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports `fun(params, *inputs)`.

  `fun`, `params`, `inputs`, `outputs` and `polymorphic_constraints` are those of `saved_model.save`; the rest, the result and the errors
  are those of `save_model`.
  """
  _check(Path(path), overwrite, quantization, backends)
  model = Model(params, trainable=False, polymorphic_constraints=polymorphic_constraints)
  model.add(fun, inputs=inputs, outputs=outputs)
  return save_model(model, path, overwrite=overwrite, quantization=quantization, page=page, backends=backends, **comparison)


def save_model(
  model: Model | str | os.PathLike[str],
  path: str | os.PathLike[str],
  *,
  signatures: Sequence[str] | None = None,
  reference: Any = None,
  params: Any = None,
  overwrite: bool = False,
  quantization: str | None = None,
  page: bool | Page = False,
  backends: Sequence[str] = BACKENDS,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports a signature, with the names of its inputs and outputs.

  Args:
    model: a builder, or the directory of a SavedModel that one saved.
    path: the folder to make.
    signatures: [name] of a model that has several; a model of TF.js has one.
    reference: for a directory, the JAX function `fun(params, *inputs)`; the SavedModel in TensorFlow if not given.
    params: for `reference`.
    overwrite: whether to replace the folder.
    quantization: "uint8", "uint16" or "float16": of large weights, which TF.js computes with in float32. The model is compared twice:
      without, with the usual tolerances, and with it.
    page: whether to write page.html too, one file that holds the model and TF.js and runs it in a browser; or what it shows besides.
    backends: of "wasm" and "cpu", where to compare; the plain JavaScript of "cpu" is slow.
    comparison: `sizes`, `samples`, `examples`, `rtol` and `atol` of `comparison.plan.Comparison`;
      rtol and atol are of the model as it is written, and with quantization 0.1 for uint8, 1e-3 for uint16, 1e-2 for float16 if not given.

  Returns:
    the folder, the report of the comparison and the size.

  Raises:
    ExportError: ops or dtypes that TF.js lacks, all at once with the lines that ask for them; or another answer than the reference's.
    FileExistsError: the folder is there and `overwrite` is False.
    ImportError: node or npm is missing.
    ValueError: several signatures, an unknown quantization or backend, a file that is no tokenizer.
  """
  path, options = Path(path), plan.Comparison(**comparison)
  _check(path, overwrite, quantization, backends)
  if page:
    # What is missing or wrong is said before the work.
    template()
    page = dataclasses.replace(page if isinstance(page, Page) else Page(), title=getattr(page, "title", "") or path.name)
    page.read_tokenizer()
  folder_of_tfjs = packages()
  source = Source.of(model, signatures=signatures, reference=reference, params=params)
  if len(source.signatures) != 1:
    raise ValueError(f"a model of TF.js has one signature, and this one has {', '.join(source.signatures)}; choose: signatures=[...]")
  source.refuse_writers("tfjs", RUNTIME)
  (signature,) = source.signatures.values()
  _check_dtypes(signature)
  concrete = signature.frozen(TABLE, HELD)
  graph, described = files.definition(concrete)
  if files.missing(graph):  # behind one that is refused others may have been dropped as dead
    raise signature.refuse("tfjs", RUNTIME, files.missing(concrete.graph.as_graph_def()))
  runs_in = [*BACKENDS] if files.needs_whole_int32(graph) else ["webgl", *BACKENDS]
  metadata = {"asynchronous": files.is_asynchronous(graph), "backends": runs_in, "inputs": signature.record.inputs}
  metadata["outputs"] = signature.record.outputs

  compared_runs: list[plan.Run] = []

  def compared(folder: Path, options: plan.Comparison) -> Report:
    reports = []

    def answers(backend: str, runs: Sequence[plan.Run]) -> Sequence[Answer]:
      compared_runs[:] = runs
      return runtime.answers(folder_of_tfjs, folder, backend, signature.record.outputs, runs)

    for backend in backends:
      try:
        reports.append(
          source.compared(
            functools.partial(answers, backend),
            "tfjs",
            f"{RUNTIME} ({backend})",
            options,
            versions={"tfjs": runtime.VERSION},
            timed=backend == backends[0],
          )
        )
      except RuntimeError as error:
        if isinstance(error, ExportError):
          raise
        raise ExportError("tfjs", f"{error}; nothing was written") from error
    return _joined(reports, backends)

  with publish.beside(path.parent) as place:
    written = place
    files.write(graph, described, place, quantization=None, metadata=metadata)
    report = compared(place, dataclasses.replace(options, rtol=None, atol=None) if quantization else options)
    if quantization:
      written = place.with_name("quantized")
      files.write(graph, described, written, quantization=quantization, metadata=metadata)
      usual = _QUANTIZATION_TOLERANCES[quantization]
      rtol, atol = (usual if given is None else given for given in (options.rtol, options.atol))
      report = compared(written, dataclasses.replace(options, rtol=rtol, atol=atol))
    if isinstance(page, Page):
      write_page(written, folder_of_tfjs, page, verified=backends, constraints=source.constraints, runs=compared_runs)
    if not overwrite:
      publish.refuse_existing(path, "or another path")
    if path.exists():
      path.rename(place.with_name("replaced"))  # goes with the place beside
    written.rename(path)
  return Exported.at(path, report)


def run(path: str | os.PathLike[str], inputs: Mapping[str, Any], *, backend: str = "wasm") -> dict[str, np.ndarray]:
  """{output: array}, what TF.js computes in Node.js from {input: array}.

  Raises:
    ImportError: node or npm is missing.
    RuntimeError: TF.js fails; with its words.
  """
  outputs = json.loads(Path(path, "model.json").read_text(encoding="utf-8"))["userDefinedMetadata"]["outputs"]
  return single(functools.partial(runtime.answers, packages(), Path(path), backend, outputs), inputs)


def _check(path: Path, overwrite: bool, quantization: str | None, backends: Sequence[str]) -> None:
  """What can be known before the work."""
  if not overwrite:
    publish.refuse_existing(path, "or another path")
  if quantization is not None and quantization not in files.QUANTIZED:
    raise ValueError(f"quantization = {quantization!r}; give one of {', '.join(files.QUANTIZED)}, or None")
  if not backends or set(backends) - set(BACKENDS):
    raise ValueError(f"backends = {backends!r}; node has {' and '.join(BACKENDS)}, of which one at least compares the model")


def _check_dtypes(signature: Signature) -> None:
  """Raises ExportError for inputs, outputs and parameters that TF.js cannot hold without loss."""
  record = signature.record
  listed = {
    f"{kind} {name}: {text}": tf.as_dtype(Spec.parse(text).dtype)
    for kind, specs in (("input", record.inputs), ("output", record.outputs))
    for name, text in specs.items()
  }
  listed |= {f"parameter {v.name.removesuffix(':0')}: {v.dtype.name}": v.dtype for v in signature.function.graph.variables}
  wrong = [f"  {text}" for text, dtype in listed.items() if not files.is_held(dtype)]
  if wrong:
    raise ExportError("tfjs", "\n".join([f"{RUNTIME} has no dtype for these; take float32, int32 or bool:", *wrong]))


def _joined(reports: Sequence[Report], backends: Sequence[str]) -> Report:
  """One report of all backends: rows say which, and latencies are of the first."""
  rows = [
    dataclasses.replace(row, signature=f"{row.signature} ({backend})")
    for report, backend in zip(reports, backends, strict=True)
    for row in report.rows
  ]
  return dataclasses.replace(reports[0], rows=tuple(rows))
