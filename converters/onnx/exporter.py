"""A function as an ONNX model, which ONNX Runtime has run and which agrees with JAX.

tf2onnx translates the op by op graph of a signature. What it lacks or gets wrong is replaced beforehand (`replacements`), or taken by
handlers of our own (`handlers`).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ..comparison import calls, plan
from ..export.source import Exported, ExportError, Signature, Source, single
from ..saved_model import publish
from ..saved_model.builder import Model
from . import bfloat16
from .model import OPSET, RUNTIME, Translated, extra, lacking_kernels, quiet_options, translated

# A protocol buffer ends at 2 GiB; what is not parameters has the rest.
_LARGEST = 2**31 - 2**27
_ALIGNMENT = 4096  # of tensors in a file beside, so that it can be mapped into memory


def save(
  fun: Any,
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  overwrite: bool = False,
  opset: int = OPSET,
  external_data_threshold: int = _LARGEST,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports `fun(params, *inputs)`.

  `fun`, `params`, `inputs`, `outputs` and `polymorphic_constraints` are those of `saved_model.save`; the rest, the result and the errors
  are those of `save_model`.
  """
  _check(Path(path), overwrite, opset)
  model = Model(params, trainable=False, polymorphic_constraints=polymorphic_constraints)
  model.add(fun, inputs=inputs, outputs=outputs)
  return save_model(model, path, overwrite=overwrite, opset=opset, external_data_threshold=external_data_threshold, **comparison)


