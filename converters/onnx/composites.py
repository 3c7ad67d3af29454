"""Nodes of ONNX that stand for several ops of TensorFlow, which has none like them.

In the TensorFlow graph for tf2onnx an IdentityN stands for such a node: it takes operands of any
dtype and shape, its first result is like its first operand, and the replay leaves no other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..export import replay

STAND_IN = "IdentityN"
QUANTIZE = "QuantizeLinear"  # with DequantizeLinear behind it
_NODE, _ATTRIBUTE = "_node", "_of_onnx_"  # attributes of a stand-in begin with "_"


def composite(
  node: str, operands: Sequence[tf.Tensor], **attributes: float | Sequence[int]
) -> tf.Tensor:
  """The result of a node of ONNX, which has the shape and dtype of the first operand."""
  dtypes = [x.dtype for x in operands]
  types = tf.compat.v1.AttrValue.ListValue(type=[dtype.as_datatype_enum for dtype in dtypes])
  attrs = {"T": tf.compat.v1.AttrValue(list=types), _NODE: tf.compat.v1.AttrValue(s=node.encode())}
  for name, value in attributes.items():
    attrs[f"{_ATTRIBUTE}{name}"] = _attribute(value)
  op = replay.graph().create_op(STAND_IN, list(operands), dtypes, attrs=attrs, name=node)
  return op.outputs[0]


def _attribute(value: float | Sequence[int]) -> Any:
  if isinstance(value, int):
    return tf.compat.v1.AttrValue(i=value)
  if isinstance(value, float):
    return tf.compat.v1.AttrValue(f=value)
  return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=value))


def _node(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """The node for which the IdentityN stands."""
  del name, args
  attributes = {
    key.removeprefix(_ATTRIBUTE): node.get_attr_value(key)
    for key in node.attr
    if key.startswith(_ATTRIBUTE)
  }
  kind, inputs, result = node.get_attr_str(_NODE), list(node.input), node.output[0]
  shape, dtype = node.output_shapes[0], node.output_dtypes[0]
  graph.remove_node(node.name)
  if kind == QUANTIZE:
    zero = graph.get_dtype(inputs[2])
    quantized = graph.make_node(kind, inputs, dtypes=[zero], shapes=[shape]).output[0]
    kind, inputs = "DequantizeLinear", [quantized, *inputs[1:]]
  graph.make_node(
    kind, inputs, attr=attributes, name=node.name, outputs=[result], shapes=[shape], dtypes=[dtype]
  )


HANDLERS: dict[str, tuple[Any, list[str]]] = {STAND_IN: (_node, [])}
