"""Reads the protocol buffers in the attributes of `Xla*` ops: dimension numbers and precisions.

They are messages of (packed) integers alone, whose classes TensorFlow does not publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

# {field of the StableHLO attribute: its number in xla_data.proto}
_GATHER = {
  "offset_dims": 1,
  "collapsed_slice_dims": 2,
  "start_index_map": 3,
  "operand_batching_dims": 5,
  "start_indices_batching_dims": 6,
}
_SCATTER = {
  "update_window_dims": 1,
  "inserted_window_dims": 2,
  "scattered_dims_to_operand_dims": 3,
  "input_batching_dims": 5,
  "scatter_indices_batching_dims": 6,
}
_INDEX_VECTOR = {"index_vector_dim": 4}
_DOT = {
  "lhs_contracting_dimensions": 1,
  "rhs_contracting_dimensions": 2,
  "lhs_batching_dimensions": 3,
  "rhs_batching_dimensions": 4,
}
_CONVOLUTION = {
  "kernel_spatial_dimensions": 6,
  "input_spatial_dimensions": 11,
  "output_spatial_dimensions": 12,
}
_OF_CONVOLUTION = {
  "kernel_input_feature_dimension": 3,
  "kernel_output_feature_dimension": 4,
  "input_batch_dimension": 7,
  "input_feature_dimension": 8,
  "output_batch_dimension": 9,
  "output_feature_dimension": 10,
}
_PRECISIONS = ("DEFAULT", "HIGH", "HIGHEST")


def gather_dimensions(message: bytes) -> SimpleNamespace:
  """xla.GatherDimensionNumbers, as the attribute of `stablehlo.gather`."""
  return _namespace(message, _GATHER, _INDEX_VECTOR)


def scatter_dimensions(message: bytes) -> SimpleNamespace:
  """xla.ScatterDimensionNumbers, as the attribute of `stablehlo.scatter`."""
  return _namespace(message, _SCATTER, _INDEX_VECTOR)


def dot_dimensions(message: bytes) -> SimpleNamespace:
  """xla.DotDimensionNumbers, as the attribute of `stablehlo.dot_general`."""
  return _namespace(message, _DOT, {})


def convolution_dimensions(message: bytes) -> SimpleNamespace:
  """xla.ConvolutionDimensionNumbers, as the attribute of `stablehlo.convolution`."""
  return _namespace(message, _CONVOLUTION, _OF_CONVOLUTION)


def precisions(message: bytes) -> list[str]:
  """The precision of each operand in an xla.PrecisionConfig; empty for the default.

  Raises:
    ValueError: JAX has no such precision.
  """
  numbers = _integers(message).get(1, [])
  if any(number >= len(_PRECISIONS) for number in numbers):
    raise ValueError(f"a precision of number {max(numbers)}")
  return [_PRECISIONS[number] for number in numbers]


def _namespace(
  message: bytes, lists: Mapping[str, int], numbers: Mapping[str, int]
) -> SimpleNamespace:
  fields = _integers(message)
  found = {name: tuple(fields.get(field, ())) for name, field in lists.items()}
  single = {name: fields.get(field, [0])[-1] for name, field in numbers.items()}
  return SimpleNamespace(**found, **single)


def _integers(message: bytes) -> dict[int, list[int]]:
  """{number of a field: its integers}.

  Raises:
    ValueError: the message is cut, or has other fields than integers.
  """
  fields: dict[int, list[int]] = {}
  place = 0
  while place < len(message):
    key, place = _varint(message, place)
    values = fields.setdefault(key >> 3, [])
    if key & 7 == 0:
      value, place = _varint(message, place)
      values.append(value)
      continue
    if key & 7 != 2:
      raise ValueError(f"a field of wire type {key & 7}")
    length, place = _varint(message, place)
    end = place + length
    while place < end:
      value, place = _varint(message, place)
      values.append(value)
  return fields


def _varint(message: bytes, place: int) -> tuple[int, int]:
  """An integer, and the place after it."""
  value = shift = 0
  while place < len(message):
    byte = message[place]
    value |= (byte & 127) << shift
    place, shift = place + 1, shift + 7
    if byte < 128:
      return value, place
  raise ValueError("it is cut")
