"""The contents of an ONNX file, and the time and values of its nodes in ONNX Runtime."""

from __future__ import annotations

import collections
import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle import paths
from ..export.contents import Contents, Node, spec
from ..export.ends import in_parts, whole_specs
from ..export.verified import verified
from ..verify.plan import Comparison
from ..verify.report import Report
from . import float16, layouts, protos, releases
from .functions import inlined
from .model import COMPLEX
from .runtime import RUNTIME, extra, quiet_options, session
from .target import answers, data_locations

_RUNS = 5  # of which the times are the mean


def inspect(path: str | os.PathLike[str]) -> Contents:
  """Reads the contents of an ONNX file from any exporter.

  Args:
    path: the .onnx file; the files with its weights are beside it.

  Returns:
    its ops, their dtypes and weights, its inputs and outputs.

  Raises:
    FileNotFoundError: there is no file.
    ImportError: onnx is missing.
    ValueError: it is not an ONNX file.

  Examples:
    >>> from jax2tf.converters import onnx
    >>> options = {"inputs": {"x": "f32[b]"}, "outputs": ["y"], "samples": 1}
    >>> made = onnx.save(lambda params, x: 2 * x, None, "inspected.onnx", **options)
    >>> [(node.op, node.dtype) for node in onnx.inspect("inspected.onnx").nodes]
    [('Mul', 'float32')]
  """
  file = Path(os.fspath(paths.of(path)))
  model, beside = _loaded(file)
  weights = dict(_weights(model.graph))
  dtypes = {value.name: _dtype(value) for value in _values(model)}
  return Contents(
    str(file),
    f"ONNX, opset {max(each.version for each in model.opset_import)}",
    sum(each.stat().st_size for each in (file, *beside)),
    {"model": {f"{end}s": _specs(model, end) for end in ("input", "output")}},
    list(_nodes(model.graph, dtypes, weights)),
    weights,
    notes=_notes(model),
  )


def _loaded(file: Path) -> tuple[Any, set[Path]]:
  """(the model with its weights and without functions, the files beside it that have them)."""
  onnx = extra("onnx")
  try:
    model = onnx.load_model(str(file), load_external_data=False)
  except FileNotFoundError:
    raise
  except Exception as error:  # of protobuf
    raise ValueError(f"{file} is no ONNX file: {error}") from error
  if not model.opset_import:
    raise ValueError(f"{file} is no ONNX file: it names no opset")
  beside = {file.parent / name for name in data_locations(model)}
  if beside:
    onnx.load_external_data_for_model(model, str(file.parent))
  return inlined(model), beside


def _graphs(graph: Any) -> Iterator[Any]:
  """The graph, and those of loops and branches."""
  yield graph
  for node in protos.nodes(graph):
    yield from protos.bodies(node)


def _weights(graph: Any) -> Iterator[tuple[str, np.ndarray]]:
  to_array = extra("onnx").numpy_helper.to_array
  for each in _graphs(graph):
    yield from ((tensor.name, to_array(tensor)) for tensor in each.initializer)
  for node in protos.nodes(graph):
    for attribute in node.attribute:
      if node.op_type == "Constant" and attribute.name == "value":
        yield node.output[0], to_array(attribute.t)


def _values(model: Any) -> Iterator[Any]:
  """The inferred dtypes and shapes, also of loops and branches."""
  for graph in _graphs(protos.inferred(model)):
    yield from (*graph.input, *graph.value_info, *graph.output)


def _dtype(value: Any) -> str:
  kind = value.type.tensor_type.elem_type
  return extra("onnx").helper.tensor_dtype_to_np_dtype(kind).name if kind else ""


def _specs(model: Any, end: str) -> dict[str, str]:
  constants = {each.name for each in model.graph.initializer}
  specs = {
    value.name: _spec(value)
    for value in getattr(model.graph, end)
    if end == "output" or value.name not in constants
  }
  return whole_specs(specs, protos.names_in(protos.metadata(model), COMPLEX))


def _spec(value: Any) -> str:
  tensor = value.type.tensor_type
  shape = [
    each.dim_value if each.HasField("dim_value") else each.dim_param or None
    for each in tensor.shape.dim
  ]
  return spec(_dtype(value), shape if tensor.HasField("shape") else None)


def _nodes(
  graph: Any, dtypes: Mapping[str, str], weights: Mapping[str, np.ndarray]
) -> Iterator[Node]:
  for node in protos.nodes(graph):
    if node.op_type != "Constant":
      constants = tuple(name for name in node.input if name in weights)
      first = node.output[0] if node.output else ""
      yield Node(node.name or first, node.op_type, dtypes.get(first, ""), constants)


