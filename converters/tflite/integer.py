"""Integer kernels of LiteRT for a model whose tensors have known ranges.

While TensorFlow's converter runs, a FakeQuantWithMinMaxArgs stands where the function quantizes a
tensor; the converter makes QUANTIZE and DEQUANTIZE of it. The scale there is the number of the
range. An op whose operands are dequantized, and whose result is quantized, becomes the integer op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ..export.ranges import Range
from ..export.weights import Weight
from . import flatbuffer
from .dequantizing import Layout, Narrow
from .parts import CHANNELS, Parts, add_tensor, scaled_by

# Ops whose results have the elements of the first operand, or averages of them.
_MOVES = {"RESHAPE", "TRANSPOSE", "EXPAND_DIMS", "SQUEEZE", "SLICE", "STRIDED_SLICE", "UNPACK"}
_MOVES |= {"GATHER", "TILE", "BROADCAST_TO", "MAX_POOL_2D", "AVERAGE_POOL_2D"}
_JOINS = "CONCATENATION"  # whose operands have the scale of its result
# Ops with a scale of each operand and of the result.
_COMPUTED = {"ADD", "SUB", "MUL", "BATCH_MATMUL", "MEAN", "RELU", "LEAKY_RELU", "GELU"}
_COMPUTED |= {"HARD_SWISH"}
# {op: (scale, zero) of its result, which its kernel requires}
_FIXED = {"SOFTMAX": (1 / 256, -128), "LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
_QUANTIZE = _MEAN = 2  # the versions of the ops that take int8


@dataclass
class Ranges:
  """The ranges of a model.

  Attributes:
    known: of tensors, in the order of their numbers.
    of_constants: of constants, which have no number: the converter would round them to it.
  """

  known: list[Range] = field(default_factory=list)
  of_constants: list[Range] = field(default_factory=list)

  def noted(self, found: Range, result: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """What stands for `x` in this range while the converter runs.

    Args:
      found: the range.
      result: `x` as the function quantizes it.
      x: a tensor.
    """
    if not found.is_of_tensor:
      return result
    if _is_constant(x):
      self.of_constants.append(found)
      return result
    self.known.append(found)
    number = float(len(self.known))
    return tf.raw_ops.FakeQuantWithMinMaxArgs(inputs=x, min=-128 * number, max=127 * number)

  def of(self, tensor: Any) -> Range:
    """The range of a tensor that QUANTIZE returns."""
    return self.known[round(float(tensor.quantization.scale[0])) - 1]

  def of_constant(self, values: np.ndarray) -> Range | None:
    """A range in which a constant is exact."""
    return next((one for one in self.of_constants if _is_exact(values, one)), None)


def _is_constant(x: tf.Tensor) -> bool:
  """Whether the tensor is computed of constants and variables alone, which the converter knows."""
  waiting, seen = [x.op], set()
  while waiting:
    op = waiting.pop()
    if op.type == "Placeholder" and op.outputs[0].dtype != tf.resource:
      return False
    if op not in seen:
      seen.add(op)
      waiting += [operand.op for operand in op.inputs]
  return True


def _is_exact(values: np.ndarray, found: Range) -> bool:
  whole = found.quantized(values).astype(np.float32) - found.zero.astype(np.float32)
  return np.array_equal(whole * found.scale, values)


def quantize(parts: Parts, ranges: Ranges) -> None:
  """Makes integer ops of those whose operands and results have ranges."""
  for graph in parts.model.subgraphs:
    _Rewriting(parts, ranges, graph).run()
  parts.sweep()


class _Rewriting:
  """Of one graph."""

  def __init__(self, parts: Parts, ranges: Ranges, graph: Any):
    self._parts, self._ranges, self._graph = parts, ranges, graph
    self._readers: dict[int, list[Any]] = {}
    for op in graph.operators:
      for n in dict.fromkeys(map(int, op.inputs)):
        self._readers.setdefault(n, []).append(op)
    self._ends = set(map(int, graph.outputs))
    self._integers: dict[int, int] = {}  # {float tensor: the one of its integers}
    self._renamed: dict[int, int] = {}
    self._floats: set[int] = set()
    self._operators: list[Any] = []
    self._absorbed: set[int] = set()  # the ids of ops that others compute

  def run(self) -> None:
    for op in self._graph.operators:
      if id(op) in self._absorbed:
        continue
      kind = self._parts.kind(op)
      if kind == "QUANTIZE":
        self._quantized(op)
      elif kind == "DEQUANTIZE" and self._has_scale(int(op.inputs[0])):
        source = int(op.inputs[0])
        self._integers[int(op.outputs[0])] = self._renamed.get(source, source)
      elif not self._is_integer(kind, op):
        for n in op.inputs:
          self._as_float(int(n))
        self._operators.append(op)
    for n in self._graph.outputs:
      self._as_float(int(n))
    self._graph.operators = self._operators

  def _has_scale(self, number: int) -> bool:
    parameters = self._graph.tensors[number].quantization
    return parameters is not None and parameters.scale is not None

  def _quantized(self, op: Any) -> None:
    source, result = int(op.inputs[0]), int(op.outputs[0])
    tensor = self._graph.tensors[result]
    found = self._ranges.of(tensor)
    self._set(tensor, float(found.scale[0]), int(found.zero[0]))
    known = self._integers.get(source)
    if known is not None and self._parameters(known) == self._parameters(result):
      self._renamed[result] = known
      return
    op.inputs = np.array([source if known is None else known], np.int32)
    op.opcodeIndex = self._parts.code("QUANTIZE", _QUANTIZE)
    self._operators.append(op)

  def _set(self, tensor: Any, scale: float, zero: int) -> None:
    tensor.type = flatbuffer.tools().TensorType.INT8
    tensor.quantization = scaled_by(scale, zero)

  def _parameters(self, number: int) -> tuple[float, int]:
    quantization = self._graph.tensors[number].quantization
    return float(np.float32(quantization.scale[0])), int(quantization.zeroPoint[0])

  def _as_float(self, number: int) -> None:
    """Dequantizes a tensor that an op of floats reads."""
    if number in self._integers and number not in self._floats:
      self._floats.add(number)
      self._operators.append(self._parts.op("DEQUANTIZE", 2, [self._integers[number]], number))

  def _is_integer(self, kind: str, op: Any) -> bool:
    """Whether the op became one of integers."""
    first = int(op.inputs[0]) if len(op.inputs) else -1
    if kind in CHANNELS:
      return self._is_product(kind, op)
    if kind == "GATHER":
      self._take_table(first)
    if kind in _MOVES and first in self._integers:
      scale_and_zero = self._parameters(self._integers[first])
      return self._rewritten(op, [first], [scale_and_zero] * len(op.outputs))
    if kind in _FIXED and first in self._integers:
      return self._rewritten(op, [first], [_FIXED[kind]])
    if kind == _JOINS:
      return self._is_joined(op)
    if kind == "SUM" and first in self._integers:
      return self._is_mean(op)
    if kind not in _COMPUTED:
      return False
    operands = (
      [first, int(op.inputs[1])] if kind in ("ADD", "SUB", "MUL", "BATCH_MATMUL") else [first]
    )
    after = self._after(int(op.outputs[0]))
    constants = {n: self._constant(n) for n in operands if n not in self._integers}
    if after is None or not all(constants.values()):
      return False
    for n, found in constants.items():
      self._take_constant(n, found)
    return self._rewritten(op, operands, [after])

  def _is_mean(self, op: Any) -> bool:
    """Whether the sum and its quotient by the number of elements became a MEAN."""
    source, result = int(op.inputs[0]), int(op.outputs[0])
    readers = self._readers.get(result, [])
    if len(readers) != 1 or result in self._ends or self._parts.kind(readers[0]) != "MUL":
      return False
    (quotient,) = readers
    (other,) = [int(n) for n in quotient.inputs if int(n) != result] or [-1]
    factor = self._parts.value(self._graph.tensors[other]) if other >= 0 else None
    sizes = [np.prod(self._graph.tensors[n].shape, dtype=np.int64) for n in (source, result)]
    after = self._after(int(quotient.outputs[0]))
    if factor is None or factor.size != 1 or after is None or not all(sizes):
      return False
    if quotient.builtinOptions.fusedActivationFunction:
      return False
    if np.float32(factor.read().reshape(())) != np.float32(sizes[1] / sizes[0]):
      return False
    op.opcodeIndex = self._parts.code("MEAN", _MEAN)
    op.outputs = quotient.outputs
    self._absorbed.add(id(quotient))
    return self._rewritten(op, [source], [after])

  def _is_joined(self, op: Any) -> bool:
    after = self._after(int(op.outputs[0]))
    if after is None or op.builtinOptions.fusedActivationFunction:
      return False
    op.inputs = np.array([self._in_range(int(n), after) for n in op.inputs], np.int32)
    return self._rewritten(op, [], [after])

  def _in_range(self, number: int, scale_and_zero: tuple[float, int]) -> int:
    """The integers of a tensor with these parameters."""
    known = self._integers.get(number)
    if known is not None and self._parameters(known) == scale_and_zero:
      return known
    new = self._integer_tensor(number, *scale_and_zero)
    source = number if known is None else known
    self._operators.append(self._parts.op("QUANTIZE", _QUANTIZE, [source], new))
    return new

  def _constant(self, number: int) -> Range | None:
    """The range of a constant of float32 in which integers are exact; None for other tensors."""
    weight = self._parts.value(self._graph.tensors[number])
    if weight is None or weight.dtype != np.float32:
      return None
    values = weight.read()
    if not np.isfinite(values).all():
      return None
    if values.size != 1:
      return self._ranges.of_constant(values)
    magnitude = np.abs(values.reshape(1)) / np.float32(127)
    scale = np.where(magnitude > 0, magnitude, np.float32(1))
    return Range(scale, np.zeros(1, np.int64), axis=None, bits=8, is_narrow=False)

  def _take_constant(self, number: int, found: Range | None) -> None:
    """Makes the integers of a constant in its range."""
    weight = self._parts.value(self._graph.tensors[number])
    assert weight is not None and found is not None
    integers = Weight.of_array(found.quantized(weight.read()))
    self._store(number, integers, float(found.scale[0]), int(found.zero[0]))

  def _store(self, number: int, integers: Weight, scale: float, zero: int) -> None:
    """Adds the integers of a constant to the file."""
    new = self._integer_tensor(number, scale, zero)
    self._graph.tensors[new].buffer = self._parts.add(integers)
    self._integers[number] = new

  def _after(self, number: int) -> tuple[float, int] | None:
    """The finest range in which all that reads the tensor quantizes it, maybe after it has moved
    it. Coarser ones take the integers."""
    found = set()
    waiting = [number]
    while waiting:
      tensor = waiting.pop()
      readers = self._readers.get(tensor, [])
      if tensor in self._ends or not readers:
        return None
      for op in readers:
        kind = self._parts.kind(op)
        if kind == "QUANTIZE":
          one = self._ranges.of(self._graph.tensors[op.outputs[0]])
          found.add((float(one.scale[0]), int(one.zero[0])))
        elif kind == _JOINS or (kind in _MOVES and int(op.inputs[0]) == tensor):
          waiting += map(int, op.outputs)
        else:
          return None
    return min(found, default=None)

  def _rewritten(
    self, op: Any, operands: Sequence[int], results: Sequence[tuple[float, int]]
  ) -> bool:
    """The op with integers in place of these operands, and of its results."""
    inputs = list(map(int, op.inputs))
    for n in dict.fromkeys(operands):
      inputs = [self._integers[n] if i == n else i for i in inputs]
    op.inputs = np.array(inputs, np.int32)
    for n, (scale, zero) in zip(map(int, op.outputs), results, strict=True):
      self._integers[n] = self._integer_tensor(n, scale, zero)
    op.outputs = np.array([self._integers[int(n)] for n in op.outputs], np.int32)
    self._operators.append(op)
    return True

  def _integer_tensor(self, number: int, scale: float, zero: int) -> int:
    """A new tensor for the integers of another one."""
    tensor = self._graph.tensors[number]
    new = add_tensor(self._graph, tensor.name + b"/integers", np.dtype(np.int8), tensor.shape)
    self._graph.tensors[new].shapeSignature = tensor.shapeSignature
    self._set(self._graph.tensors[new], scale, zero)
    return new

  def _is_product(self, kind: str, op: Any) -> bool:
    first = int(op.inputs[0])
    tensor = self._graph.tensors[op.inputs[1]]
    stored, after = self._parts.value(tensor), self._after(int(op.outputs[0]))
    if first not in self._integers or after is None or not isinstance(stored, Narrow):
      return False
    weight = stored.with_positive_scale()
    if weight is None:
      return False
    if weight.bits == 8 and weight.quantized.dtype != np.int8:
      return False  # the kernels take int8 only, in which uint8 has no 200
    layout = Layout.of(weight)
    if layout is None or layout.shape is not None or layout.zeros.any():
      return False
    if layout.scales.size > 1 and layout.axis != CHANNELS[kind]:
      return False
    scale, _ = self._parameters(self._integers[first])
    scales = (np.float32(scale) * layout.scales).astype(np.float32)
    inputs = list(map(int, op.inputs))
    inputs[1] = self._weights(tensor, weight, layout)
    if len(inputs) > 2 and inputs[2] >= 0:
      bias = self._parts.value(self._graph.tensors[inputs[2]])
      if bias is None:
        return False
      inputs[2] = self._bias(inputs[2], bias.read(), scales)
    op.inputs = np.array(inputs, np.int32)
    return self._rewritten(op, [first], [after])

  def _take_table(self, number: int) -> None:
    """Takes the integers of a constant that has one scale, of which an op takes rows."""
    stored = self._parts.value(self._graph.tensors[number])
    if number in self._integers or not isinstance(stored, Narrow) or stored.bits != 8:
      return
    weight = stored.with_positive_scale() if stored.dtype == np.float32 else None
    layout = None if weight is None else Layout.of(weight)
    if weight is None or layout is None or weight.quantized.dtype != np.int8:
      return
    parameters = set(zip(layout.scales.tolist(), layout.zeros.tolist(), strict=True))
    if len(parameters) == 1:
      self._store(number, weight.quantized, *parameters.pop())

  def _weights(self, tensor: Any, weight: Narrow, layout: Layout) -> int:
    name, buffer = tensor.name + b"/integers", self._parts.add(weight.quantized)
    new = add_tensor(self._graph, name, np.dtype(np.int8), weight.shape, buffer)
    self._graph.tensors[new].quantization = scaled_by(layout.scales, layout.zeros, layout.axis)
    return new

  def _bias(self, number: int, bias: np.ndarray, scales: np.ndarray) -> int:
    """int32: round(bias / (scale of the operand * scale of the weights))."""
    limits = np.iinfo(np.int32)
    whole = np.round(bias.astype(np.float64) / scales)
    integers = np.clip(whole, limits.min, limits.max).astype(np.int32)
    name = self._graph.tensors[number].name + b"/integers"
    buffer = self._parts.add(Weight.of_array(integers))
    new = add_tensor(self._graph, name, integers.dtype, integers.shape, buffer)
    self._graph.tensors[new].quantization = scaled_by(scales)
    return new
