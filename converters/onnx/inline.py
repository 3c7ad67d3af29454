"""Puts the weights of a model, which are in a second file, into the file of the model.

The message is written piece by piece: protobuf would hold it three times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .runtime import extra

_AT_ONCE = 2**24  # bytes that are copied from file to file
_LENGTH_DELIMITED = 2  # protobuf's wire type of messages and bytes


def write(model: Path, file: Path) -> None:
  """Writes the model of a file, whose large weights are in another file, with all weights inside.

  Args:
    model: the file of the model; its weights are beside it.
    file: the new file.
  """
  onnx = extra("onnx")
  proto = onnx.load_model(str(model), load_external_data=False)
  outside = onnx.TensorProto.EXTERNAL
  weights = [tensor for tensor in proto.graph.initializer if tensor.data_location == outside]
  inside = [tensor for tensor in proto.graph.initializer if tensor.data_location != outside]
  del proto.graph.initializer[:]
  proto.graph.initializer.extend(inside)
  graph = proto.graph.SerializeToString(deterministic=True)
  proto.ClearField("graph")
  heads = [_head(tensor) for tensor in weights]
  sizes = [_length(tensor) for tensor in weights]
  size = len(graph) + sum(map(len, heads)) + sum(sizes)
  with file.open("wb") as stream:
    stream.write(proto.SerializeToString(deterministic=True))
    stream.write(_field(onnx.ModelProto, "graph", size))
    stream.write(graph)
    for tensor, head in zip(weights, heads, strict=True):
      stream.write(head)
      for part in _contents(tensor, model.parent):
        stream.write(part)


def _head(tensor: Any) -> bytes:
  """What stands before the bytes of a weight, as an initializer of a graph."""
  onnx = extra("onnx")
  alone = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
  message = alone.SerializeToString() + _field(onnx.TensorProto, "raw_data", _length(tensor))
  return _field(onnx.GraphProto, "initializer", len(message) + _length(tensor)) + message


def _contents(tensor: Any, folder: Path) -> Iterator[bytes]:
  """The bytes of a weight."""
  info = {entry.key: entry.value for entry in tensor.external_data}
  left = _length(tensor)
  with (folder / info["location"]).open("rb") as stream:
    stream.seek(int(info["offset"]))
    while left and (part := stream.read(min(left, _AT_ONCE))):
      left -= len(part)
      yield part


def _length(tensor: Any) -> int:
  return next(int(entry.value) for entry in tensor.external_data if entry.key == "length")


def _field(message: Any, name: str, size: int) -> bytes:
  """What stands before the contents of a field of this size."""
  number = message.DESCRIPTOR.fields_by_name[name].number
  return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size)


def _varint(number: int) -> bytes:
  """Seven bits a byte, the lowest first; all but the last byte have the highest bit."""
  encoded = bytearray()
  while number > 127:
    encoded.append(number & 127 | 128)
    number >>= 7
  return bytes([*encoded, number])
