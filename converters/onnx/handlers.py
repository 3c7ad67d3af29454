"""Handlers for tf2onnx (`custom_op_handlers`), where its own lose digits by casts, or mishandle
NaN.

A handler changes the node in its graph. The name beside the handler is that of the ONNX op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import opsets
from .bfloat16 import ROUNDING
from .narrow import ROUNDED
from .protos import BFLOAT16, BOOL, DOUBLE, FLOAT, FLOAT16, INT64
from .runtime import extra

_FLOATS = (FLOAT, FLOAT16, DOUBLE)
_END = 2**31 - 1  # the end of a slice
_BACKWARDS = "jax2tf_backwards"  # attribute of a list write whose rows arrive from last to first

Handler = Callable[[Any, Any, str, Sequence[Any]], None]


def as_it_is(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """Keeps operands and attributes, which are those of ONNX."""


def _remainder(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """Mod with the semantics of C's fmod."""
  node.set_attr("fmod", 1)


def _top(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """ONNX's TopK takes the count as i64[1], and returns int64 positions."""
  dtype = graph.get_dtype(node.output[1])
  count = graph.make_node("Cast", [node.input[1]], attr={"to": INT64})
  axes = graph.make_const(f"{name}__axes", np.array([0], "int64"))
  graph.replace_input(
    node,
    node.input[1],
    graph.make_node("Unsqueeze", [count.output[0], axes.output[0]]).output[0],
    1,
  )
  graph.set_dtype(node.output[1], INT64)
  if dtype != INT64:
    shape = graph.get_shape(node.output[1])
    cast = graph.insert_new_node_on_output(
      "Cast", node.output[1], name=f"{name}__positions", to=dtype
    )
    graph.set_dtype(cast.output[0], dtype)
    graph.set_shape(cast.output[0], shape)


def _gather(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """GatherElements of elements along the last axis, of which tf2onnx makes a GatherND; other
  gathers are tf2onnx's own."""
  rank, axis = graph.get_rank(node.input[0]), node.inputs[2]
  last = axis.get_tensor_value() if axis.is_const() else None
  if (
    rank is None
    or rank == 1
    or not last == rank - 1 == node.get_attr_value("batch_dims", 0)
    or graph.get_rank(node.input[1]) != rank
  ):
    _of_tf2onnx("tensor").GatherV2.version_12(graph, node)
    return
  keep(node)
  node.type = "GatherElements"
  node.set_attr("axis", last)
  graph.remove_input(node, node.input[2], 2)


def _slice(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """Slices the axes that do not stay whole. tf2onnx slices all, and adds the largest int32 to a
  start that is no constant, for a slice to the end."""
  begin, size = node.inputs[1:]
  if begin.is_const() or not size.is_const():
    _of_tf2onnx("tensor").Slice.version_11(graph, node)
    return
  sizes = np.array(size.get_tensor_value())
  starts, axes = node.input[1], np.arange(sizes.size)
  # one part for each axis, as tf2onnx makes it of a Pack
  if begin.type == "Concat" and len(begin.inputs) == sizes.size:
    starts_late = np.array([not _is_zero(part) for part in begin.inputs])
    known = np.array(graph.get_shape(node.input[0]) or -1)
    ends_early = (sizes != -1) & (sizes != known)
    axes = axes[starts_late | ends_early]
    parts = [begin.input[axis] for axis in axes]
    starts = graph.make_node("Concat", parts, attr={"axis": 0}).output[0] if parts[1:] else parts[0]
  starts = graph.make_node("Cast", [starts], attr={"to": INT64}).output[0]
  ends = graph.make_node("Add", [starts, _const(graph, name, "sizes", sizes[axes])]).output[0]
  if -1 in sizes[axes]:
    to_the_end = graph.make_const(f"{name}__to_the_end", sizes[axes] == -1).output[0]
    end = _const(graph, name, "end", _END)
    ends = graph.make_node("Where", [to_the_end, end, ends]).output[0]
  _becomes(graph, node, "Slice", [node.input[0], starts, ends, _const(graph, name, "axes", axes)])


def _is_zero(node: Any) -> bool:
  """Whether a node is a constant of zeros, which tf2onnx folds later."""
  node = node.inputs[0] if node.type == "Unsqueeze" else node
  return bool(node.is_const()) and not np.any(node.get_tensor_value(as_list=False))


def _reverse(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """A Slice with steps of -1, of which tf2onnx makes ReverseSequence ops between transposes."""
  axes = np.array(node.inputs[1].get_tensor_value(as_list=False))
  _becomes(graph, node, "Slice", [node.input[0], *_backwards(graph, name, axes)])


def _backwards(graph: Any, name: str, axes: np.ndarray) -> list[str]:
  """The operands of a Slice, after the tensor, that reverses these axes."""
  starts, ends = np.full(axes.shape, -1), np.full(axes.shape, -_END)
  operands = {"starts": starts, "ends": ends, "axes": axes, "steps": np.full(axes.shape, -1)}
  return [_const(graph, name, label, value) for label, value in operands.items()]


def _unequal(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """Xor of bools, IsNaN of a float and itself; tf2onnx's own otherwise."""
  x, y = node.input
  dtype = graph.get_dtype(x)
  if dtype == BOOL:
    _becomes(graph, node, "Xor", [x, y])
  elif x == y and dtype in _FLOATS:
    _becomes(graph, node, "IsNaN", [x])
  else:
    _of_tf2onnx("logical").Equal.version_11(graph, node)


def _of_tf2onnx(module: str) -> Any:
  """tf2onnx's own handlers, by type of op and opset."""
  return extra(f"tf2onnx.onnx_opset.{module}")


def _becomes(graph: Any, node: Any, op: str, inputs: Sequence[str], **attributes: Any) -> None:
  """Puts another op in the place of a node, whose results it has."""
  outputs, shapes, dtypes = list(node.output), node.output_shapes, node.output_dtypes
  graph.remove_node(node.name)
  graph.make_node(
    op, list(inputs), attr=attributes, name=node.name, outputs=outputs, shapes=shapes, dtypes=dtypes
  )


def _segment_product(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """data f32[n,...], segments i32[n], count i32[] -> f32[count,...]; segment -1 goes to an extra
  last row, which is cut off."""
  data, segments, count = node.input
  first, last, axis = (
    _const(graph, name, label, [value])
    for label, value in (("first", 0), ("last", -1), ("axis", 0))
  )

  def made(op: str, inputs: list[str], **attributes: Any) -> str:
    return str(graph.make_node(op, inputs, attr=attributes).output[0])

  rows = made(
    "Add",
    [made("Unsqueeze", [made("Cast", [count], to=INT64), axis]), _const(graph, name, "one", [1])],
  )
  row = made(
    "Slice",
    [
      made("Shape", [data]),
      _const(graph, name, "second", [1]),
      _const(graph, name, "end", [_END]),
      axis,
    ],
  )
  unit = made("Cast", [_const(graph, name, "unit", 1)], to=graph.get_dtype(node.output[0]))
  ones = made("Expand", [unit, made("Concat", [rows, row], axis=0)])
  indices = made(
    "Unsqueeze", [made("Cast", [segments], to=INT64), _const(graph, name, "inner", [1])]
  )
  products = made("ScatterND", [ones, indices, data], reduction="mul")
  _becomes(graph, node, "Slice", [products, first, last, axis])


def _write(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """List writes of a loop become a scan output of Loop: one row for each iteration, in order,
  wherever the row is written."""
  index = _source(node, 1)
  if index.is_graph_input():
    return
  if not (index.type == "Sub" and _source(index, 1).is_graph_input()):
    raise ValueError(
      "a list is written at an index other than the loop counter, or the counter from the end"
    )
  node.set_attr(_BACKWARDS, 1)


def _rounding(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """f32[...] -> f32[...], rounded to bfloat16, or to a float8."""
  to = ROUNDED.get(node.get_attr_value("num_bits"), BFLOAT16)
  rounded = graph.make_node(
    "Cast", [node.input[0]], attr={"to": to}, shapes=node.output_shapes, dtypes=[to]
  )
  _becomes(graph, node, "Cast", rounded.output, to=graph.get_dtype(node.output[0]))


def _source(node: Any, i: int) -> Any:
  """The node that computes an input."""
  source = node.inputs[i]
  while source.type == "Identity":
    source = source.inputs[0]
  return source


def _loop(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """tf2onnx's handler of loops. Reverses rows that the loop wrote from last to first: Loop returns
  them in order of iteration."""
  _of_tf2onnx("controlflow").While.version_7(graph, node)
  loop = graph.get_node_by_name(f"{name}_loop")
  body = loop.get_body_graphs()["body"]
  for rows, row in zip(list(loop.output), body.outputs[1:], strict=True):
    write = body.get_node_by_output(row)
    if write is None or _BACKWARDS not in write.attr:
      continue
    del write.attr[_BACKWARDS]
    shape, dtype = graph.get_shape(rows), graph.get_dtype(rows)
    backwards = _backwards(graph, f"{name}__{row}", np.array([0]))
    turned = graph.insert_new_node_on_output(
      "Slice", rows, name=f"{name}__{row}__turned", inputs=[rows, *backwards]
    )
    graph.set_shape(turned.output[0], shape)
    graph.set_dtype(turned.output[0], dtype)


def _stack(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """The scan output of a Loop, possibly reversed."""
  rows, producer = node.input[0], node.inputs[0]
  while producer.type == "Identity":
    rows, producer = producer.input[0], producer.inputs[0]
  if not (producer.inputs[0] if producer.type == "Slice" else producer).is_while():
    raise ValueError("a list that no loop has written")
  graph.remove_node(name)
  graph.replace_all_inputs(node.output[0], rows)


def _const(graph: Any, name: str, label: str, value: Any) -> str:
  return str(graph.make_const(f"{name}__{label}", np.array(value, "int64")).output[0])


def _bits(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """BitCast to the dtype of the result."""
  keep(node)
  node.set_attr("to", graph.get_dtype(node.output[0]))


def _products(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """CumProd, whose operands and attributes are those of TensorFlow."""
  keep(node, "exclusive", "reverse")


def keep(node: Any, *attributes: str) -> None:
  """Removes all other attributes, which are TensorFlow's."""
  for attribute in list(node.attr):
    if attribute not in attributes:
      del node.attr[attribute]


def of_newer_opsets() -> dict[str, tuple[Handler, list[str]]]:
  """Handlers to nodes that the opset of the file has, and that of tf2onnx has not."""
  newer: dict[str, tuple[Handler, list[str]]] = {
    "Bitcast": (_bits, ["BitCast"]),
    "Cumprod": (_products, ["CumProd"]),
  }
  return {op: handler for op, handler in newer.items() if opsets.has(handler[1][0])}


HANDLERS: dict[str, tuple[Handler, list[str]]] = {
  "SelectV2": (as_it_is, ["Where"]),  # tf2onnx computes c x + (1 - c) y
  "Log": (as_it_is, ["Log"]),  # tf2onnx computes float64 in float32
  "Less": (as_it_is, ["Less"]),  # tf2onnx compares integers in float32
  "Greater": (as_it_is, ["Greater"]),
  "TruncateMod": (_remainder, ["Mod"]),
  ROUNDING: (_rounding, []),
  "TensorListSetItem": (_write, []),
  "TensorListStack": (_stack, []),
  **dict.fromkeys(("While", "StatelessWhile"), (_loop, [])),
  "UnsortedSegmentProd": (_segment_product, []),  # tf2onnx takes -1 for the last row
  "GatherV2": (_gather, []),
  "NotEqual": (_unequal, []),
  "ReverseV2": (_reverse, []),
  "Slice": (_slice, []),
  "TopKV2": (_top, ["TopK"]),  # tf2onnx sorts integers as float32
}
