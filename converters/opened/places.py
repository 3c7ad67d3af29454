"""What a graph says of the inputs of a node: sizes, and the values of constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf import _tf_compat

SHAPES = "_output_shapes"
"""The attribute of a node that has the shapes of its outputs."""
SAME = ("Identity", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot")
"""Ops that only hand a value on."""


class Place:
  """The graph itself, or a function of the library.

  Args:
    nodes: its NodeDefs.
    arguments: names of the function's arguments.
    shapes: the TensorShapeProtos of the arguments, None for unknown ones.
  """

  def __init__(self, nodes: Sequence[Any], arguments: Sequence[str] = (), shapes: Any = ()):
    self._nodes = {node.name: node for node in nodes}
    self._arguments = dict(zip(arguments, shapes, strict=True))

  def shape(self, reference: str) -> tuple[int | None, ...] | None:
    """The sizes of an input; None if their number is unknown."""
    node, index = self._origin(reference)
    if node is None:
      return _sizes(self._arguments.get(reference))
    constant = self.constant(reference)
    if constant is not None:
      return constant.shape
    shapes = node.attr[SHAPES].list.shape if SHAPES in node.attr else ()
    return _sizes(shapes[index]) if index < len(shapes) else None

  def constant(self, reference: str) -> np.ndarray[Any, Any] | None:
    """The value of an input; None if it is none of the graph's constants."""
    node, _ = self._through(reference)
    if node is None or node.op != "Const":
      return None
    return np.asarray(tf.make_ndarray(node.attr["value"].tensor))

  def entries(self, reference: str) -> np.ndarray[Any, Any] | None:
    """The entries of an input of few integers as an array of objects: None for an entry that is
    known in a call alone. None if even their number is unknown."""
    constant = self.constant(reference)
    if constant is not None:
      return constant.astype(object)
    node, _ = self._through(reference)
    if node is not None and node.op == "Pack" and node.attr["axis"].i == 0:
      parts = [self.entries(each) for each in node.input if not each.startswith("^")]
      if all(part is not None for part in parts):
        return np.stack([np.asarray(part, object) for part in parts])
    shape = self.shape(reference)
    if shape is None or None in shape:
      return None
    return np.full([size or 0 for size in shape], None, object)

  def iota_dimension(self, reference: str) -> int | None:
    """The dimension along which an input counts from 0, as JAX wrote `lax.iota`; None for another
    input."""
    broadcast, _ = self._through(reference)
    if broadcast is None or broadcast.op != "BroadcastTo":
      return None
    reshape, _ = self._through(broadcast.input[0])
    if reshape is None or reshape.op != "Reshape":
      return None
    counted, _ = self._through(reshape.input[0])
    if counted is None or counted.op != "Range":
      return None
    start, step = (self.constant(counted.input[index]) for index in (0, 2))
    shape = self.entries(reshape.input[1])
    if start != 0 or step != 1 or shape is None:
      return None
    counting = [axis for axis, size in enumerate(shape) if size != 1]
    return counting[0] if len(counting) == 1 else None

  def _through(self, reference: str) -> tuple[Any, int]:
    """The node behind ops that only hand a value on."""
    node, index = self._origin(reference)
    while node is not None and node.op in SAME:
      node, index = self._origin(node.input[0])
    return node, index

  def _origin(self, reference: str) -> tuple[Any, int]:
    """The node, and the number of its output; no node for an argument."""
    name = reference.partition(":")[0]
    if reference in self._arguments or name not in self._nodes:
      return None, 0
    return self._nodes[name], output_number(self._nodes[name], reference)


def output_number(node: Any, reference: str) -> int:
  """Which output of a node a reference names: `node:output:0` in functions, `node:0` in graphs."""
  _, *group, last = reference.split(":") if ":" in reference else (reference, "0")
  if not group:
    return int(last)
  before = 0
  for output in _tf_compat.outputs_of(node.op):
    if output.name == group[0]:
      break
    counted = node.attr[output.number_attr].i if output.number_attr else 1
    before += len(node.attr[output.type_list_attr].list.type) if output.type_list_attr else counted
  return before + int(last)


def of_graph(graph: Any) -> dict[str, Place]:
  """{name of a function, empty for the graph: its place}."""
  places = {"": Place(graph.node)}
  for function in graph.library.function:
    names = [argument.name for argument in function.signature.input_arg]
    shapes = [_of_argument(function, index) for index in range(len(names))]
    places[function.signature.name] = Place(function.node_def, names, shapes)
  return places


def _of_argument(function: Any, index: int) -> Any:
  if index in function.arg_attr and SHAPES in function.arg_attr[index].attr:
    return next(iter(function.arg_attr[index].attr[SHAPES].list.shape), None)
  shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else ()
  return shapes[index] if index < len(shapes) else None


def _sizes(shape: Any) -> tuple[int | None, ...] | None:
  if shape is None or shape.unknown_rank:
    return None
  return tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
