"""Takes rows of a table before they are widened.

A table of bfloat16 or of 8-bit integers is larger in float32 than all else that a model computes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .parts import Parts, add_tensor, dtype_of


def taken(parts: Parts, graph: Any, op: Any, table: int) -> Any:
  """Makes a GATHER take its rows of a narrow table.

  Args:
    parts: the model.
    graph: of the op.
    op: a GATHER of a wide table.
    table: the tensor of the narrow one.

  Returns:
    the CAST behind it.
  """
  result, narrow = graph.tensors[op.outputs[0]], graph.tensors[table]
  dtype = dtype_of(narrow)
  assert dtype is not None
  rows = add_tensor(graph, result.name + b"/narrow", dtype, result.shape)
  graph.tensors[rows].shapeSignature = result.shapeSignature
  wide = parts.op("CAST", 1, [rows], int(op.outputs[0]))
  op.inputs = np.array([table, *op.inputs[1:]], np.int32)
  op.outputs = np.array([rows], np.int32)
  return wide


def take(parts: Parts, graph: Any) -> None:
  """Moves the ops of a graph that widen weights behind the ops that reshape them or take rows of
  them.

  The converter widens before these ops, and LiteRT would widen the table at each call.
  """
  widening = parts.widening(graph)
  moved: list[Any] = []
  for op in graph.operators:
    moved.append(op)
    source = widening.get(int(op.inputs[0])) if len(op.inputs) else None
    if source is None:
      continue
    table, kind = int(source.inputs[0]), parts.kind(op)
    if kind == "GATHER":
      moved.append(taken(parts, graph, op, table))
    elif kind == "RESHAPE" and (wide := _reshaped(parts, graph, op, table)):
      moved[-1] = widening[int(op.outputs[0])] = wide
  graph.operators = moved
  parts.drop_unread(graph)


def _reshaped(parts: Parts, graph: Any, op: Any, table: int) -> Any:
  """The op that widens the table in the shape that a RESHAPE gives it; None if it is not known."""
  narrow, shape = graph.tensors[table], graph.tensors[op.outputs[0]].shape
  dtype = dtype_of(narrow)
  if dtype is None or math.prod(map(int, shape)) != math.prod(map(int, narrow.shape)):
    return None
  constant = add_tensor(graph, narrow.name, dtype, shape, int(narrow.buffer))
  return parts.op("CAST", 1, [constant], int(op.outputs[0]))
