"""The contents of a LiteRT file, what its delegates take, and the values of its tensors."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ..bundle import paths
from ..export.contents import Contents, Node, spec
from ..export.ends import in_parts, whole_specs
from ..export.verified import verified
from ..verify.plan import Comparison
from ..verify.report import Report
from . import flatbuffer, runtime

XNNPACK, GPU = "XNNPACK", "GPU delegate"
_NO_ARRAYS = ("string", "resource", "variant")
_IDENTIFIER = b"TFL3"  # of the schema, after four bytes
# What TensorFlow's analyzer says of a subgraph.
_NOT_ON_GPU = re.compile(r"GPU delegate compatibility issues at nodes ([\d, ]+)")


def inspect(path: str | os.PathLike[str]) -> Contents:
  """Reads the contents of a LiteRT file from any exporter.

  Args:
    path: the .tflite file.

  Returns:
    its ops, their dtypes and weights, its inputs and outputs.

  Raises:
    FileNotFoundError: there is no file.
    ImportError: ai-edge-litert is missing.
    ValueError: it is not a LiteRT file.

  Examples:
    >>> from jax2tf.converters import tflite
    >>> options = {"inputs": {"x": "f32[3]"}, "outputs": ["y"], "samples": 1}
    >>> made = tflite.save(lambda params, x: 2 * x, None, "inspected.tflite", **options)
    >>> tflite.inspect("inspected.tflite").as_json()["ops"]["MUL"]["taken"]
    {'XNNPACK': 1, 'GPU delegate': 1}
  """
  file = Path(os.fspath(paths.of(path)))
  data = file.read_bytes()
  if data[4:8] != _IDENTIFIER:
    raise ValueError(f"{file} is no LiteRT file: its identifier is {data[4:8]!r}")
  schema, model = flatbuffer.tools().schema_fb, flatbuffer.unpacked(data)
  weights, pairs = dict(_weights(model, schema, data)), flatbuffer.complex_names(file)
  return Contents(
    str(file),
    f"LiteRT, schema {model.version}",
    len(data),
    {
      _text(each.signatureKey): _ends(model, schema, each, pairs)
      for each in model.signatureDefs or ()
    },
    list(_nodes(model, schema, weights, _taken(data, model))),
    weights,
    delegates=(XNNPACK, GPU),
    notes={"written by": _text(model.description or b"")},
  )


def _text(raw: Any) -> str:
  return raw.decode() if isinstance(raw, bytes) else str(raw)


def _dtype(tensor: Any, schema: Any) -> str:
  names = {value: name.lower() for name, value in vars(schema.TensorType).items() if name.isupper()}
  return names.get(tensor.type, str(tensor.type))


def _weights(model: Any, schema: Any, file: bytes) -> Iterator[tuple[str, np.ndarray]]:
  for i, graph in enumerate(model.subgraphs):
    for k, tensor in enumerate(graph.tensors):
      buffer, dtype = model.buffers[tensor.buffer], _dtype(tensor, schema)
      # Large weights stand behind the flatbuffer.
      data = (
        np.frombuffer(file, np.uint8, buffer.size, buffer.offset) if buffer.size else buffer.data
      )
      if data is not None and len(data) and dtype != "string":
        yield _name(i, k, tensor), _values(data, dtype, tensor.shape)


def _name(subgraph: int, number: int, tensor: Any) -> str:
  """That of a tensor; many may have one name."""
  inside = f"subgraph {subgraph}: " if subgraph else ""
  return f"{inside}{_text(tensor.name)} ({number})"


def _values(data: Any, dtype: str, shape: Any) -> np.ndarray:
  """An int4 stays packed, two in a byte."""
  raw = np.asarray(data, np.uint8)
  try:
    return raw.view(np.dtype(dtype)).reshape(shape)
  except (TypeError, ValueError):
    return raw


def _ends(
  model: Any, schema: Any, signature: Any, pairs: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, str]]:
  tensors = model.subgraphs[signature.subgraphIndex].tensors

  def described(maps: Any) -> dict[str, str]:
    named = {_text(each.name): tensors[each.tensorIndex] for each in maps or ()}
    specs = {name: _spec(tensor, schema) for name, tensor in named.items()}
    return whole_specs(specs, pairs.get(_text(signature.signatureKey), ()))

  return {"inputs": described(signature.inputs), "outputs": described(signature.outputs)}


def _spec(tensor: Any, schema: Any) -> str:
  shape = tensor.shape if tensor.shapeSignature is None else tensor.shapeSignature
  dtype = _dtype(tensor, schema)
  sizes = [None if n < 0 else int(n) for n in (() if shape is None else shape)]
  return spec(object if dtype in _NO_ARRAYS else dtype, sizes)


def _nodes(
  model: Any,
  schema: Any,
  weights: Mapping[str, np.ndarray],
  taken: Mapping[str, set[tuple[int, int]]],
) -> Iterator[Node]:
  names = {value: name for name, value in vars(schema.BuiltinOperator).items() if name.isupper()}
  for i, graph in enumerate(model.subgraphs):
    for k, op in enumerate(graph.operators):
      code = model.operatorCodes[op.opcodeIndex]
      number = max(code.builtinCode, code.deprecatedBuiltinCode)
      kind = _text(code.customCode) if code.customCode else names.get(number, str(number))
      operands = [_name(i, n, graph.tensors[n]) for n in op.inputs if n >= 0]
      results = [graph.tensors[n] for n in op.outputs]
      yield Node(
        _text(results[0].name) if results else kind,
        kind,
        _dtype(results[0], schema) if results else "",
        tuple(name for name in operands if name in weights),
        tuple(delegate for delegate, nodes in taken.items() if (i, k) in nodes),
      )


def _taken(data: bytes, model: Any) -> dict[str, set[tuple[int, int]]]:
  """{delegate: the (subgraph, node) that it takes}: of XNNPACK, what it takes here from the main
  subgraph; of the GPU delegate, what TensorFlow's list has."""
  return {XNNPACK: {(0, k) for k in _by_xnnpack(data)}, GPU: set(_on_gpu(data, model))}


