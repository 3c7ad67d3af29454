"""Deduplicates constants in a saved file: TensorFlow creates a node for each shape of a Reshape and
each axis of a Sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

# bytes of a node; larger ones are parameters, which are rarely equal and expensive to compare
_SMALL = 256


def share_constants(definition: Any, known: Iterable[str]) -> None:
  """Merges equal small constants, except those of `known` names, in each function of a GraphDef
  that contains one of ours."""
  functions = definition.library.function
  if any("jax2tf" in node.name for function in functions for node in function.node_def):
    for function in functions:
      _share(function, {*known, *_named(function)})


def _share(function: Any, named: set[str]) -> None:
  first, instead = dict[Any, str](), dict[str, str]()
  for node in function.node_def:
    if node.op == "Const" and node.name not in named and node.ByteSize() < _SMALL:
      value = node.attr["value"].SerializeToString(deterministic=True)
      name = first.setdefault((value, node.device, *node.input), node.name)
      if name != node.name:
        instead[f"{node.name}:output:0"] = f"{name}:output:0"
  gone = {name.partition(":")[0] for name in instead}
  for i in reversed(range(len(function.node_def))):
    node = function.node_def[i]
    if node.name in gone:
      del function.node_def[i]
    elif not instead.keys().isdisjoint(node.input):
      node.input[:] = [instead.get(name, name) for name in node.input]


def _named(function: Any) -> Iterator[str]:
  """The nodes that are named otherwise than as an operand."""
  for value in (*function.ret.values(), *function.control_ret.values()):
    yield value.partition(":")[0]
  for node in function.node_def:
    yield from (name.removeprefix("^") for name in node.input if name.startswith("^"))
    if "_class" in node.attr:
      yield from (name.decode().removeprefix("loc:@") for name in node.attr["_class"].list.s)