def save_model(
  model: Model | str | os.PathLike[str],
  path: str | os.PathLike[str],
  *,
  signatures: Sequence[str] | None = None,
  reference: Any = None,
  params: Any = None,
  overwrite: bool = False,
  opset: int = OPSET,
  external_data_threshold: int = _LARGEST,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports a signature, with the names of its inputs and outputs, and its symbolic dimensions as `dim_param`.

  Args:
    model: a builder, or the directory of a SavedModel that one saved.
    path: the file, `model.onnx`. Large parameters go into a file beside it, `model-<hash>.data`, which it names.
    signatures: [name] of a model that has several; ONNX has one.
    reference: for a directory, the JAX function `fun(params, *inputs)`; the SavedModel in TensorFlow if not given.
    params: for `reference`.
    overwrite: whether to replace the file.
    opset: of ONNX's operators, 18 or newer.
    external_data_threshold: in bytes; parameters of more than that together go into the file beside.
    comparison: `sizes`, `samples`, `examples`, `rtol` and `atol` of `comparison.plan.Comparison`.

  Returns:
    the file, the report of the comparison and the size, that of the file beside too.

  Raises:
    ExportError: ops or dtypes that ONNX or ONNX Runtime lacks, all at once with the lines that ask for them; or another answer than
      the reference's.
    FileExistsError: the file is there and `overwrite` is False.
    ImportError: a package of jax2tf[onnx] is missing.
    ValueError: several signatures, an opset that is too old or too new, or one name for an input and an output.
  """
  path, options = Path(path), plan.Comparison(**comparison)
  _check(path, overwrite, opset)
  source = Source.of(model, signatures=signatures, reference=reference, params=params)
  if len(source.signatures) != 1:
    raise ValueError(f"an ONNX model has one signature, and this one has {', '.join(source.signatures)}; choose: signatures=[...]")
  source.refuse_writers("onnx", RUNTIME)
  (signature,) = source.signatures.values()
  within = (
    sum(v.shape.num_elements() * bfloat16.HELD.get(v.dtype, v.dtype).size for v in signature.function.graph.variables)
    <= external_data_threshold
  )
  with publish.beside(path.parent) as place:
    place.mkdir()
    found = translated(signature, opset, within)
    data, file = _write(found, place, path)
    session = _opened(found, file, signature)
    report = source.compared(
      functools.partial(_answers, session),
      "onnx",
      RUNTIME,
      options,
      versions={name: extra(name).__version__ for name in ("onnx", "tf2onnx", "onnxruntime")},
    )
    if not overwrite:
      publish.refuse_existing(path, "or another path")
    outdated = _data_files(path)
    for written in data:  # first, under names that nobody knows yet
      written.replace(path.parent / written.name)
    file.replace(path)
    files = [path.parent / written.name for written in data]
    for old in outdated - set(files):
      old.unlink(missing_ok=True)
  return Exported(path, report, sum(f.stat().st_size for f in [path, *files]))


def run(path: str | os.PathLike[str], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """{output: array}, what ONNX Runtime computes on CPU from {input: array}.

  Raises:
    RuntimeError: ONNX Runtime fails; with its words.
  """
  session = extra("onnxruntime").InferenceSession(os.fspath(path), quiet_options(), providers=["CPUExecutionProvider"])
  return single(functools.partial(_answers, session), inputs)


def _check(path: Path, overwrite: bool, opset: int) -> None:
  """What can be known before the work."""
  if not overwrite:
    publish.refuse_existing(path, "or another path")
  for module in ("tf2onnx", "onnxruntime"):
    extra(module)
  newest = extra("onnx.defs").onnx_opset_version()
  if not OPSET <= opset <= newest:
    raise ValueError(f"opset = {opset}; give one from {OPSET} to {newest}, the newest of the onnx that is installed")


def _write(model: Translated, place: Path, path: Path) -> tuple[list[Path], Path]:
  """Writes the model as `place/path.name`, and its weights beside it: these files, and the model's."""
  onnx = extra("onnx")
  proto, file = model.proto, place / path.name
  data = []
  if model.weights:
    kept = [value for value in proto.graph.input if value.name not in model.weights]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    data.append(_write_weights(model, place, path.stem))
  onnx.save_model(proto, str(file))
  return data, file


def _write_weights(model: Translated, place: Path, stem: str) -> Path:
  """One file of all weights, which become initializers of the model; its name has their hash, so that no other model has it."""
  onnx = extra("onnx")
  digest, tensors = hashlib.sha256(), []
  written = place / "weights"
  with written.open("wb") as stream:
    for name, variable in model.weights.items():
      value = np.ascontiguousarray(bfloat16.as_held(variable.numpy()))
      dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
      tensor = onnx.TensorProto(name=name, data_type=dtype, dims=value.shape, data_location=onnx.TensorProto.EXTERNAL)
      stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
      for key, number in (("offset", stream.tell()), ("length", value.nbytes)):
        tensor.external_data.add(key=key, value=str(number))
      contents = value.reshape(-1).view(np.uint8).data
      stream.write(contents)
      digest.update(contents)
      tensors.append(tensor)
  file = written.rename(place / f"{stem}-{digest.hexdigest()[:16]}.data")
  for tensor in tensors:
    tensor.external_data.add(key="location", value=file.name)
  model.proto.graph.initializer.extend(tensors)
  return file


def _data_files(path: Path) -> set[Path]:
  """The files beside a model that is there, of the kind that this module writes."""
  if not path.exists():
    return set()
  proto = extra("onnx").load_model(str(path), load_external_data=False)
  found = {entry.value for tensor in proto.graph.initializer for entry in tensor.external_data if entry.key == "location"}
  return {path.parent / name for name in found if name.startswith(f"{path.stem}-") and name.endswith(".data")}


def _opened(model: Translated, file: Path, signature: Signature) -> Any:
  """The file in ONNX Runtime, after ONNX's own checker."""
  try:
    extra("onnx.checker").check_model(str(file), full_check=True)
    return extra("onnxruntime").InferenceSession(str(file), quiet_options(), providers=["CPUExecutionProvider"])
  except Exception as error:
    if lacking := lacking_kernels(model):
      raise signature.refuse("onnx", RUNTIME, lacking) from error
    raise ExportError("onnx", f"{RUNTIME} cannot open the model of signature {signature.name!r}: {error}") from error


def _answers(session: Any, runs: Sequence[plan.Run]) -> list[calls.Answer]:
  """See `export.source.Runner`."""
  names = [output.name for output in session.get_outputs()]
  narrow = session.get_modelmeta().custom_metadata_map.get(bfloat16.OUTPUTS, "").split()

  def prepared(run: plan.Run) -> Callable[[], dict[str, Any]]:
    inputs = {name: bfloat16.as_held(np.asarray(x)) for name, x in run.inputs.items()}
    return lambda: dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))

  found = [calls.answered(functools.partial(prepared, run), run.timed) for run in runs]
  for answer in found:
    answer["outputs"] |= {name: bfloat16.from_held(y) for name, y in answer["outputs"].items() if name in narrow}
  return found
