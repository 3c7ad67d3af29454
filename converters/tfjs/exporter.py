"""Exports a function as a TF.js graph model, and compares its outputs in TF.js on Node.js with
JAX's.

The model is a folder for `tf.loadGraphModel("model.json")`: model.json, and the weights in
group1-shard1of3.bin ... TF.js has only float32, int32 and bool. Inputs and outputs of other dtypes
are float32 for floats, int32 of the same value for narrow integers, and int32 of the same bits for
uint32. Loops and branches need `model.executeAsync`: `model.metadata.asynchronous` says whether
there are any. `model.metadata.backends` lists the backends that can run the model.
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

from jax2tf.idioms import fused as fused_idioms

from ..bundle import paths, publish
from ..bundle.calls import Answer
from ..bundle.notation import Spec
from ..export.source import Exported, ExportError, Signature, Source, single
from ..saved_model.builder import Model
from ..verify import plan
from ..verify.report import Report
from . import files, runtime
from .dtypes import HELD
from .page import Page, template
from .page import write as write_page
from .replacements import FUSED_TABLE, TABLE

packages = runtime.packages
BACKENDS = ("wasm", "cpu")  # the backends of Node.js, the fastest first
RUNTIME = f"TF.js {runtime.VERSION}"
_MODEL = "model.json"
# For outputs of about 1 and weights rounded to 8, 16 or 11 bits.
_QUANTIZATION_TOLERANCES = {"uint8": 0.1, "uint16": 1e-3, "float16": 1e-2}

# TF.js 4.22: its MaxPool ignores NaN, and so does Relu fused with the product before it. With the
# other fused idioms the values are JAX's.
IDIOMS = fused_idioms.without("attention", "max_pool", "relu")


def save(
  fun: Any,
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  idioms: str = IDIOMS,
  overwrite: bool = False,
  quantization: str | None = None,
  page: bool | Page = False,
  backends: Sequence[str] = BACKENDS,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports `fun(params, *inputs)`.

  Args:
    fun, params, inputs, outputs, polymorphic_constraints: as for `saved_model.save`.
    idioms: as for `jax2tf.convert`. By default the fused idioms for which the runtime has JAX's
      values (docs/guide/fused.md).
    path, overwrite, quantization, page, backends, comparison: as for `save_model`.

  Returns:
    as `save_model`.

  Raises:
    ExportError, FileExistsError, OSError, ImportError, RuntimeError, ValueError: as `save_model`.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.
    TypeError: an option is unknown.

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import tfjs
    >>> w = np.eye(2, dtype=np.float32)
    >>> options = {"backends": ["wasm"], "sizes": {"b": 2}, "samples": 1}
    >>> made = tfjs.save(
    ...   lambda w, x: jnp.tanh(x @ w),
    ...   w,
    ...   "tfjs",
    ...   inputs={"x": "f32[b,2]"},
    ...   outputs=["y"],
    ...   **options,
    ... )
    >>> sorted(file.name for file in made.path.iterdir())
    ['group1-shard1of1.bin', 'model.json']
  """
  plan.Comparison.of(comparison, save)
  _check(paths.of(path), overwrite, quantization, backends)
  model = Model(
    params, trainable=False, polymorphic_constraints=polymorphic_constraints, idioms=idioms
  )
  model.add(fun, inputs=inputs, outputs=outputs)
  return save_model(
    model,
    path,
    overwrite=overwrite,
    quantization=quantization,
    page=page,
    backends=backends,
    **comparison,
  )


