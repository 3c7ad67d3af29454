"""The same model gives the same bytes: tf2onnx works in an order that does not depend on the
process, and names what it adds by numbers that start anew in each model.

tf2onnx 1.17 holds nodes and names in sets, whose order depends on addresses and on the hash seed of
the process, and it counts the nodes that it adds from the start of the process. The order of the
nodes that outputs need is kept by `walks.short`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from . import patches, protos
from .runtime import extra

# tf2onnx names a node that it adds `<stem>__<number>`. Numbers from here on are ours to change; a
# parameter of the user's such as `layer__2` keeps its name.
_FIRST = 10**9
_NUMBER = re.compile(r"__(\d{10,})")


def _in_order_of_names(find: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
  @functools.wraps(find)
  def in_order(*args: Any, **kwargs: Any) -> list[Any]:
    return sorted(find(*args, **kwargs), key=lambda node: str(node.name))

  return in_order


def _sorted(find: Callable[..., list[str]]) -> Callable[..., list[str]]:
  @functools.wraps(find)
  def in_order(*args: Any, **kwargs: Any) -> list[str]:
    return sorted(find(*args, **kwargs))

  return in_order


@contextlib.contextmanager
def kept() -> Iterator[None]:
  """Lets tf2onnx work in the order of nodes and names, and number from `_FIRST` on."""
  graph, utils = extra("tf2onnx.graph"), extra("tf2onnx.utils")
  ordered = (
    (graph.Graph, "find_output_consumers", _in_order_of_names),
    (graph.Node, "get_implicit_inputs", _sorted),
  )
  utils.INTERNAL_NAME = max(utils.INTERNAL_NAME, _FIRST)
  with patches.replaced((owner, name, wrap(getattr(owner, name))) for owner, name, wrap in ordered):
    yield


def renumber(graph: Any) -> None:
  """Numbers what tf2onnx added to a GraphProto from 0, in the order of the nodes."""
  numbers: dict[str, int] = {}

  def number(match: re.Match[str]) -> str:
    return f"__{numbers.setdefault(match[1], len(numbers))}"

  def visit(inner: Any) -> None:
    for node in inner.node:
      node.name = _NUMBER.sub(number, node.name)
      node.input[:] = [_NUMBER.sub(number, name) for name in node.input]
      for body in protos.bodies(node):
        visit(body)
      node.output[:] = [_NUMBER.sub(number, name) for name in node.output]
    described = (*inner.input, *inner.output, *inner.value_info)
    for named in (inner, *inner.initializer, *described):
      named.name = _NUMBER.sub(number, named.name)
    for value in described:
      for dim in value.type.tensor_type.shape.dim:
        if dim.dim_param:
          dim.dim_param = _NUMBER.sub(number, dim.dim_param)

  visit(graph)
