"""Where a tensor may be used: in the graph that made it, and in the branches and loop bodies that
are built inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util as _control_flow_util


@dataclass(frozen=True)
class Scope:
  """A place where ops are made, and whose tensors no place outside of it can use.

  Attributes:
    graph: that of the ops. A branch or loop body of TensorFlow 2 has a graph of its own.
    context: the branch or loop body in this graph, if TensorFlow 1 makes it
      (`tf.compat.v1.disable_control_flow_v2`); else None.
  """

  graph: tf.Graph
  context: Any = None

  @contextlib.contextmanager
  def entered(self) -> Iterator[None]:
    """Makes ops here, though a branch or body inside may be under construction."""
    with self.graph.as_default():
      inside = self.graph._get_control_flow_context()
      self.graph._set_control_flow_context(self.context)
      try:
        yield
      finally:
        self.graph._set_control_flow_context(inside)


def scope_here() -> Scope | None:
  """Where ops are made now; None when they run eagerly."""
  return None if tf.executing_eagerly() else next(scopes_around())


def scope_of(tensor: tf.Tensor) -> Scope:
  """Where a tensor of a graph was made."""
  return Scope(tensor.graph, _control_flow_util.GetOutputContext(tensor.op))


def scopes_around() -> Iterator[Scope]:
  """The scopes whose tensors an op that is made now may use, from the innermost one outwards."""
  graph: Any = tf.compat.v1.get_default_graph()
  while graph is not None:
    context = graph._get_control_flow_context()
    while context is not None:
      yield Scope(graph, context)
      context = context.outer_context
    yield Scope(graph)
    graph = getattr(graph, "outer_graph", None)
