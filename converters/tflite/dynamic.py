"""Large weights as integers, which LiteRT multiplies with activations that it quantizes at run
time. TensorFlow's converter and ai-edge-quantizer do so for models that they hold in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..export.weights import Weight
from . import flatbuffer
from .dequantizing import Narrow
from .parts import CHANNELS, Parts, add_tensor, scaled_by

_ROWS = 2**20  # elements, which are quantized at once


@dataclass(frozen=True)
class _Integers:
  """A weight as integers times a scale for each channel.

  Attributes:
    buffer: of the integers.
    scales: of the channels.
    bits: of each integer.
  """

  buffer: int
  scales: np.ndarray
  bits: int


def quantize(parts: Parts, bits: int) -> None:
  """Makes integers of the weights of products, and of the tables whose rows are gathered. A table
  has 8 bits, also where a product reads it."""
  writer = _Writer(parts, bits)
  for graph in parts.model.subgraphs:
    operators = []
    for op in graph.operators:
      operators += writer.written(graph, op)
    graph.operators = operators
  parts.sweep()


class _Writer:
  """Adds integers to a model. Equal ones of several graphs are in the file once."""

  def __init__(self, parts: Parts, bits: int):
    self._parts, self._bits = parts, bits
    self._tables = {
      int(graph.tensors[op.inputs[0]].buffer)
      for graph in parts.model.subgraphs
      for op in graph.operators
      if parts.kind(op) == "GATHER"
    }
    self._known: dict[Any, _Integers | None] = {}

  def written(self, graph: Any, op: Any) -> list[Any]:
    """The ops in place of one."""
    kind = self._parts.kind(op)
    if kind in CHANNELS:
      self._product(graph, op, CHANNELS[kind])
    if kind == "GATHER" and not (op.builtinOptions.axis or op.builtinOptions.batchDims):
      return self._rows(graph, op)
    return [op]

  def _product(self, graph: Any, op: Any, axis: int) -> None:
    tensor = graph.tensors[op.inputs[1]]
    integers = self._integers(tensor, axis)
    if integers is None:
      return
    number = self._tensor(graph, tensor, integers)
    graph.tensors[number].quantization = scaled_by(integers.scales, axis=axis)
    op.inputs = np.array([op.inputs[0], number, *op.inputs[2:]], np.int32)
    if self._parts.kind(op) == "FULLY_CONNECTED":
      op.builtinOptions.asymmetricQuantizeInputs = True

  def _rows(self, graph: Any, op: Any) -> list[Any]:
    """Rows of integers, and of their scales, and the product of both."""
    table, result = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    integers = self._integers(table, 0)
    if integers is None:
      return [op]
    size = len(table.shape) - 1
    sizes = [integers.scales.size, *[1] * size]
    buffer = self._parts.add(Weight.of_array(integers.scales.reshape(sizes)))
    scales = add_tensor(graph, table.name + b"/scales", np.dtype(np.float32), sizes, buffer)
    shape = [int(n) for n in result.shape]
    kept = shape[: len(shape) - size]
    names = ("narrow", "wide", "scale")
    dtypes = (np.int8, np.float32, np.float32)
    shapes = (shape, shape, [*kept, *[1] * size])
    rows, wide, of_rows = (
      add_tensor(graph, result.name + b"/" + name.encode(), np.dtype(dtype), one)
      for name, dtype, one in zip(names, dtypes, shapes, strict=True)
    )
    indices = int(op.inputs[1])
    gathers = [
      self._gather(op, source, indices, target)
      for source, target in ((self._tensor(graph, table, integers), rows), (scales, of_rows))
    ]
    product = self._parts.op("MUL", 1, [wide, of_rows], int(op.outputs[0]))
    tools = flatbuffer.tools().schema_fb
    product.builtinOptionsType = tools.BuiltinOptions.MulOptions
    product.builtinOptions = tools.MulOptionsT()
    return [*gathers, self._parts.op("CAST", 1, [rows], wide), product]

  def _gather(self, like: Any, table: int, indices: int, result: int) -> Any:
    new = self._parts.op("GATHER", 2, [table, indices], result)
    new.builtinOptionsType, new.builtinOptions = like.builtinOptionsType, like.builtinOptions
    return new

  def _integers(self, tensor: Any, axis: int) -> _Integers | None:
    """None for a tensor that is no large weight of float32, or has a number that is not finite."""
    buffer = int(tensor.buffer)
    weight = self._parts.weights.get(buffer)
    if weight is None or isinstance(weight, Narrow) or weight.dtype != np.float32:
      return None
    key = buffer, tuple(map(int, tensor.shape)), axis
    if key not in self._known:
      bits = 8 if buffer in self._tables else self._bits
      self._known[key] = self._made(self._parts.value(tensor), axis, bits)
    return self._known[key]

  def _made(self, weight: Weight | None, axis: int, bits: int) -> _Integers | None:
    assert weight is not None
    scales = _scales(weight, axis, bits)
    if not np.isfinite(scales).all():
      return None
    integers = Weight(weight.shape, np.dtype(np.int8), lambda: _divided(weight, axis, scales))
    stored = integers.in_four_bits() if bits == 4 else integers
    return _Integers(self._parts.add(stored), scales, bits)

  def _tensor(self, graph: Any, like: Any, integers: _Integers) -> int:
    name = like.name + b"/quantized"
    number = add_tensor(graph, name, np.dtype(np.int8), like.shape, integers.buffer)
    if integers.bits == 4:
      graph.tensors[number].type = flatbuffer.tools().TensorType.INT4
    return number


def _scales(weight: Weight, axis: int, bits: int) -> np.ndarray:
  """f32[channels]: the largest magnitude is the largest integer."""
  array = weight.read()
  others = tuple(i for i in range(array.ndim) if i != axis % array.ndim)
  largest = np.maximum(array.max(others), -array.min(others))
  most = (1 << (bits - 1)) - 1
  return np.where(largest == 0, 1, largest / most).astype(np.float32)


def _divided(weight: Weight, axis: int, scales: np.ndarray) -> np.ndarray:
  """int8: round(weight / scale), a part at a time."""
  array = weight.read()
  result = np.empty(array.shape, np.int8)
  channels, integers = np.moveaxis(array, axis, 0), np.moveaxis(result, axis, 0)
  step = max(1, _ROWS * len(channels) // max(1, array.size))
  for start in range(0, len(channels), step):
    part = slice(start, start + step)
    factor = scales[part].reshape(-1, *[1] * (array.ndim - 1))
    integers[part] = np.rint(channels[part] / factor)
  return result
