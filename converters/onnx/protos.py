"""ONNX's protocol buffers: the graphs inside of nodes, dtypes, and shape inference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .runtime import extra

# onnx.TensorProto has these numbers.
FLOAT, INT64, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 7, 9, 10, 11, 16
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
