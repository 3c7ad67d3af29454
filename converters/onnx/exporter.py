"""Exports a function as an ONNX model, and compares its outputs in ONNX Runtime with JAX's.

`replacements` replaces ops that tf2onnx or ONNX Runtime lacks or computes differently. tf2onnx then
translates the graph op by op; `handlers` adds handlers to it.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jax2tf.idioms import fused as fused_idioms

from ..bundle import calls, paths, publish
from ..export.source import Exported, ExportError, Signature, Source, single
from ..saved_model.builder import Model
from ..verify import plan
from . import bfloat16
from .model import OPSET, RUNTIME, Translated, extra, lacking_kernels, quiet_options, translated

# A protocol buffer holds at most 2 GiB; the rest is for everything but parameters.
_LARGEST = 2**31 - 2**27
_ALIGNMENT = 4096  # alignment of tensors in the data file, so that it can be mapped into memory

# ONNX Runtime 1.32: MaxPool ignores NaN. With the other fused idioms the values are JAX's.
IDIOMS = fused_idioms.without("attention", "max_pool")


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
  opset: int = OPSET,
  external_data_threshold: int = _LARGEST,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports `fun(params, *inputs)`.

  Args:
    fun, params, inputs, outputs, polymorphic_constraints: as for `saved_model.save`.
    idioms: as for `jax2tf.convert`. By default the fused idioms for which the runtime has JAX's
      values (docs/guide/fused.md).
    path, overwrite, opset, external_data_threshold, comparison: as for `save_model`.

  Returns:
    as `save_model`.

  Raises:
    ExportError, FileExistsError, IsADirectoryError, OSError, ImportError, ValueError: as
    `save_model`.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.
    TypeError: an option is unknown.

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import onnx
    >>> w = np.eye(2, dtype=np.float32)
    >>> made = onnx.save(
    ...   lambda w, x: jnp.tanh(x @ w), w, "model.onnx", inputs={"x": "f32[b,2]"}, outputs=["y"]
    ... )
    >>> onnx.run("model.onnx", {"x": np.zeros((1, 2), np.float32)})
    {'y': array([[0., 0.]], dtype=float32)}
  """
  plan.Comparison.of(comparison, save)
  _check(paths.of(path), overwrite, opset)
  model = Model(
    params, trainable=False, polymorphic_constraints=polymorphic_constraints, idioms=idioms
  )
  model.add(fun, inputs=inputs, outputs=outputs)
  return save_model(
    model,
    path,
    overwrite=overwrite,
    opset=opset,
    external_data_threshold=external_data_threshold,
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
  opset: int = OPSET,
  external_data_threshold: int = _LARGEST,
  **comparison: Unpack[plan.Options],
) -> Exported:
  """Exports a signature. The file keeps the names of inputs and outputs; symbolic dimensions become
  `dim_param`.

  Args:
    model: a `saved_model.Model`, or the directory of a SavedModel that one saved.
    path: the file, `model.onnx`, or its address in another file system of TensorFlow. Large
      parameters go into a second file beside it, `model-<hash>.data`, to which it refers.
    signatures: [name], if the model has several signatures. An ONNX model has one.
    reference: for a directory, the JAX function `fun(params, *inputs)`. By default, the SavedModel
      run by TensorFlow.
    params: the parameters of `reference`.
    idioms: the idioms that the model must have; they are those that it was made with.
    overwrite: whether to replace an existing file.
    opset: the version of ONNX's operators, 18 or newer.
    external_data_threshold: the total size of the parameters in bytes above which they go into the
      second file.
    comparison: `sizes`, `samples`, `examples`, `rtol` and `atol`, as in
      `comparison.plan.Comparison`.

  Returns:
    the path of the file, the report of the comparison, and the total size of the files.

  Raises:
    ExportError: ONNX or ONNX Runtime lacks ops or dtypes, all listed with their source lines; or an
      output differs from the reference's.
    FileExistsError: the file exists and `overwrite` is False.
    IsADirectoryError: `path` is a folder.
    OSError: the file cannot be written.
    FileNotFoundError: `model` is a path without a SavedModel of `jax2tf.converters.saved_model`.
    ImportError: a package of jax2tf[onnx] is missing.
    ValueError: there are several signatures; `signatures`, `opset` or an address is not valid; an
      input and an output have one name; the function calls back into Python.

  Examples:
    >>> from jax2tf.converters import onnx, saved_model
    >>> model = saved_model.Model({"w": 2.0}).add(
    ...   lambda params, x: params["w"] * x, inputs={"x": "f32[b]"}, outputs=["y"]
    ... )
    >>> made = onnx.save_model(model, "model.onnx", sizes={"b": [1, 8]})
    >>> made.path.name, made.report.ok
    ('model.onnx', True)
  """
  path, options = paths.of(path), plan.Comparison.of(comparison, save_model)
  _check(path, overwrite, opset)
  source = Source.of(
    model, signatures=signatures, reference=reference, params=params, idioms=idioms
  )
  if len(source.signatures) != 1:
    raise ValueError(
      f"an ONNX model has one signature, and this one has {', '.join(source.signatures)}; choose: "
      "signatures=[...]"
    )
  source.refuse_writers("onnx", RUNTIME)
  (signature,) = source.signatures.values()
  within = (
    sum(
      v.shape.num_elements() * bfloat16.HELD.get(v.dtype, v.dtype).size
      for v in signature.function.graph.variables
    )
    <= external_data_threshold
  )
  with publish.beside(path.parent) as place:
    place.mkdir()
    found = translated(signature, opset, within, idioms=source.idioms)
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
    outdated, size = _data_files(path), sum(written.stat().st_size for written in [file, *data])
    for written in data:  # before the model, which refers to them; their names are new
      publish.move(written, path.parent / written.name)
    publish.move(file, path)
    for old in outdated - {path.parent / written.name for written in data}:
      old.unlink(missing_ok=True)
  return Exported(path, report, size)


