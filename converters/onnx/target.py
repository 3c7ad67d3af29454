"""ONNX as a target: the model, its weights in a second file, and the comparison in ONNX Runtime."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.messages import Argument, ArgumentError, Text

from ..bundle import calls, paths, publish
from ..export import quantization
from ..export.ends import in_parts, of_parts
from ..export.narrow import packed
from ..export.pipeline import Target, Written
from ..export.source import ExportError, Signature, Source
from ..verify import plan
from ..verify.report import Report
from . import (
  bfloat16,
  float16,
  functions,
  inline,
  layouts,
  opsets,
  parameters,
  protos,
  quantized,
  releases,
  runtime,
)
from .model import COMPLEX, Translated, lacking_kernels, translated
from .quantized import Quantization
from .runtime import RUNTIME, extra

TARGET = "onnx"
FLOAT32 = "float32"
PRECISIONS = (FLOAT32, "float16")
MODULES = "modules"
# A protocol buffer holds at most 2 GiB; the rest is for everything but parameters.
LARGEST = 2**31 - 2**27
_IN_RANGE = ("ordinary", "given")  # the values of runs for which float16 is to have the range
# In bytes. Larger parameters are inputs of the graph while tf2onnx works, which takes 16 times the
# size of constants (350 MB: 5.8 GB and 23 s; as inputs 2.9 GB and 9 s).
_CONSTANTS = 2**25
_SMALL = 1024  # elements of a constant that stays in the model file
_ALIGNMENT = 4096  # alignment of tensors in the data file, so that it can be mapped into memory


@dataclass(frozen=True)
class WrittenModel(Written):
  """A written model, and what it was made of.

  Attributes:
    model: as it is in the file.
    compared: the same model with its weights in a second file, if that is compared instead.
    quantization: with samples in the dtypes of the signature.
  """

  model: Translated = field(kw_only=True)
  compared: Path | None = None
  quantization: Quantization = Quantization()  # noqa: RUF009  (frozen)


@dataclass(frozen=True)
class Onnx(Target[WrittenModel]):
  """An export to ONNX.

  Attributes:
    opset: the version of ONNX's operators; None for the oldest that has all of them.
    external_data_threshold: the size of the parameters above which they go into the second file.
    precision: "float32", or "float16" for products in float16.
    quantization: how the model is quantised and compared.
    functions: "modules" for an ONNX function for each module.
    inputs_as_nchw, outputs_as_nchw: those that have the channels first in the file.
    keep_io_types: whether inputs and outputs stay float32 beside `precision`.
    attention_nodes: whether attention becomes Attention.
  """

  name = TARGET
  runtime = RUNTIME
  of_one = "an ONNX model"

  opset: int | None
  external_data_threshold: int
  precision: str = FLOAT32
  quantization: Quantization = Quantization()  # noqa: RUF009  (frozen)
  functions: str | None = None
  inputs_as_nchw: Sequence[str] = ()
  outputs_as_nchw: Sequence[str] = ()
  keep_io_types: bool = True
  attention_nodes: bool = False

  def check_path(self, path: Path) -> None:
    publish.check_file(path, self.overwrite, "model.onnx")

  def check(self) -> None:
    self.quantization.check(self.comparison)
    if self.precision not in PRECISIONS:
      raise ArgumentError(
        "precision", self.precision, advice=f"give one of: {', '.join(PRECISIONS)}"
      )
    if self.functions not in (None, MODULES):
      raise ArgumentError("functions", self.functions, advice=f"give {MODULES!r}, or leave it out")
    for module in ("tf2onnx", "onnxruntime"):
      extra(module)
    if self.quantization.scheme is not None and self.precision != FLOAT32:
      raise ArgumentError(
        "precision",
        self.precision,
        problem=f"{self.quantization.scheme} is made of the float32 model",
        advice=Text("leave it out, or leave out ", Argument("quantization")),
      )
    if not self.keep_io_types and self.precision == FLOAT32:
      raise ArgumentError(
        "keep_io_types",
        False,
        problem="a float32 model has float32 inputs and outputs",
        advice=Text("leave it out, or give ", Argument("precision", "float16")),
      )
    newest, of = releases.newest_opset()
    if self.opset is not None and not opsets.OLDEST <= self.opset <= newest:
      raise ArgumentError(
        "opset", self.opset, advice=f"give one from {opsets.OLDEST} to {newest}, the newest {of}"
      )

    since = opsets.SINCE["Attention"]
    if self.attention_nodes and self.opset is not None and self.opset < since:
      raise ArgumentError(
        "attention_nodes",
        True,
        problem=f"Attention is a node of opset {since} and newer",
        advice=Text("give ", Argument("opset", since), ", or leave it out"),
      )

  def accept(self, source: Source) -> None:
    super().accept(source)
    self.quantization.check_ranges(source)
    if scheme := self.quantization.scheme:
      runs_in = Text(f"{RUNTIME} with ", Argument("quantization", scheme))
      quantization.refuse_complex(source, TARGET, runs_in)

  def write(self, source: Source, place: Path, name: str) -> WrittenModel:
    (signature,) = source.signatures.values()
    modules = None if self.functions is None else signature.modules
    variables = signature.function.graph.variables
    scheme = self.quantization.fitting(source)
    has_ranges = scheme.scheme == "int8" and not scheme.dataset
    by_quantizer = scheme.scheme is not None and not has_ranges
    # the quantizer and float16 read float32
    keeps_narrow = not by_quantizer and self.precision == FLOAT32
    held = {} if keeps_narrow else bfloat16.HELD
    size = sum(v.shape.num_elements() * held.get(v.dtype, v.dtype).size for v in variables)
    is_inside = size <= min(self.external_data_threshold, LARGEST)
    # the quantizer reads constants
    within = is_inside and (size <= _CONSTANTS or by_quantizer)
    in_file = layouts.channels_first(signature, self.inputs_as_nchw, self.outputs_as_nchw)
    since = opsets.SINCE["Attention"] if self.attention_nodes else None
    model = translated(
      in_file,
      self.opset or since,
      within,
      idioms=source.idioms,
      keeps_narrow=keeps_narrow,
      attention_nodes=self.attention_nodes,
      quantizes=has_ranges,
    )
    if nchw := [*self.inputs_as_nchw, *self.outputs_as_nchw]:
      model.proto.metadata_props.add(key=layouts.NCHW, value=" ".join(nchw))
    if self.precision != FLOAT32:
      model = self._in_float16(model, source)
    place.mkdir()
    if by_quantizer:
      whole = place / "float32"
      whole.mkdir()
      _write(model, whole / name)
      model = self._with_large_apart(
        replace(model, proto=quantized.quantized(whole / name, scheme))
      )
    written = replace(_saved(model, place / name, modules), quantization=scheme)
    if not (written.parts and is_inside):
      return written
    (place / "inside").mkdir()
    whole = place / "inside" / name
    inline.write(written.path, whole)
    # ONNX Runtime maps a second file into memory, so the comparison takes no copy of the weights.
    return replace(written, path=whole, parts=(), compared=written.path)

  def _with_large_apart(self, model: Translated) -> Translated:
    """The model, all of whose weights are inside, with the large ones as `weights` if they are
    beyond the threshold."""
    to_array = extra("onnx").numpy_helper.to_array
    tensors = list(model.proto.graph.initializer)
    if sum(tensor.ByteSize() for tensor in tensors) <= self.external_data_threshold:
      return replace(model, weights={}, last_rows={})
    small = [tensor for tensor in tensors if math.prod(tensor.dims) <= _SMALL]
    large = {t.name: _Constant(to_array(t)) for t in tensors if math.prod(t.dims) > _SMALL}
    del model.proto.graph.initializer[:]
    model.proto.graph.initializer.extend(small)
    return replace(model, weights=large, last_rows={})

  def _in_float16(self, model: Translated, source: Source) -> Translated:
    """The model with products in float16.

    Raises:
      ExportError: a number in the comparison is too large for float16.
    """
    parts = {name: _parts(model, name) for name in model.weights}
    values = {name: np.concatenate(x) if len(x) > 1 else x[0] for name, x in parts.items()}
    halved = float16.halved(model.proto, values, keep_io_types=self.keep_io_types)
    runs = [run.inputs for run in source.runs(self.comparison) if run.values in _IN_RANGE]
    feeds = [_held(layouts.to_file(run, self.inputs_as_nchw)) | values for run in runs]
    largest = float16.largest(model.proto, list(halved.rounded), feeds)
    if beyond := {name: x for name, x in largest.items() if x > float16.LARGEST}:
      lines = [f"\n  {x:.4g} in {halved.rounded[name]}" for name, x in beyond.items()]
      raise ExportError(
        TARGET,
        Text(
          f"float16 has numbers up to {float16.LARGEST:.0f}, and the function computes larger "
          "ones; scale them in the function, or leave out ",
          Argument("precision"),
          ":",
          *lines[:8],
        ),
      )
    weights = {halved.weights.get(name, name): v for name, v in model.weights.items()}
    last_rows = {halved.weights.get(name, name): x for name, x in model.last_rows.items()}
    return replace(
      model,
      proto=halved.proto,
      weights=weights,
      last_rows=last_rows,
      narrow=frozenset(halved.weights.values()),
    )

  def compare(self, source: Source, written: WrittenModel) -> Report:
    (signature,) = source.signatures.values()
    # Opened after the reference has run, which takes as much memory for large models.
    file = written.compared or written.path
    session = functools.cache(functools.partial(opened, written.model, file, signature))

    def answer(runs: Sequence[plan.Run]) -> list[calls.Answer]:
      return answers(session(), runs)

    versions = {name: extra(name).__version__ for name in ("onnx", "tf2onnx", "onnxruntime")}
    if self.quantization.scheme is not None:
      return quantization.compared(
        source, answer, TARGET, RUNTIME, self.comparison, written.quantization, versions=versions
      )
    return source.compared(
      answer,
      TARGET,
      RUNTIME,
      self.comparison,
      versions=versions,
      precision=None if self.precision == FLOAT32 else np.dtype(self.precision),
    )

  def publish(self, written: WrittenModel, path: Path) -> None:
    outdated = data_files(path)
    new = [path.parent / part.name for part in written.parts]
    for part, target in zip(written.parts, new, strict=True):
      publish.move(part, target)  # before the model, which refers to it; its name is new
    publish.move(written.path, path)
    for old in outdated.difference(new):
      old.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Constant:
  """A weight with a value of its own, in place of a variable."""

  value: np.ndarray

  def numpy(self) -> np.ndarray:
    return self.value


def _saved(model: Translated, file: Path, modules: Collection[str] | None) -> WrittenModel:
  """Writes the model as `_write` does, with the oldest releases for it in its metadata."""
  oldest = releases.oldest(model.proto)
  model.proto.metadata_props.add(key=releases.OLDEST, value=oldest.ordinary)
  model.proto.metadata_props.add(key=releases.OLDEST_FOR_NAN, value=oldest.nan)
  parts = _write(model, file, modules)
  return WrittenModel(file, parts, oldest.ordinary, oldest.nan, model=model)


def _write(
  model: Translated, file: Path, modules: Collection[str] | None = None
) -> tuple[Path, ...]:
  """Writes the model, and its `weights` to a second file, which is returned; with functions for
  these modules."""
  parts: tuple[Path, ...] = ()
  if model.weights:
    remaining = [value for value in model.proto.graph.input if value.name not in model.weights]
    del model.proto.graph.input[:]
    model.proto.graph.input.extend(remaining)
    parts = (_write_weights(model, file.parent, file.stem),)
  proto = model.proto if modules is None else functions.with_functions(model.proto, modules)
  extra("onnx").save_model(proto, str(file))
  return parts


def _write_weights(model: Translated, place: Path, stem: str) -> Path:
  """Writes all weights to one file, and makes them initializers of the model. The file's name has
  their hash, so it is unique."""
  onnx = extra("onnx")
  digest, tensors = hashlib.sha256(), []
  written = place / "weights"
  with written.open("wb") as stream:
    for name in model.weights:
      parts = _parts(model, name)
      value, dims = parts[0], [*parts[0].shape]
      if len(parts) > 1:
        dims[0] += 1
      dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
      tensor = onnx.TensorProto(
        name=name, data_type=dtype, dims=dims, data_location=onnx.TensorProto.EXTERNAL
      )
      stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
      stored = [packed(part) for part in parts]
      length = sum(part.nbytes for part in stored)
      for key, number in (("offset", stream.tell()), ("length", length)):
        tensor.external_data.add(key=key, value=str(number))
      for part in stored:
        stream.write(part.data)
        digest.update(part.data)
      tensors.append(tensor)
  file = written.rename(place / f"{stem}-{digest.hexdigest()[:16]}.data")
  for tensor in tensors:
    tensor.external_data.add(key="location", value=file.name)
  model.proto.graph.initializer.extend(tensors)
  return file


def _parts(model: Translated, name: str) -> list[np.ndarray]:
  """The value of a weight in the file, and its further row if it has one."""
  rows = parameters.rows_of(model.weights[name], model.last_rows.get(name))
  return [part.astype(np.float16) for part in rows] if name in model.narrow else rows


def data_files(path: Path) -> set[Path]:
  """The data files that this module wrote beside an existing model. None for a file that is no ONNX
  model."""
  if not path.exists():
    return set()
  try:
    with paths.fetched(path) as file:
      proto = extra("onnx").load_model(str(file), load_external_data=False)
  except extra("google.protobuf.message").DecodeError:
    return set()
  return {
    path.parent / name
    for name in data_locations(proto)
    if name.startswith(f"{path.stem}-") and name.endswith(".data")
  }


def data_locations(proto: Any) -> set[str]:
  """The files, beside that of a model, that have its weights."""
  return {
    entry.value
    for tensor in proto.graph.initializer
    for entry in tensor.external_data
    if entry.key == "location"
  }


# In bytes: ONNX Runtime copies larger weights neither to pack them nor to widen them.
WITH_COPIES = 2**30


def opened(model: Translated, file: Path, signature: Signature) -> Any:
  """Opens the file in ONNX Runtime, after ONNX's checker."""
  try:
    extra("onnx.checker").check_model(str(file), full_check=True)
    data = data_files(file) if model.weights else ()  # which only weights are in
    options = runtime.quiet_options()
    if sum(each.stat().st_size for each in data) > WITH_COPIES:
      for name, value in runtime.WITHOUT_COPIES.items():
        options.add_session_config_entry(name, value)
    return runtime.session(str(file), options)
  except Exception as error:
    if lacking := lacking_kernels(model):
      raise signature.refuse(TARGET, RUNTIME, lacking) from error
    raise ExportError(
      TARGET, f"{RUNTIME} cannot open the model of signature {signature.name!r}: {error}"
    ) from error


