"""The opset of the file that is being written, and the nodes that only newer opsets have.

tf2onnx 1.17 writes opset 18. Its file gets the number of a newer opset, whose nodes our handlers
add. onnx's version converter would refuse these nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from . import protos

OLDEST = 18  # the newest opset of tf2onnx 1.17
# {node: the first opset that has it}
SINCE = {
  "Gelu": 20,
  "Attention": 23,
  "RMSNormalization": 23,
  "RotaryEmbedding": 23,
  "BitCast": 26,
  "CumProd": 26,
}
# Nodes of opset 18 that mean something else in {the first opset}.
CHANGED = {"DFT": 20, "GridSample": 20, "GroupNormalization": 21}

_ANY = 99  # beyond all opsets

_opset: ContextVar[int] = ContextVar("opset", default=OLDEST)


@contextlib.contextmanager
def writing(opset: int) -> Iterator[None]:
  """Replacements and handlers inside may use the nodes of this opset."""
  token = _opset.set(opset)
  try:
    yield
  finally:
    _opset.reset(token)


def has(node: str) -> bool:
  """Whether the file may have a node of this type."""
  return _opset.get() >= SINCE[node]


def newest_without_change(graph: Any) -> int:
  """The newest opset in which the nodes of a GraphProto of tf2onnx mean the same."""
  nodes = protos.nodes(graph)
  return min((CHANGED[node.op_type] - 1 for node in nodes if node.op_type in CHANGED), default=_ANY)
