"""A function as a LiteRT (TFLite) model of builtin ops, which LiteRT's interpreter has run and which agrees with JAX.

TensorFlow's converter translates the op by op graph of the signatures. What LiteRT lacks or gets wrong is replaced beforehand
(`replacements`). Floating point models are compared as everywhere; quantised ones by the cosine of each output with JAX's
(`quantized.LEAST_COSINE`).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import tensorflow as tf

from ..comparison import plan
from ..comparison.report import extra
from ..export import replay
from ..export.source import Exported, ExportError, Source, single
from ..saved_model import publish
from ..saved_model.builder import Model
from . import quantized, runtime, state, training
from .quantized import LEAST_COSINE
from .replacements import FUSED, TABLE
from .runtime import RUNTIME, TARGET


def save(
  fun: Callable[..., Any],
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  overwrite: bool = False,
  quantization: str | None = None,
  representative_dataset: Any = None,
  least_cosine: float | None = None,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports `fun(params, *inputs)`.

  `fun`, `params`, `inputs`, `outputs` and `polymorphic_constraints` are those of `saved_model.save`; the rest, the result and the errors
  are those of `save_model`.
  """
  _check(Path(path), overwrite, quantization, representative_dataset)
  model = Model(params, trainable=False, polymorphic_constraints=polymorphic_constraints)
  model.add(fun, inputs=inputs, outputs=outputs)
  return save_model(
    model,
    path,
    overwrite=overwrite,
    quantization=quantization,
    representative_dataset=representative_dataset,
    least_cosine=least_cosine,
    **comparison,
  )


