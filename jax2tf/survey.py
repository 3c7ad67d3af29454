"""The TensorFlow ops of a function, and the user's line that needs each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf import _tf_compat, interpreter, lines, program
from jax2tf import lowering as _lowering  # noqa: F401  (registers the lowering rules)
from jax2tf._tf_compat import functions
from jax2tf.dtypes import physical
from jax2tf.graph_context import GraphContext
from jax2tf.interpreter import GraphEmitter
from jax2tf.jaxprs import Eqn
from jax2tf.trace import Traceable


@dataclass(frozen=True)
class Use:
  """One kind of op in one place: its type, the primitive that it came from, the user's line."""

  op: str
  primitive: str
  where: str


def ops_of(fun: Callable[..., Any], *specs: Any) -> list[Use]:
  """The ops of the forward graph of `fun`, each use once, in the order of the equations.

  Args:
    fun: a JAX function.
    specs: a tree of jax.ShapeDtypeStruct for each positional argument, with dimensions of
      `jax.export.symbolic_shape` or without.

  Raises:
    NotImplementedError: primitives that have no lowering, all at once.
  """
  traced = Traceable.of(fun).trace(specs, {}, {})
  ready = program.prepare(traced.jaxpr, program.Subject(traced.name))
  equations_of_ops: dict[tf.Operation, tuple[str, str]] = {}

  @contextlib.contextmanager
  def note(eqn: Eqn, caller: str) -> Iterator[None]:
    """Records the equation that made each op: the innermost one, which comes first."""
    graph: Any = _tf_compat.current_graph()
    before = len(graph.operations)
    yield
    equations_of_ops.update(
      (op, (eqn.primitive.name, lines.user_line(eqn, caller)))
      for op in graph.operations[before:]
      if op not in equations_of_ops
    )

  def lower(*operands: tf.Tensor) -> list[tf.Tensor]:
    dimensions, _ = interpreter.dimension_values(
      lambda lower: traced.dimensions.values(operands, lower)
    )
    emitter = GraphEmitter(GraphContext(dimensions), watch=note)
    return emitter.emit(lines.definition(traced.jaxpr), ready, *operands)

  specs_of = [
    tf.TensorSpec([d if isinstance(d, int) else None for d in shape], dtype)
    for shape, dtype in map(physical, traced.jaxpr.in_avals)
  ]
  tf.function(lower, autograph=False).get_concrete_function(*specs_of)
  return list(
    dict.fromkeys(
      Use(inner.type, *equation)
      for op, equation in equations_of_ops.items()
      for inner in (op, *_inside(op, equations_of_ops))
    )
  )


def _inside(op: tf.Operation, others: Collection[tf.Operation]) -> Iterator[tf.Operation]:
  """The ops of the functions that an op calls, as a rule makes them, without the `others`, which
  equations in them made."""
  for graph in functions.called_graphs(op):
    for inner in graph.get_operations():
      if inner not in others and inner.type != "Placeholder":  # those are its arguments
        yield inner
        yield from _inside(inner, others)
