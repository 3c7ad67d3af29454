"""Weights of products in blocks of 4 or 8 bits, in a written ONNX model: MatMulNBits of ONNX
Runtime in place of MatMul.

A block has consecutive weights of one column and one scale. The format is that of
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#commicrosoftmatmulnbits,
without zero points: the integers are those of a symmetric range, plus half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..onnx import protos
from ..onnx.runtime import extra

_DOMAIN = "com.microsoft"
_BLOCK = 32  # weights
_AT_ONCE = 2**22  # weights that are rounded at a time
_LEAST = 1024  # in bytes: smaller weights stay inside of the model


@dataclass(frozen=True)
class _Matrix:
  """The second operand of a product: an initializer, widened and transposed as the model says.

  Attributes:
    name: of the initializer.
    transposed: whether the model transposes it.
  """

  name: str
  transposed: bool


def quantize(model: Path, bits: int, accuracy_level: int) -> int:
  """Rewrites a model whose file of weights, if it has one, stands beside it.

  Args:
    model: the .onnx file.
    bits: of a weight, 4 or 8.
    accuracy_level: of MatMulNBits: 1 computes in float32, 4 rounds the other operand to int8.

  Returns:
    the number of products.
  """
  return _Rewriting(model, bits, accuracy_level).rewrite()


class _Rewriting:
  """One model, which is read and written one weight at a time."""

  def __init__(self, file: Path, bits: int, accuracy_level: int):
    self._onnx = extra("onnx")
    self._file, self._bits, self._level = file, bits, accuracy_level
    self._model = self._onnx.load_model(str(file), load_external_data=False)
    self._graph = self._model.graph
    self._given = {one.name: one for one in self._graph.initializer}
    self._blocks: dict[_Matrix, tuple[str, str]] = {}

  def rewrite(self) -> int:
    locations = {self._location(one) for one in self._given.values()} - {""}
    beside = self._file.with_suffix(".weights")
    producers = {name: node for node in self._graph.node for name in node.output}
    chosen = {}
    for i, node in enumerate(self._graph.node):
      if node.op_type == "MatMul" and (matrix := self._matrix(node.input[1], producers)):
        chosen[i] = matrix
    with beside.open("wb") as self._stream:
      for i, matrix in chosen.items():
        self._replace(self._graph.node[i], matrix)
      self._drop_unread()
      kept = [one for one in self._graph.initializer if one.name in self._given]
      for tensor in kept:
        self._move(tensor)
    if not any(opset.domain == _DOMAIN for opset in self._model.opset_import):
      self._model.opset_import.add(domain=_DOMAIN, version=1)
    self._file.write_bytes(self._model.SerializeToString(deterministic=True))
    for location in locations:
      (self._file.parent / location).unlink()
    return len(chosen)

  def _matrix(self, name: str, producers: Mapping[str, Any]) -> _Matrix | None:
    """What a value is: a matrix of floats that the model may widen and transpose."""
    transposed = False
    while (node := producers.get(name)) is not None:
      if node.op_type == "Transpose":
        transposed = not transposed
      elif node.op_type not in ("Cast", "Identity"):
        return None
      name = node.input[0]
    tensor = self._given.get(name)
    types = self._onnx.TensorProto
    floats = (types.FLOAT, types.FLOAT16, types.BFLOAT16)
    if tensor is None or len(tensor.dims) != 2 or tensor.data_type not in floats:
      return None
    return _Matrix(name, transposed)

  def _replace(self, node: Any, matrix: _Matrix) -> None:
    sizes = list(self._given[matrix.name].dims)
    depth, columns = sizes[::-1] if matrix.transposed else sizes
    if matrix not in self._blocks:
      self._blocks[matrix] = self._rounded(matrix)
    made = self._onnx.helper.make_node(
      "MatMulNBits",
      [node.input[0], *self._blocks[matrix]],
      list(node.output),
      name=node.name,
      domain=_DOMAIN,
      K=depth,
      N=columns,
      bits=self._bits,
      block_size=_BLOCK,
      accuracy_level=self._level,
    )
    made.doc_string = node.doc_string
    node.CopyFrom(made)

  def _rounded(self, matrix: _Matrix) -> tuple[str, str]:
    """Adds the integers and the scales of a matrix, and returns their names."""
    array = self._array(self._given[matrix.name])
    rows = array if matrix.transposed else array.T  # a row for each column of the product
    step = max(1, _AT_ONCE // rows.shape[1])
    parts = [blocks(rows[i : i + step], self._bits) for i in range(0, len(rows), step)]
    name = f"{matrix.name}/{self._bits}_bits{'/transposed' * matrix.transposed}"
    names = name, f"{name}/scales"
    for one, arrays in zip(names, zip(*parts, strict=True), strict=True):
      tensor = self._onnx.TensorProto(name=one, dims=(len(rows), *arrays[0].shape[1:]))
      tensor.data_type = self._onnx.helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
      self._write(tensor, b"".join(array.tobytes() for array in arrays))
      self._graph.initializer.append(tensor)
    return names

  def _array(self, tensor: Any) -> np.ndarray:
    read: np.ndarray = self._onnx.numpy_helper.to_array(tensor, str(self._file.parent))
    return read

  def _write(self, tensor: Any, contents: bytes) -> None:
    helper = self._onnx.external_data_helper
    offset = -(-self._stream.tell() // 64) * 64
    self._stream.seek(offset)
    self._stream.write(contents)
    tensor.raw_data = contents[:0]
    helper.set_external_data(tensor, Path(self._stream.name).name, offset, len(contents))
    tensor.ClearField("raw_data")

  def _move(self, tensor: Any) -> None:
    """Moves a weight that stays as it is into the new file."""
    if not self._location(tensor):
      return
    contents = self._array(tensor).tobytes()
    if len(contents) >= _LEAST:
      self._write(tensor, contents)
      return
    del tensor.external_data[:]
    tensor.data_location = self._onnx.TensorProto.DEFAULT
    tensor.raw_data = contents

  def _location(self, tensor: Any) -> str:
    if tensor.data_location != self._onnx.TensorProto.EXTERNAL:
      return ""
    return str(next(entry.value for entry in tensor.external_data if entry.key == "location"))

  def _drop_unread(self) -> None:
    """Drops nodes and weights that nothing reads any more."""
    outputs = {one.name for one in self._graph.output}
    while True:
      read = outputs | {name for node in self._graph.node for name in protos.reads(node)}
      dead = [node for node in self._graph.node if read.isdisjoint(node.output)]
      for node in dead:
        self._graph.node.remove(node)
      if not dead:
        break
    for tensor in [one for one in self._graph.initializer if one.name not in read]:
      self._graph.initializer.remove(tensor)
    entries = [one for one in self._graph.value_info if one.name not in read]
    for entry in entries:
      self._graph.value_info.remove(entry)


def blocks(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
  """Rounds each block to integers of 4 or 8 bits.

  Args:
    rows: f[n,k], a row for each column of the product.
    bits: of an integer.

  Returns:
    (integers u8[n,blocks,bytes], the lower half of a byte first; scales f32[n,blocks]).
  """
  count, depth = rows.shape
  number = -(-depth // _BLOCK)
  padded = np.zeros((count, number * _BLOCK), np.float32)
  padded[:, :depth] = rows
  values = padded.reshape(count, number, _BLOCK)
  half = 1 << (bits - 1)
  largest = np.take_along_axis(values, np.abs(values).argmax(-1, keepdims=True), -1)
  scales = largest / -half  # the range has one integer more below zero
  steps = np.divide(values, scales, out=np.zeros_like(values), where=scales != 0)
  integers = np.clip(np.rint(steps) + half, 0, 2 * half - 1).astype(np.uint8)
  if bits == 4:
    integers = integers[..., ::2] | integers[..., 1::2] << 4
  return integers, scales[..., 0]
