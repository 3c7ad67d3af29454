"""Keeps the place of ops that widen weights when the runtime divides the graph.

LiteRT gives parts of a graph to XNNPACK, and runs each op in the earliest part that has its
operands. An op on a constant has them from the start, so all wide weights would be there at once:
4 GB for 2 GB of bfloat16 (LiteRT 2.3). A control dependency on the op before it prevents that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import flatbuffer
from .parts import Parts

_KEY = "model_control_dependencies"
_VERSION = 1


def keep(parts: Parts) -> None:
  """Adds the control dependencies of a model's ops that widen large weights, if there are any."""
  edges = [_edges(parts, graph) for graph in parts.model.subgraphs]
  if not any(edges):
    return
  tools = flatbuffer.tools()
  buffer = parts.add_inside(np.frombuffer(bytes(_serialized(edges)), np.uint8))
  entry = tools.schema_fb.MetadataT(name=_KEY, buffer=buffer)
  parts.model.metadata = [*(parts.model.metadata or ()), entry]


def _edges(parts: Parts, graph: Any) -> list[tuple[int, int]]:
  """(op, op that runs after it), by their places in the graph."""
  places = enumerate(graph.operators)
  return [(i - 1, i) for i, op in places if i > 0 and parts.widens(graph, op)]


def _serialized(edges: Sequence[Sequence[tuple[int, int]]]) -> Iterator[int]:
  """As LiteRT reads it (metadata_util.cc of its converter): the version, then lists with their
  lengths, as varints; places are zigzag-encoded."""
  yield from _varint(_VERSION)
  yield from _varint(len(edges))
  for of_graph in edges:
    yield from _varint(len(of_graph))
    for pair in of_graph:
      for place in pair:
        yield from _varint(2 * place)


def _varint(number: int) -> Iterator[int]:
  while number > 127:
    yield number & 127 | 128
    number >>= 7
  yield number
