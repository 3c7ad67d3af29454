"""Puts what follows a product or a convolution into it, as TensorFlow's converter does where it has
the weights: a scale of each channel into the weights, a bias and an activation into the op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from ..export.weights import Weight
from . import flatbuffer
from .dequantizing import Narrow
from .parts import CHANNELS, Parts, add_tensor, dtype_of, reads

_KEEPS_SHAPE = 5  # the version of FULLY_CONNECTED that keeps the dimensions of its operand
_NONE = 0  # no activation


class Fusing:
  """Fuses the ops of a model that have large weights."""

  def __init__(self, parts: Parts):
    self._parts = parts

  def fuse(self, graph: Any) -> None:
    """Fuses the ops of one graph."""
    widening = self._parts.widening(graph)
    turned: set[int] = set()
    for op in graph.operators:
      if self._parts.kind(op) == "BATCH_MATMUL":
        self._to_fully_connected(graph, op, widening, turned)
    _move_to_readers(graph, widening)
    counts = reads(graph)
    producers: dict[int, Any] = {}
    remaining = []
    for op in graph.operators:
      if not self._into_producer(graph, op, producers, counts):
        remaining.append(op)
        producers |= {int(n): op for n in op.outputs}
    graph.operators = remaining

  def _to_fully_connected(
    self, graph: Any, op: Any, widening: Mapping[int, Any], turned: set[int]
  ) -> None:
    """A product with a constant matrix, which takes a bias and an activation as FULLY_CONNECTED.
    That has the columns as rows, so a matrix that other ops read as it is stays.

    A matrix may be the result of an op that widens the constant, such as bfloat16: LiteRT 2.3 takes
    three times as long for BATCH_MATMUL then.

    Args:
      graph: of the op.
      op: a BATCH_MATMUL.
      widening: {tensor: the op that widens a constant to it}.
      turned: tensors of `widening` that have the columns as rows already; it adds to them.
    """
    left, right = (int(n) for n in op.inputs)
    options = op.builtinOptions
    constant = graph.tensors[widening[right].inputs[0] if right in widening else right]
    if (
      int(constant.buffer) not in self._parts.weights
      or len(constant.shape) != 2
      or options.adjX
      or _is_constant(self._parts, graph.tensors[left])
    ):
      return
    if not options.adjY and right not in turned:
      if not self._is_read_by_columns(int(constant.buffer)):
        return
      columns = self._columns(graph, constant)
      if right in widening:
        widening[right].inputs = np.array([columns], np.int32)
        graph.tensors[right].shape = graph.tensors[columns].shape
        turned.add(right)
      else:
        right = columns
    tools = flatbuffer.tools()
    op.opcodeIndex = self._parts.code("FULLY_CONNECTED", _KEEPS_SHAPE)
    op.inputs = np.array([left, right, -1], np.int32)
    op.builtinOptionsType = tools.schema_fb.BuiltinOptions.FullyConnectedOptions
    op.builtinOptions = tools.schema_fb.FullyConnectedOptionsT()
    op.builtinOptions.keepNumDims = True

  def _is_read_by_columns(self, buffer: int) -> bool:
    """Whether in all graphs each op that reads a constant, or what it is widened to, is a product
    of something else with it."""
    for graph in self._parts.model.subgraphs:
      matrices = {i for i, tensor in enumerate(graph.tensors) if int(tensor.buffer) == buffer}
      readers = [op for op in graph.operators if not matrices.isdisjoint(map(int, op.inputs))]
      widening = [op for op in readers if self._parts.widens(graph, op)]
      matrices |= {int(op.outputs[0]) for op in widening}
      if not matrices.isdisjoint(map(int, graph.outputs)):
        return False
      for op in graph.operators:
        if op in widening or matrices.isdisjoint(map(int, op.inputs)):
          continue
        if self._parts.kind(op) != "BATCH_MATMUL" or int(op.inputs[0]) in matrices:
          return False
        if op.builtinOptions.adjX or op.builtinOptions.adjY:
          return False
    return True

  def _readers(self, buffer: int) -> Iterator[Any]:
    """The ops of all graphs that read a buffer."""
    for graph in self._parts.model.subgraphs:
      for op in graph.operators:
        if any(n >= 0 and int(graph.tensors[n].buffer) == buffer for n in op.inputs):
          yield op

  def _columns(self, graph: Any, tensor: Any) -> int:
    """The tensor of the transposed matrix."""
    rows, columns = (int(n) for n in tensor.shape)
    buffer = self._parts.transposed(int(tensor.buffer), (rows, columns), (1, 0))
    return _added(graph, tensor, (columns, rows), buffer)

  def _into_producer(
    self, graph: Any, op: Any, producers: dict[int, Any], counts: Counter[int]
  ) -> bool:
    """Whether the op, a scale or a bias, has become a part of what makes its operand."""
    kind = self._parts.kind(op)
    if kind not in ("MUL", "ADD", "NEG"):
      return False
    operands = list(map(int, op.inputs))
    pairs = [*permutations(operands)] if len(operands) == 2 else [(operands[0], None)]
    for value, other in pairs:
      product = producers.get(value)
      if product is None or counts[value] != 1 or not self._takes(graph, product):
        continue
      if not _same_shape(graph.tensors[value], graph.tensors[op.outputs[0]]):
        continue
      if not self._absorbs(graph, product, kind, other):
        continue
      activation = getattr(op.builtinOptions, "fusedActivationFunction", _NONE)
      product.builtinOptions.fusedActivationFunction = activation
      product.outputs = op.outputs
      producers |= {int(n): product for n in op.outputs}
      return True
    return False

  def _absorbs(self, graph: Any, product: Any, kind: str, other: int | None) -> bool:
    """Whether the product now computes the op of this kind too, whose other operand has a number
    for each channel."""
    weights = graph.tensors[product.inputs[1]]
    axis = CHANNELS[self._parts.kind(product)]
    size = int(weights.shape[axis])
    if other is None:
      vector: np.ndarray | None = np.full(size, -1, np.float32)
    else:
      vector = self._vector(graph.tensors[other], size)
    if vector is None:
      return False
    if kind == "ADD":
      self._shift(graph, product, np.add, vector)
      return True
    if len(list(self._readers(int(weights.buffer)))) > 1:
      return False  # the file would have the weights twice
    return self._scale(graph, product, vector, axis)

  def _takes(self, graph: Any, product: Any) -> bool:
    """Whether it is a product with a large weight, of float32 and without an activation."""
    if self._parts.kind(product) not in CHANNELS:
      return False
    weights = graph.tensors[product.inputs[1]]
    return (
      int(weights.buffer) in self._parts.weights
      and weights.type == flatbuffer.tools().TensorType.FLOAT32
      and product.builtinOptions.fusedActivationFunction == _NONE
    )

  def _vector(self, tensor: Any, size: int) -> np.ndarray | None:
    """A constant f32[], f32[n] or f32[1,...,n] as f32[n]."""
    value = self._parts.value(tensor)
    if value is None or value.dtype != np.float32 or value.size not in (1, size):
      return None
    if value.size != 1 and value.shape[-1] != size:
      return None
    return np.broadcast_to(value.read().reshape(-1), size)

  def _scale(self, graph: Any, product: Any, vector: np.ndarray, axis: int) -> bool:
    """Multiplies the weights and the bias, if the weights stay narrow."""
    tensor = graph.tensors[product.inputs[1]]
    weight = self._parts.value(tensor)
    assert weight is not None
    sizes = [1] * len(weight.shape)
    sizes[axis] = -1
    factor = vector.reshape(sizes)
    scaled: Weight | None = Weight(weight.shape, weight.dtype, _product(weight.read, factor))
    if isinstance(weight, Narrow):
      scaled = weight.scaled(Weight.of_array(factor))
    if scaled is None:
      return False
    number = _added(graph, tensor, tensor.shape, self._parts.add(scaled))
    product.inputs = np.array([product.inputs[0], number, *product.inputs[2:]], np.int32)
    if len(product.inputs) > 2 and product.inputs[2] >= 0:
      self._shift(graph, product, np.multiply, vector)
    return True

  def _shift(
    self, graph: Any, product: Any, function: Callable[..., np.ndarray], vector: np.ndarray
  ) -> None:
    """Gives the product the bias `function(bias, vector)`, where no bias is zeros."""
    bias = vector
    if len(product.inputs) > 2 and product.inputs[2] >= 0:
      known = self._parts.value(graph.tensors[product.inputs[2]])
      assert known is not None
      bias = function(known.read(), vector)
    buffer = self._parts.add_inside(np.asarray(bias, np.float32))
    number = _added(graph, graph.tensors[product.inputs[1]], bias.shape, buffer)
    product.inputs = np.array([*product.inputs[:2], number], np.int32)


def _added(graph: Any, like: Any, shape: Sequence[int], buffer: int) -> int:
  """The number of a new constant of the graph, with the name and the dtype of another one."""
  dtype = dtype_of(like)
  assert dtype is not None
  return add_tensor(graph, like.name, dtype, shape, buffer)


def _move_to_readers(graph: Any, widening: Mapping[int, Any]) -> None:
  """Moves ops that widen weights to their first readers, so that the runtime, which keeps the order
  of the file, has the wide weights one after the other. The converter puts them before all others.

  Args:
    graph: its ops.
    widening: {tensor: op}.
  """
  waiting = dict(widening)
  moved: list[Any] = []
  for op in graph.operators:
    if any(int(n) in widening for n in op.outputs):
      continue
    moved += [waiting.pop(int(n)) for n in dict.fromkeys(op.inputs) if int(n) in waiting]
    moved.append(op)
  graph.operators = [*moved, *waiting.values()]


def _product(read: Callable[[], np.ndarray], factor: np.ndarray) -> Callable[[], np.ndarray]:
  return lambda: read() * factor


def _is_constant(parts: Parts, tensor: Any) -> bool:
  return parts.value(tensor) is not None


def _same_shape(x: Any, y: Any) -> bool:
  def shape(tensor: Any) -> list[int]:
    sizes = tensor.shape if tensor.shapeSignature is None else tensor.shapeSignature
    return [int(n) for n in sizes]

  return shape(x) == shape(y)
