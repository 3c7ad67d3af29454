"""Copies of the arguments that the body of a loop returns at other positions.

LiteRT 2.3 has one array for each argument of a body. After each step it copies the results to these
arrays, one after another, so a result that is itself an argument may be overwritten before it is
copied: `(a, b) -> (b, a)` loses an array. TensorFlow's converter removes all ops of a graph that
only copy, so the copies are added to its file.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import flatbuffer
from .parts import Parts, dtype_of

# Copies arrays of all dtypes, ranks and unknown sizes; XNNPACK does not take it.
_COPY = "BITCAST"


def with_copies(contents: bytes) -> bytes:
  """The .tflite model in which each step of a loop keeps what it exchanges; the same bytes if no
  loop exchanges anything."""
  if not _has_loops(contents):
    return contents
  parts = Parts.of(contents)
  graphs = parts.model.subgraphs
  loops = [op for graph in graphs for op in graph.operators if parts.kind(op) == "WHILE"]
  bodies = {int(op.builtinOptions.bodySubgraphIndex) for op in loops}
  added = [_add_copies(parts, graphs[number]) for number in sorted(bodies)]
  return flatbuffer.packed(parts.model, parts.size) if any(added) else contents


def _has_loops(contents: bytes) -> bool:
  """Whether a model has a WHILE; it is not unpacked for that."""
  tools = flatbuffer.tools()
  model = tools.schema_fb.Model.GetRootAs(contents, 0)
  codes = (model.OperatorCodes(i) for i in range(model.OperatorCodesLength()))
  return any(code.BuiltinCode() == tools.BuiltinOperator.WHILE for code in codes)


def _add_copies(parts: Parts, body: Any) -> bool:
  """Whether the body of a loop got copies."""
  arguments = {int(number): place for place, number in enumerate(body.inputs)}
  results = [int(number) for number in body.outputs]
  copies: dict[int, int] = {}
  for place, number in enumerate(results):
    if not _is_overwritten(body, arguments, place):
      continue
    if number not in copies:
      copies[number] = _copied_tensor(body, number)
      body.operators.append(parts.op(_COPY, 1, [number], copies[number]))
    results[place] = copies[number]
  body.outputs = np.array(results, np.int32)
  return bool(copies)


def _is_overwritten(body: Any, arguments: Mapping[int, int], place: int) -> bool:
  """Whether the result at a place is an argument that LiteRT may overwrite before it copies it."""
  number = int(body.outputs[place])
  other = arguments.get(number, place)
  if int(body.outputs[other]) == number:
    return False  # no step changes this argument
  # The arrays of all arguments are resized, and may move, before the first is copied.
  return dtype_of(body.tensors[number]) is not None and (
    other < place or _may_move(body.tensors[number])
  )


def _may_move(tensor: Any) -> bool:
  """Whether its sizes are not in the file, so that the next step may have others."""
  signature = tensor.shapeSignature
  return signature is not None and bool((np.asarray(signature) < 0).any())


def _copied_tensor(body: Any, number: int) -> int:
  """The number of a new tensor like another one."""
  tensor = copy.copy(body.tensors[number])
  tensor.name += b"/copy"
  body.tensors.append(tensor)
  return len(body.tensors) - 1
