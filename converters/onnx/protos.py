"""ONNX's protocol buffers: metadata, the graphs inside of nodes, names, dtypes, and shape
inference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .runtime import extra

# onnx.TensorProto has these numbers.
FLOAT, INT32, INT64, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 6, 7, 9, 10, 11, 16
FLOAT8E4M3FN, FLOAT8E5M2 = 17, 19
_SMALL = 1024  # elements of a constant that shape inference reads


def nodes(graph: Any) -> Iterator[Any]:
  """The nodes of a GraphProto, including those of loops and branches."""
  for node in graph.node:
    yield node
    for body in bodies(node):
      yield from nodes(body)


def bodies(node: Any) -> Iterator[Any]:
  """The GraphProtos of a loop or branch."""
  for attribute in node.attribute:
    yield from attribute.graphs
    if attribute.HasField("g"):
      yield attribute.g


def metadata(model: Any) -> dict[str, str]:
  """The metadata of a ModelProto."""
  return {entry.key: entry.value for entry in model.metadata_props}


def names_in(noted: Mapping[str, str], key: str) -> list[str]:
  """The inputs and outputs that an entry of the metadata lists."""
  return noted.get(key, "").split()


def reads(node: Any) -> Iterator[str]:
  """The values that a node reads, also in loops and branches, each once."""
  names = [name for name in node.input if name]
  for body in bodies(node):
    names += _captures(body)
  yield from dict.fromkeys(names)


def _captures(body: Any) -> Iterator[str]:
  """The values from outside that a loop or branch reads."""
  inside = {value.name for value in (*body.input, *body.initializer)}
  for node in body.node:
    yield from (name for name in reads(node) if name not in inside)
    inside.update(node.output)
  yield from (value.name for value in body.output if value.name not in inside)


def rename_values(node: Any, names: Mapping[str, str]) -> None:
  """Renames the values that a node reads and makes, also in loops and branches, whose own values
  keep their names."""
  for values in (node.input, node.output):
    values[:] = [names.get(name, name) for name in values]
  for body in bodies(node):
    own = {value.name for value in (*body.input, *body.initializer)}
    own.update(name for each in body.node for name in each.output)
    from_outside = {name: new for name, new in names.items() if name not in own}
    for each in body.node:
      rename_values(each, from_outside)
    for value in body.output:
      value.name = from_outside.get(value.name, value.name)


def inferred(model: Any) -> Any:
  """The graph of a model with the inferred dtypes and shapes. Large constants of the main graph are
  inputs, so that shape inference does not copy them."""
  return extra("onnx").shape_inference.infer_shapes(_without_weights(model)).graph


def _without_weights(model: Any) -> Any:
  """A copy in which large constants of the main graph are inputs."""
  onnx = extra("onnx")
  light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
  graph, whole = light.graph, model.graph
  graph.node.extend(whole.node)
  graph.input.extend(whole.input)
  graph.output.extend(whole.output)
  for tensor in whole.initializer:
    if math.prod(tensor.dims) <= _SMALL:  # such as the shape of a Reshape
      graph.initializer.append(tensor)
    else:
      graph.input.append(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
      )
  return light
