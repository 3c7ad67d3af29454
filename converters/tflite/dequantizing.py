"""Constants of 4 and 8 bits behind DEQUANTIZE, with their quantization parameters.

LiteRT computes a DEQUANTIZE of a constant once, when it loads the model. Its kernels compute
(quantized - zero) * scale in float32, as the function does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..export.weights import Weight
from . import flatbuffer
from .parts import Parts, add_tensor, scaled_by

# Of blocks with one scale. A scale takes 12 bytes of the file: shorter blocks save less than half.
_LEAST_BLOCK = 8
_DEQUANTIZE = 5  # the version of the op that has channels
_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Narrow(Weight):
  """A weight that is computed of integers: (quantized - zero) * scale.

  Attributes:
    quantized: the integers, in int8 or uint8, in the shape of the weight.
    bits: of each integer, 4 or 8.
    zero, scale: what is subtracted and the factor, in the shape of the weight; None without.
  """

  quantized: Weight
  bits: int
  zero: Weight | None = None
  scale: Weight | None = None

  @classmethod
  def made(
    cls,
    dtype: np.dtype[Any],
    quantized: Weight,
    bits: int,
    zero: Weight | None = None,
    scale: Weight | None = None,
  ) -> Self:
    """The weight in this dtype."""

    def read() -> np.ndarray:
      values = quantized.read().astype(dtype)
      values = values if zero is None else values - zero.read().astype(dtype)
      return values if scale is None else values * scale.read()

    return cls(quantized.shape, np.dtype(dtype), read, quantized, bits, zero, scale)

  @property
  def nbytes(self) -> int:
    """Of the integers, which are in the file."""
    return self.quantized.nbytes

  def _moved(self, move: Callable[[Weight], Weight]) -> Self:
    """With all elements moved."""
    zero, scale = (None if one is None else move(one) for one in (self.zero, self.scale))
    return self.made(self.dtype, move(self.quantized), self.bits, zero, scale)

  def reshaped(self, shape: Sequence[int]) -> Self:
    return self._moved(lambda weight: weight.reshaped(shape))

  def transposed(self, order: Sequence[int]) -> Self:
    return self._moved(lambda weight: weight.transposed(order))

  def part(self, index: tuple[Any, ...]) -> Self:
    return self._moved(lambda weight: weight.part(index))

  def widened(self, dtype: np.dtype[Any]) -> Self | None:
    """In another dtype that has all of its values; None for others."""
    if self.scale is not None:
      return None
    if str(dtype) in _FLOATS:
      is_exact = self.zero is None or dtype == np.float32
    else:
      held = np.dtype(np.int8) if self.bits == 4 else self.quantized.dtype
      is_exact = np.can_cast(held, dtype) and (self.zero is None or dtype == np.int32)
    return self.made(dtype, self.quantized, self.bits, self.zero) if is_exact else None

  def shifted(self, zero: Weight) -> Self | None:
    """Minus integers; None for other numbers, and if something was subtracted or multiplied."""
    if self.zero is not None or self.scale is not None or self.dtype.itemsize < 4:
      return None
    values = zero.read()
    if not bool((np.abs(values) <= 255).all() and (values == np.round(values)).all()):
      return None
    whole = _broadcast(values.astype(np.int64), self.shape)
    return None if whole is None else self.made(self.dtype, self.quantized, self.bits, whole)

  def scaled(self, scale: Weight) -> Self | None:
    """Times float32 numbers; None if it is not float32, or would not stay narrow: if it has a scale
    already, and the numbers differ along other axes."""
    if {self.dtype, scale.dtype} != {np.dtype(np.float32)}:
      return None
    whole = _broadcast(scale.read(), self.shape)
    if whole is None:
      return None
    if self.scale is None:
      return self.made(self.dtype, self.quantized, self.bits, self.zero, whole)
    known, factor = _compact(self.scale.read()), _compact(whole.read())
    differs = [n > 1 and m == 1 for n, m in zip(factor.shape, known.shape, strict=True)]
    if known.size > 1 and any(differs):
      return None
    both = _broadcast(known * factor, self.shape)
    return self.made(self.dtype, self.quantized, self.bits, self.zero, both)

  def with_positive_scale(self) -> Self | None:
    """The same weight, whose integers have other signs where its scale is negative; None if that
    takes a larger integer, or the scale is 0."""
    if self.scale is None or (self.scale.read() > 0).all():
      return self
    scale, integers = self.scale.read(), self.quantized.read()
    if self.zero is not None or integers.dtype != np.int8 or not scale.all():
      return None
    if (integers[scale < 0] == -(1 << (self.bits - 1))).any():
      return None
    signed = np.where(scale < 0, -integers, integers)
    positive = _broadcast(np.abs(_compact(scale)), self.shape)
    return self.made(self.dtype, Weight.of_array(signed), self.bits, None, positive)


def _compact(values: np.ndarray) -> np.ndarray:
  """A broadcast array with size 1 along the axes on which it has one value."""
  return values[tuple(slice(None) if stride else slice(1) for stride in values.strides)]


def _broadcast(values: np.ndarray, shape: tuple[int, ...]) -> Weight | None:
  """A weight of this shape, which takes the memory of the values; None if the shape is another."""
  if np.broadcast_shapes(values.shape, shape) != shape:
    return None
  return Weight(shape, values.dtype, lambda: np.broadcast_to(values, shape))


@dataclass(frozen=True)
class Layout:
  """How the scales of a weight lie.

  Attributes:
    axis: of a tensor whose indices have a scale each.
    shape: of that tensor, for blocks; None for the shape of the weight.
    scales, zeros: of each index.
  """

  axis: int
  shape: tuple[int, int] | None
  scales: np.ndarray
  zeros: np.ndarray

  @classmethod
  def of(cls, weight: Narrow) -> Layout | None:
    """None if neither the tensor, nor the indices of an axis, nor blocks of the last axis have one
    scale each."""
    one, none = np.ones((), np.float32), np.zeros((), np.int64)
    scale = np.broadcast_to(one, weight.shape) if weight.scale is None else weight.scale.read()
    zero = np.broadcast_to(none, weight.shape) if weight.zero is None else weight.zero.read()
    several = [
      axis
      for axis, size in enumerate(weight.shape)
      if size > 1 and any(array.strides[axis] for array in (scale, zero))
    ]
    if len(several) > 1:
      return cls._of_blocks(weight.shape, scale, zero)
    if several:
      (axis,) = several
    elif weight.zero is not None and zero.any():
      # LiteRT 2.3: a kernel for one scale computes quantized * scale - zero * scale
      axis = int(np.argmin(weight.shape))
    else:
      return cls(0, None, scale.reshape(-1)[:1], zero.reshape(-1)[:1])
    first = tuple(slice(None) if i == axis else 0 for i in range(len(weight.shape)))
    return cls(axis, None, scale[first], zero[first])

  @classmethod
  def _of_blocks(cls, shape: tuple[int, ...], scale: np.ndarray, zero: np.ndarray) -> Layout | None:
    last = shape[-1]
    pair = [array.reshape(-1, last) for array in (scale, zero)]
    if all((rows == rows[:1]).all() for rows in pair):
      return cls(len(shape) - 1, None, *(rows[0] for rows in pair))
    changes = np.any([(rows[:, 1:] != rows[:, :-1]).any(0) for rows in pair], 0)
    size = math.gcd(last, *(np.flatnonzero(changes) + 1).tolist())
    if size < _LEAST_BLOCK:
      return None
    scales, zeros = (rows.reshape(-1, size)[:, 0] for rows in pair)
    rows_and_columns = math.prod(shape) // size, size
    is_matrix = rows_and_columns == shape
    return cls(0, None if is_matrix else rows_and_columns, scales, zeros)


def materialize(parts: Parts) -> None:
  """Writes the narrow weights of a model as constants of their integers, and the ops behind
  them."""
  writer = _Writer(parts)
  for graph in parts.model.subgraphs:
    writer.write(graph)


class _Writer:
  """Adds constants and ops to a model.

  Equal constants of several graphs are in the file once.
  """

  def __init__(self, parts: Parts):
    self._parts = parts
    self._layouts: dict[Any, Layout | None] = {}
    self._buffers: dict[Any, int] = {}
    self._owners: list[Weight] = []  # so that each keeps its id

  def write(self, graph: Any) -> None:
    """For one graph."""
    ends = [*graph.inputs, *graph.outputs]
    needed = set(map(int, [*ends, *(n for op in graph.operators for n in op.inputs)]))
    added: list[Any] = []
    for number, tensor in enumerate(list(graph.tensors)):
      weight = self._parts.weights.get(int(tensor.buffer))
      if number in needed and isinstance(weight, Narrow):
        added += self._of_tensor(graph, number, tensor)
    graph.operators = added + graph.operators

  def _of_tensor(self, graph: Any, number: int, tensor: Any) -> list[Any]:
    """The ops that compute the tensor."""
    buffer = int(tensor.buffer)
    weight, whole = self._parts.value(tensor), self._parts.weights[buffer]
    assert isinstance(weight, Narrow) and isinstance(whole, Narrow)
    if weight.dtype == weight.quantized.dtype and weight.zero is None:
      tensor.buffer = self._buffer(whole.quantized, _kind(weight.quantized), weight.quantized)
      return []
    if weight.dtype == np.float32:
      key = buffer, weight.shape
      if key not in self._layouts:
        self._layouts[key] = Layout.of(weight)
      if (layout := self._layouts[key]) is not None:
        return self._dequantized(graph, number, weight, whole.quantized, layout)
    elif weight.zero is None:
      source = self._tensor(graph, tensor.name, weight.quantized, whole.quantized, 8)
      tensor.buffer = 0
      return [self._parts.op("CAST", 1, [source], number)]
    tensor.buffer = self._buffer(whole, "", Weight(weight.shape, weight.dtype, weight.read))
    return []

  def _dequantized(
    self, graph: Any, number: int, weight: Narrow, owner: Weight, layout: Layout
  ) -> list[Any]:
    tensor = graph.tensors[number]
    shift = _shift(weight)
    integers = _signed(weight, shift)
    integers = integers if layout.shape is None else integers.reshaped(layout.shape)
    source = self._tensor(graph, tensor.name, integers, owner, weight.bits)
    graph.tensors[source].quantization = scaled_by(layout.scales, layout.zeros - shift, layout.axis)
    tensor.buffer = 0
    if layout.shape is None:
      return [self._parts.op("DEQUANTIZE", _DEQUANTIZE, [source], number)]
    rows = add_tensor(graph, tensor.name, weight.dtype, layout.shape)
    sizes = np.array(tensor.shape, np.int32)
    buffer = self._parts.add(Weight.of_array(sizes))
    shape = add_tensor(graph, tensor.name + b"/shape", sizes.dtype, sizes.shape, buffer)
    return [
      self._parts.op("DEQUANTIZE", _DEQUANTIZE, [source], rows),
      self._parts.op("RESHAPE", 1, [rows, shape], number),
    ]

  def _buffer(self, owner: Weight, kind: str, stored: Weight) -> int:
    """The number of the buffer of what is stored of its owner in a kind of tensor."""
    key = id(owner), kind
    if key not in self._buffers:
      self._owners.append(owner)
      self._buffers[key] = self._parts.add(stored)
    return self._buffers[key]

  def _tensor(self, graph: Any, name: bytes, integers: Weight, owner: Weight, bits: int) -> int:
    """The number of a new constant of integers."""
    kind = "INT4" if bits == 4 else _kind(integers)
    stored = integers.in_four_bits() if bits == 4 else integers
    buffer = self._buffer(owner, kind, stored)
    number = add_tensor(graph, name + b"/quantized", integers.dtype, integers.shape, buffer)
    graph.tensors[number].type = getattr(flatbuffer.tools().TensorType, kind)
    return number


def _kind(integers: Weight) -> str:
  return str(integers.dtype).upper()


def _shift(weight: Narrow) -> int:
  """What makes unsigned integers signed."""
  return 0 if weight.quantized.dtype == np.int8 else 1 << (weight.bits - 1)


def _signed(weight: Narrow, shift: int) -> Weight:
  """The integers minus the shift, as int8."""
  if not shift:
    return weight.quantized
  read = weight.quantized.read
  return Weight(
    weight.shape, np.dtype(np.int8), lambda: (read().astype(np.int16) - shift).astype(np.int8)
  )
