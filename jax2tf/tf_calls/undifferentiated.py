"""Ops of TensorFlow that pass no gradient on, although their results may vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from jax2tf._tf_compat import functions

# TF 2.21 registers them as not differentiable, which means a gradient of zero, although their
# results depend on their operands.
_UNKNOWN_TO_GRADIENTS = frozenset(
  {
    "CTCBeamSearchDecoder",
    "CTCGreedyDecoder",
    "DrawBoundingBoxes",
    "ExtractGlimpse",
    "HSVToRGB",
    "LinSpace",
    "PyFunc",
    "PyFuncStateless",
    "RandomCrop",
    "RandomShuffle",
    "ResizeBilinearGrad",
    "SparseAddGrad",
    "StatelessRandomShuffle",
    "StatelessShuffle",
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
  if not any(op.type in _UNKNOWN_TO_GRADIENTS or functions.called_graphs(op) for op in behind):
    return None
  graph = next(iter(behind)).graph
  moving = {id(graph.capture(x.handle) if isinstance(x, tf.Variable) else x) for x in xs}
  for op in graph.get_operations():  # what an op reads was made before it
    if op not in behind or not (moved := [id(x) in moving for x in op.inputs]) or not any(moved):
      continue
    if op.type in _UNKNOWN_TO_GRADIENTS:
      return op.type
    for function in functions.called_graphs(op):
      inputs = (
        function.inputs
        if len(function.inputs) != len(moved)
        else [x for x, is_in in zip(function.inputs, moved, strict=True) if is_in]
      )
      if inner_type := undifferentiated(function.outputs, inputs):
        return inner_type
    moving |= {
      id(y) for y in op.outputs if not (y.dtype.is_integer or y.dtype in (tf.bool, tf.string))
    }
  return None