def _as_float32(specs: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
  """The specs with float32 in place of float16 for these names."""
  return {
    name: text.replace("f16", "f32", 1) if name in names else text for name, text in specs.items()
  }


def _notes(model: Any) -> dict[str, str]:
  metadata = protos.metadata(model)
  notes = {"written by": f"{model.producer_name} {model.producer_version}".strip()}
  if releases.OLDEST in metadata:
    notes["oldest ONNX Runtime"] = metadata[releases.OLDEST]
    notes["oldest ONNX Runtime for NaN and infinities"] = metadata[releases.OLDEST_FOR_NAN]
  return {what: text for what, text in notes.items() if text}


def seconds_by_op(
  path: str | os.PathLike[str], inputs: Mapping[str, np.ndarray]
) -> dict[str, float]:
  """{type of op: seconds in one call}, by ONNX Runtime's profiler, the slowest first. ONNX Runtime
  merges nodes, so some types are its own.

  Args:
    path: the .onnx file.
    inputs: {input: array}.
  """
  with tempfile.TemporaryDirectory(prefix="jax2tf-onnx-") as folder:
    options = quiet_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder, "profile"))
    opened = session(os.fspath(path), options)
    for _ in range(_RUNS + 1):
      opened.run(None, {name: in_parts(x) for name, x in inputs.items()})
    events = json.loads(Path(opened.end_profiling()).read_text())
  times: dict[str, list[float]] = collections.defaultdict(list)
  for event in events:
    if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
      times[event["args"]["op_name"]].append(event["dur"] / 1e6)
  means = {op: sum(each) / (_RUNS + 1) for op, each in times.items()}
  return dict(sorted(means.items(), key=lambda item: -item[1]))


def values_inside(
  path: str | os.PathLike[str], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """{name of a node: its first result} of one call, in order of execution, and the outputs under
  their names; without what loops and branches compute inside.

  Args:
    path: the .onnx file.
    inputs: {input: array}.
  """
  onnx = extra("onnx")
  model, _ = _loaded(Path(os.fspath(path)))
  named = {
    node.output[0]: node.name or node.output[0]
    for node in model.graph.node
    if node.output and node.op_type != "Constant"
  }
  outputs = [value.name for value in model.graph.output]
  model.graph.output.extend(
    onnx.helper.make_empty_tensor_value_info(name) for name in named if name not in outputs
  )
  options = quiet_options()
  level = extra("onnxruntime").GraphOptimizationLevel
  options.graph_optimization_level = level.ORT_DISABLE_ALL  # which merges nodes
  with tempfile.TemporaryDirectory(prefix="jax2tf-onnx-") as folder:
    file = str(Path(folder, "model.onnx"))
    onnx.save_model(model, file, save_as_external_data=True)
    parts = {name: in_parts(x) for name, x in inputs.items()}
    results = session(file, options).run([*named, *outputs], parts)
  return dict(zip([*named.values(), *outputs], results, strict=True))


def verify(
  path: str | os.PathLike[str],
  reference: Any,
  *,
  params: Any = None,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 3,
  rtol: float | None = None,
  atol: float | None = None,
  inputs: Mapping[str, Any] | None = None,
  constraints: Sequence[str] = (),
  hostile: bool = False,
) -> Report:
  """Compares an ONNX file, from any exporter, with a JAX function, in ONNX Runtime on CPU.

  Args:
    path: the .onnx file.
    reference: the JAX function `fun(params, *inputs)`, of the inputs of the file in its order. If
      this package wrote inputs or outputs as NCHW, the function takes and returns NHWC.
    params: the parameters. Without them the reference is `fun(*inputs)`.
    constraints: conditions on the sizes.
    sizes, samples, rtol, atol, inputs, hostile: as in `jax2tf.converters.verify.verify`.

  Returns:
    the report, even if outputs differ.

  Raises:
    FileNotFoundError, ImportError, ValueError: as `inspect`.
    ValueError: the function does not take these inputs, or has other results; sizes break a
      constraint.

  Examples:
    >>> from jax2tf.converters import onnx
    >>> options = {"inputs": {"x": "f32[b]"}, "outputs": ["y"], "samples": 1}
    >>> made = onnx.save(lambda params, x: 2 * x, None, "verified.onnx", **options)
    >>> onnx.verify("verified.onnx", lambda x: x + x, samples=1).ok
    True
  """
  contents = inspect(path)
  opened = session(contents.path)
  noted = opened.get_modelmeta().custom_metadata_map
  nchw, half = (protos.names_in(noted, key) for key in (layouts.NCHW, float16.ENDS))
  of_function = {
    name: {
      end: _as_float32(layouts.as_in_function(specs, nchw), half) for end, specs in ends.items()
    }
    for name, ends in contents.signatures.items()
  }
  return verified(
    replace(contents, signatures=of_function),
    functools.partial(answers, opened),
    reference,
    params,
    Comparison(sizes, samples, inputs, rtol, atol),
    runtime=RUNTIME,
    versions={"onnxruntime": extra("onnxruntime").__version__},
    constraints=constraints,
    hostile=hostile,
  )