def save_model(
  model: Model | str | os.PathLike[str],
  path: str | os.PathLike[str],
  *,
  signatures: Sequence[str] | None = None,
  reference: Any = None,
  params: Any = None,
  overwrite: bool = False,
  quantization: str | None = None,
  representative_dataset: Any = None,
  least_cosine: float | None = None,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports the signatures of a model as one file, whose signature runners have their names and those of inputs and outputs.

  Stateful signatures of a builder share the variables of an interpreter; the signature `state` of the file returns them.

  Args:
    model: a builder, or the directory of a SavedModel that one saved.
    path: the file, `model.tflite`.
    signatures: those to export; all if not given, and of several names of one function the first.
    reference: for a directory, the JAX function `fun(params, *inputs)`, or {signature: function}; the SavedModel in TensorFlow if not
      given.
    params: for `reference`.
    overwrite: whether to replace the file.
    quantization: None; "float16", weights; "dynamic_int8", weights, and activations while it runs; "int8", both beforehand, of the
      ops that have int8 kernels; "int4", weights, by ai-edge-quantizer. Inputs and outputs keep their dtypes.
    representative_dataset: for "int8", an iterable of {input: array}; of several signatures {signature: iterable}.
    least_cosine: what each output of a quantised model must have with the reference's; `LEAST_COSINE[quantization]` if not given.
    comparison: `sizes`, `samples`, `examples`, `rtol` and `atol` of `comparison.plan.Comparison`;
      rtol and atol are not for a quantised model.

  Returns:
    the file, the report of the comparison and the size.

  Raises:
    ExportError: ops that LiteRT lacks, all at once with the lines that ask for them; or another answer than the reference's.
    FileExistsError: the file is there and `overwrite` is False.
    ImportError: a package of jax2tf[tflite] is missing.
    ValueError: a quantization that there is not, one without its data, or options that do not belong to it.
  """
  path, asked = Path(path), plan.Comparison(**comparison)
  _check(path, overwrite, quantization, representative_dataset)
  if quantization is None and least_cosine is not None:
    raise ValueError(f"least_cosine = {least_cosine} is for a quantised model; this one is compared with rtol and atol")
  if quantization is not None and (asked.rtol is not None or asked.atol is not None):
    raise ValueError(f"rtol and atol are not for quantization={quantization!r}, whose outputs are compared by least_cosine")
  source = Source.of(model, signatures=signatures, reference=reference, params=params)
  source.refuse_writers(TARGET, f"{RUNTIME} with quantization={quantization!r}" if quantization else RUNTIME, has_state=not quantization)
  _refuse_empty(source)
  contents = _converted(source, quantization, representative_dataset)
  if quantization == "int4":
    contents = quantized.four_bits(contents)
  with _written(contents, path, overwrite) as file:
    if quantization is None:
      answer = state.with_state(functools.partial(runtime.answers, file))
      report = source.compared(answer, TARGET, RUNTIME, asked, versions=_versions())
    else:
      least = LEAST_COSINE[quantization] if least_cosine is None else least_cosine
      report = quantized.compared(source, file, quantization, asked, least_cosine=least, versions=_versions())
  return Exported.at(path, report)


@dataclass(frozen=True)
class Quantized:
  """A scheme in a `QuantizationReport`.

  Attributes:
    size: of the file, in bytes; None if there is none.
    max_abs: the largest difference of an output from the reference's.
    cosine: the least that an output has with the reference's; None for a scheme that is not quantised.
    problem: why there is no file, or empty.
  """

  scheme: str
  size: int | None
  max_abs: float | None
  cosine: float | None
  problem: str = ""


@dataclass(frozen=True)
class QuantizationReport:
  """What each scheme costs."""

  rows: tuple[Quantized, ...]

  def text(self) -> str:
    """A table; ImportError without tabulate, of jax2tf[verify]."""
    whole = next((row.size for row in self.rows if row.scheme == "None"), None)
    cells = [
      [
        row.scheme,
        row.size,
        f"{row.size / whole:.2f}" if row.size and whole else "",
        "" if row.max_abs is None else f"{row.max_abs:.2g}",
        "" if row.cosine is None else f"{row.cosine:.6f}",
        row.problem,
      ]
      for row in self.rows
    ]
    titles = ("quantization", "bytes", "of float32", "max abs", "cosine", "problem")
    return str(extra("tabulate").tabulate(cells, titles, disable_numparse=True)) + "\n"


def run(path: str | os.PathLike[str], inputs: Mapping[str, Any], *, signature: str = "serving_default") -> dict[str, np.ndarray]:
  """{output: array}, what LiteRT computes on CPU from {input: array}, in a process of its own.

  Raises:
    ImportError: ai-edge-litert is missing.
    RuntimeError: LiteRT fails; with its words.
  """
  runtime.extra("ai_edge_litert")
  return single(functools.partial(runtime.answers, Path(path)), inputs, signature)


def quantization_report(
  model: Model | str | os.PathLike[str],
  folder: str | os.PathLike[str],
  schemes: Sequence[str | None] = (None, *LEAST_COSINE),
  *,
  representative_dataset: Any = None,
  **options: Any,
) -> QuantizationReport:
  """Exports a model by each scheme, as `folder/<scheme>.tflite`, float32.tflite for None, and says what each costs.

  Args:
    model: as of `save_model`.
    folder: for the files. A scheme whose file would be too far from the reference has none, and its row says why.
    schemes: values of `quantization`.
    representative_dataset: for "int8"; without it that scheme is left out of the default ones.
    options: the other arguments of `save_model`, without rtol and atol.
  """
  folder = Path(folder)
  rows = []
  for scheme in schemes:
    if scheme == "int8" and representative_dataset is None and schemes == (None, *LEAST_COSINE):
      continue
    rows.append(_measured(model, folder / f"{scheme or 'float32'}.tflite", scheme, representative_dataset, options))
  return QuantizationReport(tuple(rows))


def _measured(model: Any, path: Path, scheme: str | None, representative_dataset: Any, options: Mapping[str, Any]) -> Quantized:
  data = representative_dataset if scheme == "int8" else None
  try:
    made = save_model(model, path, quantization=scheme, representative_dataset=data, **options)
  except ExportError as error:
    return Quantized(str(scheme), None, None, None, " ".join(str(error).split()))
  rows = [row for row in made.report.rows if row.values in ("ordinary", "given")]
  cosines = [row.cosine for row in rows if isinstance(row, quantized.QuantizedRow)]
  return Quantized(str(scheme), made.size, max((row.max_abs or 0.0 for row in rows), default=0.0), min(cosines, default=None))


def save_training(
  loss: Callable[..., Any],
  fun: Callable[..., Any],
  params: Any,
  path: str | os.PathLike[str],
  *,
  batch: Mapping[str, Any],
  inputs: Mapping[str, Any],
  learning_rate: float,
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  steps: int = 3,
  sizes: Mapping[str, int] | None = None,
  examples: plan.Given | None = None,
  overwrite: bool = False,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports a model that learns on the device: its parameters are variables of the interpreter.

  The file has the signatures `train`, one step of stochastic gradient descent on a batch, which returns the `loss` before it; `infer`,
  `fun` of the parameters as they are now; `parameters`, which returns them; and `restore`, which takes and sets them.
  LiteRT's builtin ops neither read nor write files, so keeping the parameters is the application's part. A tensor of parameters is
  named by its path, `encoder_0_kernel`; `parameters` takes a number that it does not use, for a LiteRT signature has inputs.

  Args:
    loss: `loss(params, *batch)`, a scalar that JAX can differentiate.
    fun: `fun(params, *inputs)`.
    params: a pytree of float32 arrays, with which training begins.
    path: the file, `model.tflite`.
    batch, inputs: the arguments of `loss` and of `fun`, as in `saved_model.save`.
    learning_rate: the step is -learning_rate times the gradient.
    outputs: names for the results of `fun`.
    steps: how many of them the file takes, on random batches, to be compared with JAX.
    sizes: of symbolic dimensions, at which to compare; 4 for those not given.
    examples: {argument: array, or callable(rng, shape, dtype)} instead of random ones.
    overwrite: whether to replace the file.
    rtol, atol: |tflite - jax| <= atol + rtol * |jax|, of losses, parameters and outputs.

  Raises:
    ExportError: ops that LiteRT lacks; or losses, parameters or outputs that are not those of the same steps in JAX.
    FileExistsError: the file is there and `overwrite` is False.
    ImportError: a package of jax2tf[tflite] is missing.
    ValueError: a parameter that is not float32, or a loss that is no scalar.
  """
  path = Path(path)
  _check(path, overwrite, None, None)
  trained = training.Training.of(loss, fun, params, batch, inputs, outputs, learning_rate)
  with _written(trained.converted(), path, overwrite) as file:
    report = trained.compared(file, steps, sizes or {}, examples or {}, _versions(), rtol, atol)
  return Exported.at(path, report)


def _check(path: Path, overwrite: bool, quantization: str | None, representative_dataset: Any) -> None:
  """What can be known before the work."""
  if not overwrite:
    publish.refuse_existing(path, "or another path")
  quantized.check(quantization, representative_dataset)
  runtime.extra("ai_edge_litert")
  if quantization == "int4":
    runtime.extra("ai_edge_quantizer")


def _converted(source: Source, quantization: str | None, representative_dataset: Any) -> bytes:
  """The model, with erf as it is where the converter fuses it into GELU."""
  if remembered := state.of(source):
    return state.converted(source, remembered, TABLE, functools.partial(_refuse, source))
  functions = {name: signature.frozen(TABLE) for name, signature in source.signatures.items()}
  configure = quantized.options(quantization, representative_dataset, functions)
  if any(op in FUSED for signature in source.signatures.values() for op in replay.op_types(signature.function)):
    table = {op: replacement for op, replacement in TABLE.items() if op not in FUSED}
    fused = {name: replay.frozen(signature.function, table) for name, signature in source.signatures.items()}
    with contextlib.suppress(ExportError):
      contents = runtime.converted(fused, quantized.options(None, None, fused), functools.partial(_refuse, source))
      if quantization is None:
        return contents
      functions = fused
  return runtime.converted(functions, configure, functools.partial(_refuse, source))


def _refuse_empty(source: Source) -> None:
  """LiteRT computes an output without elements, and has "Invalid tensor size" for whoever asks for it."""
  for signature in source.signatures.values():
    for name, output in signature.function.structured_outputs.items():
      if 0 in (output.shape.as_list() if output.shape.rank is not None else ()):
        spec = signature.record.outputs[name]
        raise ExportError(
          TARGET, f"{RUNTIME} cannot return output {name!r}, {spec}, of signature {signature.name!r}: it has no elements; leave it out"
        )


def _refuse(source: Source, lacking: Mapping[str, str]) -> ExportError:
  """The error for ops that LiteRT lacks, by the first signature that has one of them."""
  signatures = list(source.signatures.values())
  asking = [s for s in signatures if any(use.op in lacking for use in s.uses)]
  return (asking or signatures)[0].refuse(TARGET, RUNTIME, lacking)


def _versions() -> dict[str, str]:
  return {"tensorflow": tf.__version__, "ai-edge-litert": runtime.extra("ai_edge_litert").__version__}


@contextlib.contextmanager
def _written(contents: bytes, path: Path, overwrite: bool) -> Iterator[Path]:
  """The file beside its place, and in it if nothing goes wrong."""
  with publish.beside(path.parent) as place:
    place.write_bytes(contents)
    yield place
    if not overwrite:
      publish.refuse_existing(path, "or another path")
    place.replace(path)
