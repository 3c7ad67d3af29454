"""Calls of TensorFlow functions for `call_tf`: without checks, with values for variables, and
without their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type as _function_type
from tensorflow.python.eager.polymorphic_function import concrete_function as _concrete_function
from tensorflow.python.framework import func_graph as _func_graph
from tensorflow.python.ops import gradients_util as _gradients

from jax2tf._tf_compat.of_values import of_values


def flat_call(
  concrete: Any, given: Mapping[int, tf.Variable]
) -> Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]:
  """A concrete function of a flat signature, without the checks of its arguments, which take longer
  than a small function.

  Args:
    concrete: the function.
    given: {position of an argument: the variable whose value it is, and which the call does not
      read}.
  """
  if given:
    return of_values(concrete, given)
  captured = concrete.captured_inputs
  return lambda tensors: concrete._call_flat(tensors, captured) or ()


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
  here = tf.compat.v1.get_default_graph()
  graph = _func_graph.func_graph_from_py_func(
    "gradient", lambda *c: list(gradients(*c)), [], {}, signature=list(cotangents)
  )
  given = {id(inner): outer for outer, inner in here.captures}  # what the function itself captures
  used = [given.get(id(x), x) for x, _ in graph.captures]
  kept = [x for x in used if tf.is_symbolic_tensor(x)]
  if odd := sorted({x.dtype.name for x in kept if x.dtype in (tf.resource, tf.variant, tf.string)}):
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
    return (
      concrete._call_flat(
        list(cotangents), [next(rest) if tf.is_symbolic_tensor(x) else x for x in used]
      )
      or ()
    )

  return call, kept


def vectorized(function: Callable[..., Any], stacked: Any) -> Any:
  """tf.vectorized_map without its log lines; None where it fails, as TF 2.21 does for derivatives
  of loops and branches."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel("CRITICAL")
  try:
    return tf.vectorized_map(function, stacked)
  except (TypeError, ValueError):
    return None
  finally:
    logger.setLevel(level)


# TF 2.21 registers them as not differentiable, which means a gradient of zero, although their
# results depend on their operands.
_UNKNOWN_TO_GRADIENTS = frozenset(
  {
    *(
      "PyFunc",
      "PyFuncStateless",
      "HSVToRGB",
      "ResizeBilinearGrad",
      "LinSpace",
      "RandomShuffle",
      "RandomCrop",
      "ExtractGlimpse",
    ),
    *(
      "DrawBoundingBoxes",
      "SparseAddGrad",
      "StatelessShuffle",
      "StatelessRandomShuffle",
      "CTCBeamSearchDecoder",
      "CTCGreedyDecoder",
    ),
  }
)
_CUT = ("StopGradient", "PreventGradient")


def undifferentiated(ys: Sequence[tf.Tensor], xs: Sequence[Any]) -> str | None:
  """The type of an op between `xs` and `ys` that passes no gradient on although its result may
  vary; None without one."""
  results = {id(y) for y in ys}
  behind: set[tf.Operation] = set()
  waiting = [y.op for y in ys]
  while waiting:
    if (op := waiting.pop()) in behind or op.type in _CUT:
      continue
    behind.add(op)
    inputs = list(op.inputs)
    if op.type == "IdentityN" and "_gradient_op_type" in op.node_def.attr:
      # As tf.custom_gradient makes it, of results and arguments: the gradient goes to the
      # arguments, which no later op reads.
      inputs = [
        x
        for x, y in zip(inputs, op.outputs, strict=True)
        if not (y.consumers() or id(y) in results)
      ]
    waiting += [x.op for x in inputs]
  if not any(op.type in _UNKNOWN_TO_GRADIENTS or called(op) for op in behind):
    return None
  graph = next(iter(behind)).graph
  moving = {id(graph.capture(x.handle) if isinstance(x, tf.Variable) else x) for x in xs}
  for op in graph.get_operations():  # what an op reads was made before it
    if op not in behind or not (moved := [id(x) in moving for x in op.inputs]) or not any(moved):
      continue
    if op.type in _UNKNOWN_TO_GRADIENTS:
      return op.type
    for function in called(op):
      inputs = (
        function.inputs
        if len(function.inputs) != len(moved)
        else [x for x, is_in in zip(function.inputs, moved, strict=True) if is_in]
      )
      if found := undifferentiated(function.outputs, inputs):
        return found
    moving |= {
      id(y) for y in op.outputs if not (y.dtype.is_integer or y.dtype in (tf.bool, tf.string))
    }
  return None


def called(op: tf.Operation) -> list[Any]:
  """The graphs of the functions that an op calls, as branches, bodies or otherwise."""
  attributes = op.node_def.attr.values()
  names = [f.name for value in attributes for f in (value.func, *value.list.func) if f.name]
  return [
    function.graph
    for name in names
    if (function := op.graph._functions.get(name)) is not None and function.graph is not None
  ]


def gradients_of(
  ys: Sequence[tf.Tensor], xs: Sequence[Any], seeds: Sequence[tf.Tensor], graph: tf.Graph | None
) -> list[Any]:
  """tf.gradients of a `graph`, by default that under construction."""
  return _gradients._GradientsHelper(ys, xs, seeds, src_graph=graph)
