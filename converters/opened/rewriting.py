"""Replaces the closed nodes of a GraphDef, in place: each becomes a node of another type with the
same name, inputs and outputs, so that nothing around it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax2tf.errors import LoweringError
from jax2tf.stablehlo.functions import Function

from . import closed, functions, modules, writes

_OUTPUT_SHAPES = "_output_shapes"


def opened(graph: Any) -> int:
  """Makes each closed node a call of a new function of ordinary ops, and drops writes of variables
  that now prove to change nothing. Returns the number of nodes.

  Raises:
    LoweringError, NotImplementedError, ArtifactError: of nodes that cannot be opened; the first
      lists the operations of all modules.
  """
  found = closed.nodes(graph)
  programs = _programs(found)
  differentiable = _with_saved_gradient(graph)
  library = functions.Library(graph)
  names: dict[tuple[str, bool], str] = {}
  for each in found:
    node = each.node
    if node.op in closed.PLACES:
      _become(node, "Identity", ("T",))
      continue
    key = closed.program(node), each.place in differentiable
    if key not in names:
      concrete = functions.of_module(programs[key[0]])
      names[key] = library.add(concrete, f"opened_{len(names)}", differentiable=key[1])
    _become(node, "StatefulPartitionedCall", ("Tin", "Tout"))
    node.attr["f"].func.name = names[key]
  writes.drop_idle(graph)
  return len(found)


def called_back(graph: Any, tokens: Callable[[Function], str]) -> None:
  """Makes each closed node a call of Python, for a reference that TensorFlow runs here: `tokens`
  registers a JAX function, and gives its token."""
  found = closed.nodes(graph)
  programs = _programs(found)
  by_program = {name: tokens(program) for name, program in programs.items()}
  for each in found:
    node = each.node
    if node.op in closed.PLACES:
      _become(node, "Identity", ("T",))
      continue
    token = by_program[closed.program(node)]
    _become(node, "PyFunc", ("Tin", "Tout"))
    node.attr["token"].s = token.encode()


def _programs(found: list[closed.Closed]) -> Mapping[str, Function]:
  """{name of a program: its JAX function} of all modules.

  Raises:
    LoweringError: lists what all of them lack.
    NotImplementedError: there is an op that is no module.
  """
  programs: dict[str, Function] = {}
  failures: list[LoweringError] = []
  for each in found:
    node = each.node
    if node.op in closed.PLACES:
      continue
    if node.op != closed.MODULE:
      raise NotImplementedError(
        f"{node.op} ({node.name!r}) of graphs that JAX 0.4.38 and older wrote cannot be opened"
      )
    name = closed.program(node)
    if name in programs:
      continue
    try:
      programs[name] = modules.of_node(node)
    except LoweringError as error:
      failures.append(error)
  if failures:
    gaps = [gap for error in failures for gap in error.gaps]
    words = "\n".join(dict.fromkeys(str(error) for error in failures))
    raise LoweringError(words, gaps)
  return programs


def _become(node: Any, op: str, kept: tuple[str, ...]) -> None:
  """Another type of op, of whose attributes those in `kept` stay."""
  for name in [name for name in node.attr if name not in (*kept, _OUTPUT_SHAPES)]:
    del node.attr[name]
  node.op = op


def _with_saved_gradient(graph: Any) -> set[str]:
  """The functions whose results have gradient functions of their own: TensorFlow never
  differentiates what is before these."""
  return {
    function.signature.name
    for function in graph.library.function
    if any("_gradient_op_type" in node.attr for node in function.node_def)
  }
