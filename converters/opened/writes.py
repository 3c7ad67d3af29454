"""Writes that change nothing: a variable gets the value that was read from it.

Keras' export writes every state back after each call, that of a batch normalisation in inference
too. Inside of a compiled program nobody sees that it is the value that went in; once it is open,
the writes can go, and with them what keeps the model from runtimes without variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAME = ("Identity", "IdentityN", "PreventGradient", "StopGradient")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_READ, _WRITE = "ReadVariableOp", "AssignVariableOp"


def drop_idle(graph: Any) -> int:
  """Makes each write of a value that was read from the same variable, in the same call, a NoOp; if
  nothing else there can write the variable. Returns their number."""
  functions = {function.signature.name: function for function in graph.library.function}
  count = 0
  for function in graph.library.function:
    for variable, writes in _writes(function).items():
      if all(_read_from(functions, function, node.input[1]) == variable for node in writes):
        count += len(writes)
        for node in writes:
          _drop(node)
  return count


def _writes(function: Any) -> dict[str, list[Any]]:
  """{variable: the nodes that write it}, of those that the function gives to reads and writes
  alone."""
  writes: dict[str, list[Any]] = {}
  others: set[str] = set()
  for node in function.node_def:
    if node.op == _WRITE:
      writes.setdefault(node.input[0], []).append(node)
    elif node.op != _READ:
      others.update(node.input)
  return {variable: nodes for variable, nodes in writes.items() if variable not in others}


def _read_from(functions: Mapping[str, Any], function: Any, reference: str) -> str:
  """The variable whose value this is; empty for other values."""
  origin = _origin(functions, function, reference)
  return str(origin.input[0]) if getattr(origin, "op", "") == _READ else ""


def _origin(functions: Mapping[str, Any], function: Any, reference: str) -> Any:
  """What a value in a function is, without ops that only hand it on: a node, or the number of an
  argument."""
  arguments = [argument.name for argument in function.signature.input_arg]
  nodes = {node.name: node for node in function.node_def}
  while reference not in arguments:
    name, _, place = reference.partition(":")
    node, index = nodes[name], int(place.rpartition(":")[2] or 0)
    if node.op in _CALLS:
      callee = functions[node.attr["f"].func.name]
      result = callee.ret[callee.signature.output_arg[index].name]
      inner = _origin(functions, callee, result)
      if not isinstance(inner, int):
        return None
      reference = node.input[inner]
    elif node.op in _SAME:
      reference = node.input[index]
    else:
      return node
  return arguments.index(reference)


def _drop(node: Any) -> None:
  after = [name for name in node.input if name.startswith("^")]
  node.op = "NoOp"
  del node.input[:]
  node.input.extend(after)
  node.attr.clear()
