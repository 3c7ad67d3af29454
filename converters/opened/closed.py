"""Finds what is closed in a SavedModel: ops that hold a compiled program, or that only XLA runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..bundle import graphs

# They only say where an array is; outside of XLA they are the array.
PLACES = ("XlaSharding", "XlaSpmdFullToShardShape", "XlaSpmdShardToFullShape")


@dataclass(frozen=True)
class Closed:
  """A node to open.

  Attributes:
    place: the function of the library that it is in; empty for the graph itself.
    node: its NodeDef, in the graph.
  """

  place: str
  node: Any


def nodes(graph: Any) -> list[Closed]:
  """The closed nodes of a GraphDef: of the graph, and of all functions, which loops, branches,
  signatures and gradients name."""
  return [each for each in _all(graph) if graphs.is_closed(each.node.op)]


def program(node: Any) -> str:
  """The name of what a node computes: equal for nodes that hold the same module."""
  holds = hashlib.sha256(node.attr["module"].s)
  for key in ("platforms", "version", "Tin", "Tout"):
    holds.update(node.attr[key].SerializeToString(deterministic=True))
  return holds.hexdigest()


def _all(graph: Any) -> Iterator[Closed]:
  for node in graph.node:
    yield Closed("", node)
  for function in graph.library.function:
    for node in function.node_def:
      yield Closed(function.signature.name, node)
