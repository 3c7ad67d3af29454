"""Rows that a Gather takes at constant indices, in a finished graph of tf2onnx."""

from __future__ import annotations

from typing import Any

import numpy as np


def slice_rows(node: Any) -> None:
  """Makes a Slice of a Gather of the rows i, i + 1, ..., which are all inside. ONNX Runtime 1.32
  takes 5 times as long for a Gather of single elements.

  Args:
    node: a node of tf2onnx.
  """
  graph = node.graph
  axis, shape = node.get_attr_value("axis", 0), graph.get_shape(node.input[0])
  if not shape or not node.inputs[1].is_const():
    return
  axis %= len(shape)
  taken = np.asarray(node.inputs[1].get_tensor_value(as_list=False))
  if taken.ndim != 1 or not taken.size:
    return
  rows = range(int(taken[0]), int(taken[0]) + taken.size)
  if rows.start < 0 or rows.stop > shape[axis] or not np.array_equal(taken, rows):
    return
  bounds = {"starts": rows.start, "ends": rows.stop, "axes": axis}
  parts = [
    graph.make_const(f"{node.name}__{label}", np.array([value], np.int64)).output[0]
    for label, value in bounds.items()
  ]
  outputs, shapes, dtypes = list(node.output), node.output_shapes, node.output_dtypes
  operand = node.input[0]
  graph.remove_node(node.name)
  graph.make_node(
    "Slice", [operand, *parts], name=node.name, outputs=outputs, shapes=shapes, dtypes=dtypes
  )