def run(path: str | os.PathLike[str], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Runs a model once in ONNX Runtime on CPU.

  Args:
    path: the .onnx file.
    inputs: {input: array}.

  Returns:
    {output: array}.

  Raises:
    FileNotFoundError, IsADirectoryError, ValueError: `path` is no file, or in a file system that
      TensorFlow does not have.
    ImportError: onnxruntime is missing.
    RuntimeError: ONNX Runtime fails. The message quotes it.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import onnx
    >>> made = onnx.save(
    ...   lambda params, x: 2 * x, None, "model.onnx", inputs={"x": "f32[b]"}, outputs=["y"]
    ... )
    >>> onnx.run("model.onnx", {"x": np.ones(3, np.float32)})
    {'y': array([2., 2., 2.], dtype=float32)}
  """
  with paths.opened(path) as file:
    for data in _data_files(paths.of(path)):
      if isinstance(data, paths.Address):
        data.fetch(file.parent)
    session = extra("onnxruntime").InferenceSession(
      os.fspath(file), quiet_options(), providers=["CPUExecutionProvider"]
    )
    return single(functools.partial(_answers, session), inputs)


def _check(path: Path, overwrite: bool, opset: int) -> None:
  """Raises the errors that need no conversion."""
  publish.check_file(path, overwrite, "model.onnx")
  for module in ("tf2onnx", "onnxruntime"):
    extra(module)
  newest = extra("onnx.defs").onnx_opset_version()
  if not OPSET <= opset <= newest:
    raise ValueError(
      f"opset = {opset}; give one from {OPSET} to {newest}, the newest of the onnx that is "
      "installed"
    )


def _write(model: Translated, place: Path, path: Path) -> tuple[list[Path], Path]:
  """Writes the model as `place/path.name`, and large weights beside it. Returns (data files, model
  file)."""
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
  """Writes all weights to one file, and makes them initializers of the model. The file's name has
  their hash, so it is unique."""
  onnx = extra("onnx")
  digest, tensors = hashlib.sha256(), []
  written = place / "weights"
  with written.open("wb") as stream:
    for name, variable in model.weights.items():
      value = np.ascontiguousarray(bfloat16.as_held(variable.numpy()))
      dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
      tensor = onnx.TensorProto(
        name=name, data_type=dtype, dims=value.shape, data_location=onnx.TensorProto.EXTERNAL
      )
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
  """The data files that this module wrote beside an existing model. None for a file that is no ONNX
  model."""
  if not path.exists():
    return set()
  try:
    with paths.fetched(path) as file:
      proto = extra("onnx").load_model(str(file), load_external_data=False)
  except extra("google.protobuf.message").DecodeError:
    return set()
  found = {
    entry.value
    for tensor in proto.graph.initializer
    for entry in tensor.external_data
    if entry.key == "location"
  }
  return {
    path.parent / name
    for name in found
    if name.startswith(f"{path.stem}-") and name.endswith(".data")
  }


def _opened(model: Translated, file: Path, signature: Signature) -> Any:
  """Opens the file in ONNX Runtime, after ONNX's checker."""
  try:
    extra("onnx.checker").check_model(str(file), full_check=True)
    return extra("onnxruntime").InferenceSession(
      str(file), quiet_options(), providers=["CPUExecutionProvider"]
    )
  except Exception as error:
    if lacking := lacking_kernels(model):
      raise signature.refuse("onnx", RUNTIME, lacking) from error
    raise ExportError(
      "onnx", f"{RUNTIME} cannot open the model of signature {signature.name!r}: {error}"
    ) from error


def _answers(session: Any, runs: Sequence[plan.Run]) -> list[calls.Answer]:
  """See `export.source.Runner`."""
  names = [output.name for output in session.get_outputs()]
  narrow = session.get_modelmeta().custom_metadata_map.get(bfloat16.OUTPUTS, "").split()

  def prepared(run: plan.Run) -> Callable[[], dict[str, Any]]:
    inputs = {name: bfloat16.as_held(np.asarray(x)) for name, x in run.inputs.items()}
    return lambda: dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))

  found = [calls.answered(functools.partial(prepared, run), run.timed) for run in runs]
  for answer in found:
    answer["outputs"] |= {
      name: bfloat16.from_held(y) for name, y in answer["outputs"].items() if name in narrow
    }
  return found
