"""Functions of TensorFlow, for `call_tf`: calls without checks, gradients, and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type as _function_type
from tensorflow.python.eager import context as _context
from tensorflow.python.eager.polymorphic_function import atomic_function as _atomic_function
from tensorflow.python.eager.polymorphic_function import concrete_function as _concrete_function
from tensorflow.python.framework import func_graph as _func_graph
from tensorflow.python.framework import op_def_registry as _op_defs
from tensorflow.python.ops import gradients_util as _gradients


def call_flat(
  concrete: Any, tensors: list[tf.Tensor], captured: list[tf.Tensor]
) -> Sequence[tf.Tensor]:
  """The results of a concrete function of a flat signature, without the checks of its arguments,
  which take longer than a small function."""
  return concrete._call_flat(tensors, captured) or ()


def operands_of(kind: str) -> Sequence[Any]:
  """The ArgDefs of the operands of an op type."""
  return _op_defs.get(kind).input_arg


def registered(
  definition: Any,
  inputs: Sequence[Any],
  outputs: Sequence[Any],
  children: Sequence[Any],
  is_stateful: bool,
) -> Any:
  """A function that TensorFlow calls, of a FunctionDef, the types of its arguments and results, and
  the functions that it calls."""
  runtime = _context.context()
  runtime.add_function_def(definition)
  function_type = _function_type.from_structured_signature((tuple(inputs), {}), tuple(outputs), {})
  options = _atomic_function.CallOptions(is_stateful=is_stateful)
  return _atomic_function.AtomicFunction(
    definition.signature.name, runtime, function_type, list(children), options
  )


def gradient_apart(
  gradients: Callable[..., Sequence[tf.Tensor]], cotangents: Sequence[tf.TensorSpec]
) -> tuple[Callable[..., Sequence[tf.Tensor]], list[tf.Tensor]]:
  """A function without captures, made of one that captures tensors of the current graph, as
  TensorFlow does for its tapes.

  Args:
    gradients: cotangents -> their results.
    cotangents: their specs.

  Returns:
    ((values of the tensors, cotangents) -> results, the tensors).

  Raises:
    ValueError: it captures more than values.
  """
  current = tf.compat.v1.get_default_graph()
  graph = _func_graph.func_graph_from_py_func(
    "gradient", lambda *c: list(gradients(*c)), [], {}, signature=list(cotangents)
  )
  captured_by_function = {id(inner): outer for outer, inner in current.captures}
  used = [captured_by_function.get(id(x), x) for x, _ in graph.captures]
  residuals = [x for x in used if tf.is_symbolic_tensor(x)]
  if odd := sorted(
    {x.dtype.name for x in residuals if x.dtype in (tf.resource, tf.variant, tf.string)}
  ):
    raise ValueError(
      f"its gradient needs values of the dtype {', '.join(odd)}, which JAX does not have; loops "
      "and branches do"
    )
  if reads := sorted(
    {op.type for op in graph.get_operations()}
    & {"ReadVariableOp", "ResourceGather", "ResourceGatherNd"}
  ):
    raise ValueError(f"its gradient has {', '.join(reads)}")
  kind = _function_type.from_structured_signature(
    ((), {}), graph.structured_outputs, graph.function_captures.capture_types
  )
  concrete = _concrete_function.ConcreteFunction.from_func_graph(graph, kind, {})

  def call(values: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    rest = iter(values)
    captured = [next(rest) if tf.is_symbolic_tensor(x) else x for x in used]
    return call_flat(concrete, list(cotangents), captured)

  return call, residuals


def called_graphs(op: tf.Operation) -> list[Any]:
  """The graphs of the functions that an op calls, as branches, bodies or otherwise."""
  attributes = op.node_def.attr.values()
  names = [f.name for value in attributes for f in (value.func, *value.list.func) if f.name]
  return [
    function.graph
    for name in names
    if (function := op.graph._functions.get(name)) is not None and function.graph is not None
  ]


def function_named(graph: tf.Graph, name: str) -> Any | None:
  """The graph, with inputs and outputs, of a function in the library of `graph`, or None."""
  function = graph._functions.get(name)
  return None if function is None else function.graph


def gradients_of(
  ys: Sequence[tf.Tensor], xs: Sequence[Any], seeds: Sequence[tf.Tensor], graph: tf.Graph | None
) -> list[Any]:
  """tf.gradients of a `graph`, by default that under construction."""
  return _gradients._GradientsHelper(ys, xs, seeds, src_graph=graph)
