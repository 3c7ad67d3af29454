"""Walks of tf2onnx through a graph that take more than linear time in the size of the model."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import patches
from .runtime import extra


@contextlib.contextmanager
def short() -> Iterator[None]:
  """Replaces those walks: a model of 40 small loops took a fifth longer."""
  graph = extra("tf2onnx.graph").Graph
  control_flow = extra("tf2onnx.onnx_opset.controlflow")
  inline = _without_parents(control_flow.inline_subgraph)
  with patches.replaced(
    ((graph, "extract_sub_graph_nodes", _needed_nodes), (control_flow, "inline_subgraph", inline))
  ):
    yield


def _needed_nodes(
  graph: Any,
  outputs: Iterable[str],
  input_checker: Callable[[Any], bool] | None = None,
  remove_unused_inputs: bool = True,
) -> list[Any]:
  """The nodes that outputs need, in the order of the graph.

  tf2onnx 1.17 begins a walk at each output, and visits the bodies of the loops anew in each.
  """
  wanted = list(outputs)
  if not remove_unused_inputs:
    wanted += [node.output[0] for node in graph.inputs]
  needed = set[Any]()
  while wanted:
    node = graph.get_node_by_output(wanted.pop(), search_in_parent_graphs=False)
    if node is None or node in needed or (input_checker and input_checker(node) is False):
      continue
    needed.add(node)
    wanted += node.input
    wanted += node.get_implicit_inputs()
  # a node may be in the graph's list twice
  return [node for node in dict.fromkeys(graph.get_nodes()) if node in needed]


def _without_parents(inline: Callable[..., Any]) -> Callable[..., Any]:
  """tf2onnx 1.17 copies a condition before it puts the nodes into another graph, and with it the
  graph around it: the whole model for each loop."""

  @functools.wraps(inline)
  def alone(parent: Any, graph: Any, *args: Any) -> Any:
    around, graph.parent_graph = graph.parent_graph, None
    try:
      return inline(parent, graph, *args)
    finally:
      graph.parent_graph = around

  return alone
