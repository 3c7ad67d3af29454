"""A .tflite model whose large weights stand behind the flatbuffer, where its buffers have their
offsets and sizes.

They are written one by one from the arrays, so the file takes no memory, and may have more than the
2 GiB that a flatbuffer holds. LiteRT 2.3 maps them into memory.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp  # which tells NumPy of bfloat16
import numpy as np

from ..export.weights import Weight
from . import flatbuffer

_ALIGNMENT = 64  # of weights in the file, for LiteRT's kernels read them where they are mapped
_UNKNOWN = 2**40  # an offset or a size that takes the bytes of any other
# {product: the axis of its weights that has channels}
CHANNELS = {"FULLY_CONNECTED": 0, "CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}
DEQUANTIZES_FLOAT16 = 3  # the version of DEQUANTIZE that does


@dataclass
class Parts:
  """A model in parts.

  Attributes:
    model: the ModelT of the schema.
    size: the size of the flatbuffer in bytes, approximately.
    weights: {buffer: its contents}, for those that stand behind it, or are bytes of one that does.
  """

  model: Any
  size: int
  weights: dict[int, Weight] = field(default_factory=dict)
  _transposed: dict[Any, int] = field(default_factory=dict)
  _inside: dict[int, tuple[int, int]] = field(default_factory=dict)  # {buffer: (other, offset)}

  @classmethod
  def of(cls, contents: bytes) -> Parts:
    """From a .tflite model."""
    return cls(flatbuffer.unpacked(contents), len(contents))

  def add(self, weight: Weight) -> int:
    """Adds a buffer behind the flatbuffer, and returns its number."""
    self.model.buffers.append(flatbuffer.tools().BufferT())
    number = len(self.model.buffers) - 1
    self.weights[number] = weight
    return number

  def replaced(self, buffer: int, weight: Weight) -> int:
    """Adds a buffer for a weight that is made of another one: behind the flatbuffer if that is."""
    return self.add(weight) if buffer in self.weights else self.add_inside(weight.read())

  def add_inside(self, array: np.ndarray) -> int:
    """Adds a buffer of the flatbuffer, and returns its number."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    self.model.buffers.append(flatbuffer.tools().BufferT(data=data))
    return len(self.model.buffers) - 1

  def transposed(self, buffer: int, shape: tuple[int, ...], order: tuple[int, ...]) -> int:
    """The buffer with the axes of another one, of this shape, in this order."""
    key = buffer, shape, order
    if key not in self._transposed:
      weight = self.weights[buffer].reshaped(shape)
      self._transposed[key] = self.add(weight.transposed(order))
    return self._transposed[key]

  def rows(self, buffer: int, shape: tuple[int, int], start: int, stop: int) -> int:
    """A buffer of some rows of a matrix of this shape in another one, whose bytes it shares in the
    file."""
    whole = self.weights[buffer].reshaped(shape)
    number = self.add(whole.part((slice(start, stop),)))
    self._inside[number] = buffer, start * whole.nbytes // shape[0]
    return number

  def sweep(self) -> None:
    """Takes their values from tensors that no op needs, and their data from buffers that no tensor
    has."""
    for graph in self.model.subgraphs:
      ends = [*graph.inputs, *graph.outputs]
      ends += [n for op in graph.operators for n in (*op.inputs, *op.outputs)]
      needed = set(map(int, ends))
      for number, tensor in enumerate(graph.tensors):
        tensor.buffer = tensor.buffer if number in needed else 0
    used = {int(tensor.buffer) for graph in self.model.subgraphs for tensor in graph.tensors}
    used |= {int(entry.buffer) for entry in self.model.metadata or ()}
    used |= {whole for number, (whole, _) in self._inside.items() if number in used}
    self.weights = {number: weight for number, weight in self.weights.items() if number in used}
    for number, buffer in enumerate(self.model.buffers):
      buffer.data = buffer.data if number in used else None

  def kind(self, op: Any) -> str:
    """The name of a builtin op, or "CUSTOM"."""
    code = self.model.operatorCodes[op.opcodeIndex]
    return _builtin_ops()[max(code.builtinCode, code.deprecatedBuiltinCode)]

  def widens(self, graph: Any, op: Any) -> bool:
    """Whether the op of a graph widens a large weight, at each call."""
    return self.kind(op) == "CAST" and int(graph.tensors[op.inputs[0]].buffer) in self.weights

  def widening(self, graph: Any) -> dict[int, Any]:
    """{tensor: the op that widens a large weight to it}."""
    return {int(op.outputs[0]): op for op in graph.operators if self.widens(graph, op)}

  def drop_unread(self, graph: Any) -> None:
    """Removes the ops that widen large weights for no op and no output of the graph."""
    read = reads(graph)
    graph.operators = [
      op for op in graph.operators if not self.widens(graph, op) or int(op.outputs[0]) in read
    ]

  def code(self, kind: str, version: int) -> int:
    """The number of a builtin op in the model, which it adds if it is new."""
    tools = flatbuffer.tools()
    number = getattr(tools.BuiltinOperator, kind)
    for i, code in enumerate(self.model.operatorCodes):
      if max(code.builtinCode, code.deprecatedBuiltinCode) == number:
        code.version = max(code.version, version)
        return i
    # Older readers have the first 127 ops in another field.
    deprecated = min(number, 127)
    self.model.operatorCodes.append(
      tools.OperatorCodeT(builtinCode=number, deprecatedBuiltinCode=deprecated, version=version)
    )
    return len(self.model.operatorCodes) - 1

  def op(self, kind: str, version: int, inputs: Sequence[int], output: int) -> Any:
    """A new op without options."""
    return flatbuffer.tools().OperatorT(
      opcodeIndex=self.code(kind, version),
      inputs=np.array(inputs, np.int32),
      outputs=np.array([output], np.int32),
    )

  def value(self, tensor: Any) -> Weight | None:
    """The value of a constant; None for other tensors and for strings."""
    shape = tuple(int(n) for n in (() if tensor.shape is None else tensor.shape))
    if (weight := self.weights.get(int(tensor.buffer))) is not None:
      return weight if weight.shape == shape else weight.reshaped(shape)
    data, dtype = self.model.buffers[tensor.buffer].data, dtype_of(tensor)
    if data is None or dtype is None or not len(data):
      return None
    return Weight.of_array(np.asarray(data, np.uint8).view(dtype).reshape(shape))

  def write(self, path: Path) -> None:
    """Writes the file, with what its ops need."""
    self.sweep()
    places = dict.fromkeys(self.weights, (_UNKNOWN, _UNKNOWN))
    end = len(self._packed(places))
    alone = {n: weight for n, weight in self.weights.items() if n not in self._inside}
    for number, weight in alone.items():
      start = -(-end // _ALIGNMENT) * _ALIGNMENT
      places[number] = start, weight.nbytes
      end = start + weight.nbytes
    for number in self.weights.keys() - alone.keys():
      whole, offset = self._inside[number]
      places[number] = places[whole][0] + offset, self.weights[number].nbytes
    with path.open("wb") as file:
      file.write(self._packed(places))
      for number, weight in alone.items():
        file.seek(places[number][0])
        array = np.ascontiguousarray(weight.read())
        file.write(array.reshape(-1).view(np.uint8).data)

  def _packed(self, places: dict[int, tuple[int, int]]) -> bytes:
    for number, (offset, size) in places.items():
      buffer = self.model.buffers[number]
      buffer.offset, buffer.size = offset, size
    return flatbuffer.packed(self.model, self.size)


def reads(graph: Any) -> Counter[int]:
  """{tensor: how many operands of ops and outputs of the graph it is}."""
  counts = Counter(int(n) for op in graph.operators for n in op.inputs)
  counts.update(map(int, graph.outputs))
  return counts


def add_tensor(
  graph: Any, name: bytes, dtype: np.dtype[Any], shape: Sequence[int], buffer: int = 0
) -> int:
  """The number of a new tensor of a graph, of no value or of that of a buffer."""
  tools = flatbuffer.tools()
  kind = getattr(tools.TensorType, str(dtype).upper())
  tensor = tools.TensorT(shape=np.array(shape, np.int32), type=kind, buffer=buffer, name=name)
  tensor.hasRank = True
  graph.tensors.append(tensor)
  return len(graph.tensors) - 1


def scaled_by(scales: Any, zeros: Any = 0, axis: int = 0) -> Any:
  """The quantization parameters of a tensor: (integer - zero) * scale.

  Args:
    scales: one number, or one for each index of the axis.
    zeros: the same of the zeros, or one number for all.
    axis: of the scales.
  """
  scale = np.array(scales, np.float32).reshape(-1)
  zero = np.broadcast_to(np.array(zeros, np.int64), scale.shape).copy()
  return flatbuffer.tools().schema_fb.QuantizationParametersT(
    scale=scale, zeroPoint=zero, quantizedDimension=axis
  )


@functools.cache
def _builtin_ops() -> dict[int, str]:
  names = vars(flatbuffer.tools().BuiltinOperator)
  return {number: name for name, number in names.items() if name.isupper()}


def dtype_of(tensor: Any) -> np.dtype[Any] | None:
  """NumPy's dtype of a tensor; None for strings, resources and 4-bit integers."""
  names = {n: name for name, n in vars(flatbuffer.tools().TensorType).items() if name.isupper()}
  name = names[tensor.type].lower()
  if name in _WITHOUT_ARRAYS:
    return None
  return np.dtype(jnp.bfloat16) if name == "bfloat16" else np.dtype(name)


_WITHOUT_ARRAYS = ("string", "resource", "variant", "int4", "uint4", "int2")