def save_model(
  model: Model | str | os.PathLike[str],
  path: str | os.PathLike[str],
  *,
  signatures: Sequence[str] | None = None,
  reference: Any = None,
  params: Any = None,
  idioms: str | None = None,
  overwrite: bool = False,
  quantization: str | None = None,
  page: bool | Page = False,
  backends: Sequence[str] = BACKENDS,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports a signature. The model keeps the names of inputs and outputs.

  Args:
    model: a `saved_model.Model`, or the directory of a SavedModel that one saved.
    path: the folder of the TF.js model, or its address in another file system of TensorFlow.
    signatures: [name], if the model has several signatures. A TF.js model has one.
    reference: for a directory, the JAX function `fun(params, *inputs)`. By default, the SavedModel
      run by TensorFlow.
    params: the parameters of `reference`.
    idioms: the idioms that the model must have; they are those that it was made with.
    overwrite: whether to replace the folder of an earlier TF.js model, at once. Not for an address.
    quantization: the dtype that stores large weights: "uint8", "uint16" or "float16". TF.js
      computes in float32. The model is compared twice: without quantisation within the usual
      tolerances, and with it.
    page: whether to write page.html too, a single file that runs the model in a browser. A `Page`
      sets what it shows.
    backends: the backends of the comparison, of "wasm" and "cpu". "cpu" is plain JavaScript, and
      slow.
    comparison: `sizes`, `samples`, `examples`, `rtol` and `atol`, as in
      `comparison.plan.Comparison`. rtol and atol apply to the written model. With quantisation they
      default to 0.1 for uint8, 1e-3 for uint16, and 1e-2 for float16.

  Returns:
    the path of the folder, the report of the comparison, and the size.

  Raises:
    ExportError: TF.js lacks ops or dtypes, all listed with their source lines; or an output differs
      from the reference's.
    FileExistsError: the folder exists and `overwrite` is False, or it holds no TF.js model.
    OSError: the folder cannot be written.
    FileNotFoundError: `model` is a path without a SavedModel of `jax2tf.converters.saved_model`.
    RuntimeError: TF.js does not load the model, or does not answer in time.
    ImportError: Node.js, npm, or jinja2 for `page` is missing; or npm cannot install TF.js.
    ValueError: there are several signatures; `signatures`, `quantization` or `backends` is invalid;
      `Page.tokenizer` is not a tokenizer file, or no input takes its tokens; `Page.labels` fit no
      output; the function calls back into Python.

  Examples:
    >>> from jax2tf.converters import saved_model, tfjs
    >>> model = saved_model.Model({"w": 2.0}).add(
    ...   lambda params, x: params["w"] * x, inputs={"x": "f32[b]"}, outputs=["y"]
    ... )
    >>> made = tfjs.save_model(model, "model", backends=["wasm"], samples=1)
    >>> made.path.name, made.report.ok
    ('model', True)
  """
  path, options = paths.of(path), plan.Comparison.of(comparison, save_model)
  _check(path, overwrite, quantization, backends)
  if page:
    # Raise errors about the page before the conversion.
    template()
    page = dataclasses.replace(
      page if isinstance(page, Page) else Page(), title=getattr(page, "title", "") or path.name
    )
    page.read_tokenizer()
  folder_of_tfjs = packages()
  source = Source.of(
    model, signatures=signatures, reference=reference, params=params, idioms=idioms
  )
  if len(source.signatures) != 1:
    raise ValueError(
      f"a model of TF.js has one signature, and this one has {', '.join(source.signatures)}; "
      "choose: signatures=[...]"
    )
  source.refuse_writers("tfjs", RUNTIME)
  (signature,) = source.signatures.values()
  _check_dtypes(signature)
  concrete = signature.frozen(TABLE if source.idioms == "exact" else FUSED_TABLE, HELD)
  graph, described = files.definition(concrete)
  if isinstance(page, Page):
    page.check(described)
  if files.missing(graph):  # ops that only a refused op used are no longer in `graph`
    raise signature.refuse("tfjs", RUNTIME, files.missing(concrete.graph.as_graph_def()))
  runs_in = [*BACKENDS] if files.needs_whole_int32(graph) else ["webgl", *BACKENDS]
  metadata = {
    "asynchronous": files.is_asynchronous(graph),
    "backends": runs_in,
    "inputs": signature.record.inputs,
  }
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
    report = compared(
      place, dataclasses.replace(options, rtol=None, atol=None) if quantization else options
    )
    if quantization:
      written = place.with_name("quantized")
      files.write(graph, described, written, quantization=quantization, metadata=metadata)
      usual = _QUANTIZATION_TOLERANCES[quantization]
      rtol, atol = (usual if given is None else given for given in (options.rtol, options.atol))
      report = compared(written, dataclasses.replace(options, rtol=rtol, atol=atol))
    if isinstance(page, Page):
      write_page(
        written,
        folder_of_tfjs,
        page,
        verified=backends,
        constraints=source.constraints,
        runs=compared_runs,
      )
    _check_path(path, overwrite)  # again, because the comparison may have taken minutes
    size = sum(file.stat().st_size for file in written.iterdir())
    if path.exists():
      publish.replace_folder(written, path)
    else:
      publish.move(written, path, last=_MODEL)
  return Exported(path, report, size)


def run(
  path: str | os.PathLike[str], inputs: Mapping[str, Any], *, backend: str = "wasm"
) -> dict[str, np.ndarray]:
  """Runs a model once in TF.js on Node.js.

  Args:
    path: the folder of the model.
    inputs: {input: array}.
    backend: "wasm" or "cpu".

  Returns:
    {output: array}.

  Raises:
    FileNotFoundError: the folder has no model.json.
    ValueError: the folder is in a file system that TensorFlow does not have.
    ImportError: Node.js or npm is missing, or npm cannot install TF.js.
    RuntimeError: TF.js fails. The message quotes it.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import tfjs
    >>> options = {"inputs": {"x": "f32[b]"}, "outputs": ["y"], "backends": ["wasm"], "samples": 1}
    >>> made = tfjs.save(lambda params, x: 2 * x, None, "model", **options)
    >>> tfjs.run("model", {"x": np.ones(3, np.float32)})
    {'y': array([2., 2., 2.], dtype=float32)}
  """
  with paths.fetched(paths.of(path)) as folder:
    if not (folder / _MODEL).is_file():
      raise FileNotFoundError(
        f"path = {os.fspath(path)!r} holds no {_MODEL}; pass the folder of a TF.js model"
      )
    outputs = json.loads((folder / _MODEL).read_text(encoding="utf-8"))["userDefinedMetadata"][
      "outputs"
    ]
    return single(functools.partial(runtime.answers, packages(), folder, backend, outputs), inputs)


def _check(path: Path, overwrite: bool, quantization: str | None, backends: Sequence[str]) -> None:
  """Raises the errors that need no conversion."""
  _check_path(path, overwrite)
  if quantization is not None and quantization not in files.QUANTIZED:
    raise ValueError(
      f"quantization = {quantization!r}; give one of {', '.join(files.QUANTIZED)}, or None"
    )
  if not backends or set(backends) - set(BACKENDS):
    raise ValueError(
      f"backends = {backends!r}; node has {' and '.join(BACKENDS)}, at least one is needed for "
      "the comparison"
    )


def _check_path(path: Path, overwrite: bool) -> None:
  """Raises FileExistsError if the export would replace a TF.js model without `overwrite`, or
  anything else but an empty folder."""
  if (
    path.exists()
    and not (path / _MODEL).is_file()
    and not (path.is_dir() and not any(path.iterdir()))
  ):
    raise FileExistsError(
      f"{path} exists, and it is not a TF.js model (model.json), so it is not replaced; choose "
      "another path"
    )
  if not overwrite:
    publish.refuse_existing(path, "or another path")
  publish.check_replaceable(path)
  publish.check_writable(path.parent)


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
      "tfjs", "\n".join([f"{RUNTIME} has no dtype for these; take float32, int32 or bool:", *wrong])
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
