"""Replaces the closed nodes of a GraphDef, in place: each becomes a node of another type with the
same name, inputs and outputs, so that nothing around it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax2tf.errors import LoweringError
from jax2tf.stablehlo.functions import Function

from ..bundle import graphs
from . import (
  closed,
  functions,
  modules,
  places,
  writes,
  xla_ops,
  xla_rules,  # noqa: F401  (registers the rules)
)
from .programs import Program


def opened(graph: Any) -> int:
  """Makes each closed node a call of a new function of ordinary ops, and drops writes of variables
  that now prove to change nothing. Returns the number of nodes.

  Raises:
    LoweringError, NotImplementedError, ArtifactError: of nodes that cannot be opened; the first
      lists the operations of all modules.
  """
  found = closed.nodes(graph)
  programs = _programs(graph, found)
  differentiable = _with_saved_gradient(graph)
  library = functions.Library(graph)
  made: dict[tuple[Any, bool], tuple[str, list[int]]] = {}
  for each, program in zip(found, programs, strict=True):
    if program is None:
      _become(each.node, "Identity", ("T",))
      continue
    key = program, each.place in differentiable
    if key not in made:
      concrete = functions.of_program(program)
      name = library.add(concrete, f"opened_{len(made)}", differentiable=key[1])
      made[key] = name, [output.dtype.as_datatype_enum for output in concrete.outputs]
    _rename_outputs(graph, each)
    _call(each.node, program, *made[key])
  writes.drop_idle(graph)
  return len(found)


def called_back(graph: Any, tokens: Callable[[Function], str]) -> None:
  """Makes each node with a module a call of Python, for a reference that TensorFlow runs here:
  `tokens` registers a JAX function, and gives its token. TensorFlow itself runs other ops of XLA.
  """
  found = [each for each in closed.nodes(graph) if each.node.op == graphs.MODULE]
  programs = _programs(graph, found)
  by_program: dict[Program, str] = {}
  for each, program in zip(found, programs, strict=True):
    assert program is not None
    if program not in by_program:
      by_program[program] = tokens(program.function)
    _become(each.node, "PyFunc", ("Tin", "Tout"))
    each.node.attr["token"].s = by_program[program].encode()


def _programs(graph: Any, found: Sequence[closed.Closed]) -> list[Program | None]:
  """The program of each node, one for all nodes with the same module; None for what only says where
  an array is.

  Raises:
    LoweringError: lists what all modules lack.
    NotImplementedError: an `Xla*` op cannot be opened.
  """
  of_places = places.of_graph(graph)
  library = {function.signature.name: function for function in graph.library.function}
  of_modules: dict[str, Program] = {}
  programs: list[Program | None] = []
  failures: list[LoweringError] = []
  for each in found:
    node = each.node
    if node.op in closed.PLACES:
      programs.append(None)
    elif node.op != graphs.MODULE:
      programs.append(xla_ops.of_node(node, of_places[each.place], library))
    else:
      name = closed.program(node)
      try:
        if name not in of_modules:
          of_modules[name] = modules.of_node(node)
        programs.append(of_modules[name])
      except LoweringError as error:
        failures.append(error)
  if failures:
    gaps = [gap for error in failures for gap in error.gaps]
    words = "\n".join(dict.fromkeys(str(error) for error in failures))
    raise LoweringError(words, gaps)
  return programs


def _call(node: Any, program: Program, name: str, outputs: Sequence[int]) -> None:
  """Makes a node a call of a function, with the inputs that its program takes."""
  data = [each for each in node.input if not each.startswith("^")]
  after = [each for each in node.input if each.startswith("^")]
  del node.input[:]
  node.input.extend([*(data[index] for index in program.inputs), *after])
  _become(node, "StatefulPartitionedCall", ())
  node.attr["Tin"].list.type.extend(spec.dtype.as_datatype_enum for spec in program.specs)
  node.attr["Tout"].list.type.extend(outputs)
  node.attr["f"].func.name = name


def _rename_outputs(graph: Any, each: closed.Closed) -> None:
  """Gives the outputs of a node in a function the names that those of a call have."""
  for function in graph.library.function:
    if function.signature.name != each.place:
      continue
    start = f"{each.node.name}:"
    for node in function.node_def:
      for index, reference in enumerate(node.input):
        if reference.startswith(start):
          node.input[index] = _of_call(each.node, reference)
    for name, reference in function.ret.items():
      if reference.startswith(start):
        function.ret[name] = _of_call(each.node, reference)


def _of_call(node: Any, reference: str) -> str:
  return f"{node.name}:output:{places.output_number(node, reference)}"


def _become(node: Any, op: str, kept: tuple[str, ...]) -> None:
  """Another type of op, of whose attributes those in `kept` stay."""
  for name in [name for name in node.attr if name not in (*kept, places.SHAPES)]:
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