def _by_xnnpack(data: bytes) -> set[int]:
  """The nodes between the operands and the results of what LiteRT has delegated."""
  with runtime.quiet():
    interpreter = runtime.extra("ai_edge_litert.interpreter").Interpreter(model_content=data)
    interpreter.allocate_tensors()
    ops = interpreter._get_ops_details()  # no public function says what is delegated
  producers = {n: op for op in ops if op["op_name"] != "DELEGATE" for n in op["outputs"]}
  inside: set[int] = set()
  for delegate in (op for op in ops if op["op_name"] == "DELEGATE"):
    ends, waiting = set(delegate["inputs"]), list(delegate["outputs"])
    while waiting:
      op = producers.get(waiting.pop())
      if op is not None and op["index"] not in inside:
        inside.add(int(op["index"]))
        waiting.extend(n for n in op["inputs"] if n not in ends)
  return inside


def _on_gpu(data: bytes, model: Any) -> Iterator[tuple[int, int]]:
  said = io.StringIO()
  with contextlib.redirect_stdout(said):
    tf.lite.experimental.Analyzer.analyze(model_content=data, gpu_compatibility=True)
  refused = {
    int(i): set(map(int, numbers.split(",")))
    for i, numbers in re.findall(r"Subgraph#(\d+) has " + _NOT_ON_GPU.pattern, said.getvalue())
  }
  for i, graph in enumerate(model.subgraphs):
    yield from ((i, k) for k in range(len(graph.operators)) if k not in refused.get(i, ()))


def values_inside(
  path: str | os.PathLike[str], inputs: Mapping[str, np.ndarray], signature: str | None = None
) -> dict[str, np.ndarray]:
  """{name of a tensor: its value} of one call without delegates, in order of execution, and the
  outputs under their names; without what loops and branches compute inside.

  Args:
    path: the .tflite file.
    inputs: {input: array}.
    signature: may be left out if there is one.
  """
  of = runtime.extra("ai_edge_litert.interpreter")
  resolver = of.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
  with runtime.quiet():
    interpreter = of.Interpreter(
      str(path), experimental_op_resolver_type=resolver, experimental_preserve_all_tensors=True
    )
    runner = interpreter.get_signature_runner(signature)
    outputs = runner(**{name: in_parts(x) for name, x in inputs.items()})
    found: dict[str, np.ndarray] = {}
    tensors = {each["index"]: each["name"] for each in interpreter.get_tensor_details()}
    for op in interpreter._get_ops_details():  # as above
      for n in op["outputs"]:
        with contextlib.suppress(ValueError):  # a tensor without a value
          found.setdefault(tensors[n], interpreter.get_tensor(n))
  return found | outputs


def verify(
  path: str | os.PathLike[str],
  reference: Any,
  *,
  params: Any = None,
  samples: int = 3,
  rtol: float | None = None,
  atol: float | None = None,
  signatures: Sequence[str] | None = None,
  inputs: Mapping[str, Any] | None = None,
  hostile: bool = False,
) -> Report:
  """Compares a LiteRT file, from any exporter, with a JAX function.

  Args:
    path: the .tflite file.
    reference: the JAX function `fun(params, *inputs)`, of the inputs of the file in its order, or
      {signature: function}.
    params: the parameters. Without them the reference is `fun(*inputs)`.
    samples, rtol, atol, signatures, inputs, hostile: as in `jax2tf.converters.verify.verify`.

  Returns:
    the report, even if outputs differ.

  Raises:
    FileNotFoundError, ImportError, ValueError: as `inspect`.
    ValueError: the function does not take these inputs, or has other results.

  Examples:
    >>> from jax2tf.converters import tflite
    >>> options = {"inputs": {"x": "f32[3]"}, "outputs": ["y"], "samples": 1}
    >>> made = tflite.save(lambda params, x: 2 * x, None, "verified.tflite", **options)
    >>> tflite.verify("verified.tflite", lambda x: x + x, samples=1).ok
    True
  """
  contents = inspect(path)
  return verified(
    contents,
    functools.partial(runtime.answers, Path(contents.path)),
    reference,
    params,
    Comparison(None, samples, inputs, rtol, atol),
    runtime=runtime.RUNTIME,
    versions={"ai-edge-litert": runtime.extra("ai_edge_litert").__version__},
    signatures=signatures,
    hostile=hostile,
  )
