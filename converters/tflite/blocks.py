"""Computes products with large matrices that are widened at each call in blocks of their rows.

LiteRT 2.3 has the whole matrix in float32 and a packed copy of it: for an embedding of 262,144
tokens in bfloat16, which is also the last layer, four times its bytes. A block stays in the caches
of the processor: a decoder of 90M takes 0.7 of the time for a token.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from . import flatbuffer
from .parts import Parts, add_tensor, dtype_of, reads

_LARGE = 2**23  # bytes of a widened matrix; larger ones become blocks up to this
_ROWS = 64  # a block has a multiple of these, so that it is aligned in the file


def split(parts: Parts, graph: Any) -> None:
  """Replaces the products of a graph with large widened matrices. The file has each matrix once:
  the blocks are bytes of it."""
  widening, counts = parts.widening(graph), reads(graph)
  operators: list[Any] = []
  for op in graph.operators:
    operators.append(op)
    if parts.kind(op) != "FULLY_CONNECTED":
      continue
    matrix = int(op.inputs[1])
    has_bias = any(n >= 0 for n in op.inputs[2:])
    if matrix in widening and counts[matrix] == 1 and not has_bias:
      operators[-1:] = _blocks(parts, graph, op, widening[matrix])
  graph.operators = operators
  parts.drop_unread(graph)


def _blocks(parts: Parts, graph: Any, product: Any, widen: Any) -> list[Any]:
  """The ops in place of a FULLY_CONNECTED with the matrix that `widen` makes."""
  narrow, wide = graph.tensors[widen.inputs[0]], graph.tensors[widen.outputs[0]]
  result = graph.tensors[product.outputs[0]]
  dtype, computed = dtype_of(narrow), dtype_of(wide)
  rows, columns = (int(n) for n in wide.shape)
  assert dtype is not None and computed is not None
  count = math.ceil(rows * columns * computed.itemsize / _LARGE)
  step = math.ceil(rows / count / _ROWS) * _ROWS
  if step >= rows:
    return [product]
  made, results = [], []
  for start in range(0, rows, step):
    size = min(step, rows - start)
    buffer = parts.rows(int(narrow.buffer), (rows, columns), start, start + size)
    block = add_tensor(graph, narrow.name, dtype, (size, columns), buffer)
    widened = add_tensor(graph, wide.name, computed, (size, columns))
    results.append(_like(graph, result, size))
    multiply = copy.copy(product)
    multiply.inputs = np.array([product.inputs[0], widened, *product.inputs[2:]], np.int32)
    multiply.outputs = np.array([results[-1]], np.int32)
    made += [parts.op("CAST", 1, [block], widened), multiply]
  return [*made, _joined(parts, results, int(product.outputs[0]), len(result.shape) - 1)]


def _like(graph: Any, result: Any, size: int) -> int:
  """The number of a new tensor as a result, with this size along the last axis."""
  dtype = dtype_of(result)
  assert dtype is not None
  number = add_tensor(graph, result.name, dtype, [*result.shape[:-1], size])
  if result.shapeSignature is not None:
    graph.tensors[number].shapeSignature = np.array([*result.shapeSignature[:-1], size], np.int32)
  return number


def _joined(parts: Parts, results: list[int], output: int, axis: int) -> Any:
  """The CONCATENATION of tensors."""
  schema = flatbuffer.tools().schema_fb
  join = parts.op("CONCATENATION", 1, results, output)
  join.builtinOptionsType = schema.BuiltinOptions.ConcatenationOptions
  join.builtinOptions = schema.ConcatenationOptionsT()
  join.builtinOptions.axis = axis
  return join
