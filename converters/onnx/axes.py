"""ONNX ops that can be computed in another order of dimensions, and what their axes become."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .runtime import extra

# Each element of the result is computed from those at the same place. Operands are broadcast.
_ELEMENTWISE = frozenset(
  re.findall(
    r"\w+",
    """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max
    Mean Min Mish Mod Mul Neg Not Or Pow PRelu Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor
    """,
  )
)
_REDUCTIONS = frozenset(
  re.findall(
    r"\w+",
    """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
    """,
  )
)
# {op: its axis, if it has no attribute for it}.
_ALONG_AXIS = {"Softmax": -1, "LogSoftmax": -1, "Concat": None, "Split": 0}


def inverse(order: Sequence[int]) -> tuple[int, ...]:
  """The permutation that undoes this one."""
  return tuple(int(axis) for axis in np.argsort(order))


def permuted(shape: Sequence[int], order: Sequence[int]) -> list[int]:
  """The sizes in this order."""
  return [shape[axis] for axis in order]


@dataclass(frozen=True)
class Orders:
  """The permutations from another order of dimensions to the first one: of images, and of images
  whose last dimension is split in two, as a normalization of groups does.

  Attributes:
    images: the `perm` of a Transpose from the other order to the first.
  """

  images: tuple[int, ...]

  def of(self, rank: int) -> tuple[int, ...]:
    """The permutation of tensors of this rank, which is that of images or one more."""
    if rank == len(self.images):
      return self.images
    *others, last = self.images
    return (*(axis + (axis > last) for axis in others), last, last + 1)

  def know(self, shape: Sequence[int] | None) -> bool:
    """Whether a tensor of this shape may have both orders."""
    return shape is not None and 0 <= len(shape) - len(self.images) <= 1


def operands(node: Any, orders: Orders) -> list[str] | None:
  """The operands, which are the first inputs, of a node that can be computed in another order; None
  of other nodes."""
  graph, count = node.graph, _count(node)
  if count is None or node.domain not in ("", "ai.onnx"):
    return None
  if not all(map(orders.know, node.output_shapes)):
    return None
  names = list(node.input[:count])
  if node.type == "Reshape":
    shape = graph.get_shape(names[0])
    return names if orders.know(shape) and _splits(shape, node.output_shapes[0]) else None
  rank, is_whole = len(node.output_shapes[0]), False
  for name in filter(None, names):
    shape = graph.get_shape(name)
    if shape is None or (len(shape) != rank and orders.know(shape) and not is_const(graph, name)):
      return None
    is_whole |= len(shape) == rank
  return names if is_whole else None


def is_const(graph: Any, name: str) -> bool:
  """Whether a tensor is a constant of a graph or of one around it."""
  maker = graph.get_node_by_output(name)
  return maker is not None and maker.is_const()


def rank(node: Any) -> int:
  """The dimensions that the operands of a node have, once they are broadcast."""
  one = node.graph.get_shape(node.input[0]) if _is_alone(node) else node.output_shapes[0]
  return len(one)


def _count(node: Any) -> int | None:
  """The operands of an op that may be computed in another order."""
  if node.type in _ELEMENTWISE or node.type == "Concat":
    return len(node.input)
  if node.type in _REDUCTIONS:
    return 1 if node.get_attr_value("keepdims", 1) and _axes(node) is not None else None
  if node.type == "Slice":
    return 1 if _sliced_axes(node) is not None else None
  return 1 if node.type in _ALONG_AXIS or node.type == "Reshape" else None


def _splits(shape: Sequence[int], other: Sequence[int]) -> bool:
  """Whether a reshape between these shapes splits the last dimension in two, or joins the two last
  ones."""
  short, long = sorted((list(shape), list(other)), key=len)
  is_one_known = min(short[-1], *long[-2:]) >= 0 and short.count(-1) <= 1
  return (
    is_one_known
    and len(long) == len(short) + 1
    and short[:-1] == long[:-2]
    and short[-1] == math.prod(long[-2:])
  )


def _sliced_axes(node: Any) -> list[int] | None:
  """The axes of a Slice. None if they are not constant."""
  if len(node.input) > 3 and node.input[3]:
    return _known_axes(node.inputs[3])
  starts = node.graph.get_shape(node.input[1])
  return list(range(starts[0])) if starts and starts[0] > 0 else None


def is_free_end(node: Any, orders: Orders) -> bool:
  """Whether a node sums away so many dimensions that those left have the same order in both."""
  if node.type not in _REDUCTIONS or node.get_attr_value("keepdims", 1):
    return False
  shape, reduced = node.graph.get_shape(node.input[0]), _axes(node)
  if not orders.know(shape) or not reduced:
    return False
  rank = len(shape)
  left = [axis for axis in range(rank) if axis not in {axis % rank for axis in reduced}]
  kept = [orders.of(rank)[axis] for axis in left]
  return kept == sorted(kept)


def _axes(node: Any) -> list[int] | None:
  """The axes of a reduction; none for all. None if they are not constant."""
  if len(node.input) < 2 or not node.input[1]:
    return list(node.get_attr_value("axes", []))
  return _known_axes(node.inputs[1])


def _known_axes(axes: Any) -> list[int] | None:
  return [int(axis) for axis in axes.get_tensor_value()] if axes.is_const() else None


def remake(
  node: Any,
  order: Sequence[int],
  inputs: list[str],
  outputs: list[str],
  shapes: Sequence[Sequence[int]],
) -> None:
  """Replaces a node by the same one in the other order.

  Args:
    node: one that `operands` or `is_free_end` knows.
    order: the permutation from the other order to the node's own, of its operands.
    inputs: names; the operands are in the other order.
    outputs: names of the results.
    shapes: of the results.
  """
  graph, attributes, rank = node.graph, dict(node.attr), len(order)
  if node.type in _ALONG_AXIS:
    axis = node.get_attr_value("axis", _ALONG_AXIS[node.type])
    attributes["axis"] = order[axis % rank]
  elif node.type in _REDUCTIONS and (axes := _axes(node)):
    new = [order[axis % rank] for axis in axes]
    if len(inputs) > 1:
      inputs = [inputs[0], _constant(node, new)]
    else:
      attributes["axes"] = new
  elif node.type == "Slice":
    new = [order[axis % rank] for axis in _sliced_axes(node) or []]
    inputs = [*inputs[:3], _constant(node, new), *inputs[4:]]
  elif node.type == "Reshape":
    inputs = [inputs[0], _constant(node, shapes[0])]
  dtypes, name, kind = node.output_dtypes, node.name, node.type
  graph.remove_node(name)
  graph.make_node(
    kind, inputs, attributes, name=name, outputs=outputs, shapes=list(shapes), dtypes=dtypes
  )


def _is_alone(node: Any) -> bool:
  """Whether a node has one operand, which may have more dimensions than the result."""
  return node.type in _REDUCTIONS or node.type in ("Slice", "Split", "Reshape")


def free_name(graph: Any, name: str) -> str:
  """A name that neither a node nor a tensor of the graph has."""
  while graph.get_node_by_name(name) is not None or graph.get_node_by_output(name) is not None:
    name += "_t"
  return name


def _constant(node: Any, values: Sequence[int]) -> str:
  """The name of a new constant for a node."""
  name = free_name(node.graph, f"{node.name}__moved")
  # The inputs of a Slice have one dtype.
  int32 = extra("onnx").TensorProto.INT32
  is_int32 = node.type == "Slice" and node.graph.get_dtype(node.input[1]) == int32
  dtype = np.int32 if is_int32 else np.int64
  return str(node.graph.make_const(name, np.array(values, dtype)).output[0])