def answers(
  session: Any, runs: Sequence[plan.Run], *, as_in_file: bool = False
) -> list[calls.Answer]:
  """See `export.source.Runner`. `as_in_file`: NCHW inputs and outputs are so in the runs too."""
  names = [output.name for output in session.get_outputs()]
  noted = session.get_modelmeta().custom_metadata_map
  keys = (bfloat16.OUTPUTS, COMPLEX, float16.ENDS, layouts.NCHW)
  narrow, pairs, half, nchw = (protos.names_in(noted, key) for key in keys)
  nchw = [] if as_in_file else nchw

  def prepared(run: plan.Run) -> Callable[[], dict[str, Any]]:
    inputs = _held(layouts.to_file(run.inputs, nchw))
    inputs = {name: x.astype(np.float16) if name in half else x for name, x in inputs.items()}
    return lambda: dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))

  answered = [calls.answered(functools.partial(prepared, run), run.timed) for run in runs]
  for answer in answered:
    answer["outputs"] |= {
      name: bfloat16.from_held(y) for name, y in answer["outputs"].items() if name in narrow
    }
    answer["outputs"] |= {
      name: of_parts(y) for name, y in answer["outputs"].items() if name in pairs
    }
    answer["outputs"] |= layouts.from_file(answer["outputs"], nchw)
    if not as_in_file:
      answer["outputs"] |= {
        name: y.astype(np.float32) for name, y in answer["outputs"].items() if name in half
      }
  return answered


def _held(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """The inputs as the file takes them."""
  return {name: bfloat16.as_held(in_parts(np.asarray(x))) for name, x in inputs.items()}
