"""MLIR's types, attributes and constants as Python's and NumPy's."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from jax2tf.stablehlo.graph import Tensor

_INTEGERS = {
  f"{prefix}{bits}": np.dtype(getattr(np if bits >= 8 else ml_dtypes, f"{kind}{bits}"))
  for bits in (2, 4, 8, 16, 32, 64)
  for prefix, kind in (("i", "int"), ("si", "int"), ("ui", "uint"))
}
_SMALL_FLOATS = {
  "f8E3M4": "float8_e3m4",
  "f8E4M3": "float8_e4m3",
  "f8E4M3FN": "float8_e4m3fn",
  "f8E4M3FNUZ": "float8_e4m3fnuz",
  "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
  "f8E5M2": "float8_e5m2",
  "f8E5M2FNUZ": "float8_e5m2fnuz",
  "f8E8M0FNU": "float8_e8m0fnu",
  "f4E2M1FN": "float4_e2m1fn",
}
DTYPES: dict[str, np.dtype[Any]] = {
  "i1": np.dtype(bool),
  "index": np.dtype(np.int64),
  "bf16": np.dtype(ml_dtypes.bfloat16),
  "f16": np.dtype(np.float16),
  "f32": np.dtype(np.float32),
  "f64": np.dtype(np.float64),
  "complex<f32>": np.dtype(np.complex64),
  "complex<f64>": np.dtype(np.complex128),
  **_INTEGERS,
  **{text: np.dtype(getattr(ml_dtypes, name)) for text, name in _SMALL_FLOATS.items()},
}
# MLIR's bindings give these as buffers.
_BUFFERED = frozenset("?bhilqBHILQefd")
# MLIR leaves the elements out where it prints a constant that has more, if it is asked to.
_MOST_PRINTED, _LEFT_OUT = 1024, "dense_resource<__elided__>"


def tensor_type(mlir_type: Any) -> Tensor | None:
  """The type of a value; None for what is no ranked tensor."""
  try:
    ranked = ir.RankedTensorType(mlir_type)
  except (ValueError, TypeError):
    return None
  shape = tuple(
    None if ranked.is_dynamic_dim(axis) else ranked.get_dim_size(axis)
    for axis in range(ranked.rank)
  )
  return Tensor(shape, DTYPES.get(str(ranked.element_type)), str(mlir_type))


def constant(op: Any) -> np.ndarray[Any, Any]:
  """The array of a constant.

  Raises:
    ValueError: its elements are of a type that JAX lacks.
  """
  kind = tensor_type(op.results[0].type)
  if kind is None or kind.dtype is None:
    raise ValueError(f"elements of type {op.results[0].type}")
  shape: Any = kind.shape
  if kind.dtype.char in _BUFFERED:
    array = np.array(ir.DenseElementsAttr(op.attributes["value"]))
    return array.astype(kind.dtype, copy=False).reshape(shape)
  elements = _many(op, math.prod(shape), kind.dtype)
  if elements is None:
    text = op.get_asm(enable_debug_info=False, large_elements_limit=None)
    elements = _elements(text, kind.dtype)
  is_splat = elements.size == 1 and math.prod(shape) != 1
  return np.broadcast_to(elements.reshape(()), shape) if is_splat else elements.reshape(shape)


def _many(op: Any, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
  """The elements of a constant that has many, from its bytecode: MLIR writes their bytes in one
  piece, and prints them as text that takes many times as much memory. None for a constant of few,
  or where another piece has the same size.
  """
  text = op.get_asm(enable_debug_info=False, large_elements_limit=_MOST_PRINTED)
  if _LEFT_OUT not in text:
    return None
  pieces = _Pieces(count * dtype.itemsize)
  op.write_bytecode(pieces)
  return _packed(pieces.kept[0], dtype) if len(pieces.kept) == 1 else None


class _Pieces:
  """A file that keeps what is written to it in pieces of one size."""

  def __init__(self, size: int):
    self._size = size
    self.kept: list[bytes] = []

  def write(self, piece: bytes) -> None:
    if len(piece) == self._size:
      self.kept.append(piece)


def _elements(text: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
  """The elements of a printed constant: bfloat16, complex, and those of 8 bits or fewer have no
  buffers."""
  body = text[text.index("dense<") + len("dense<") : text.rindex("> : ")]
  if body.startswith('"0x'):
    return _packed(bytes.fromhex(body[3:-1]), dtype)
  words = re.findall(r"0x[0-9A-Fa-f]+|[-+]?\d[\d.eE+-]*|true|false", body)
  if dtype.kind == "c":
    part = np.dtype(f"f{dtype.itemsize // 2}")
    return np.array([_number(word, part) for word in words], part).view(dtype)
  return np.array([_number(word, dtype) for word in words], object).astype(dtype)


def _packed(raw: bytes, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
  return np.frombuffer(raw, np.uint8).view(dtype)


def _number(word: str, dtype: np.dtype[Any]) -> Any:
  if word in ("true", "false"):
    return word == "true"
  is_integer = dtype.name.startswith(("int", "uint"))
  if word.startswith("0x") and not is_integer:
    return np.array(int(word, 16), f"u{dtype.itemsize}").view(dtype)[()]
  return int(word, 0) if is_integer else float(word)


_ENUMERATION = re.compile(r"^#\w+<\w+ ([\w-]+)>$")


def enumeration(attribute: Any) -> str | None:
  """The word of an enumeration, `LT` of `#stablehlo<comparison_direction LT>`."""
  match = _ENUMERATION.match(str(attribute))
  return match[1] if match else None


def converted(attribute: Any) -> Any:
  """An attribute: a bool, int, float, str, list, dict, array, the word of an enumeration, or a
  namespace of dimension numbers. What is none of these stays as MLIR's text."""
  kind: Any
  for kind in (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr):
    if _is_a(kind, attribute):
      return kind(attribute).value
  for kind in (ir.DenseBoolArrayAttr, ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr):
    if _is_a(kind, attribute):
      return list(kind(attribute))
  if _is_a(ir.DenseElementsAttr, attribute):
    return np.array(attribute)
  if _is_a(ir.ArrayAttr, attribute):
    return [converted(each) for each in ir.ArrayAttr(attribute)]
  if _is_a(ir.DictAttr, attribute):
    return dictionary(ir.DictAttr(attribute))
  for kind, names in _DIMENSION_NUMBERS.items():
    if _is_a(kind, attribute):
      return _namespace(kind(attribute), names)
  return enumeration(attribute) or str(attribute)


def _is_a(kind: Any, attribute: Any) -> bool:
  return isinstance(attribute, kind) or (hasattr(kind, "isinstance") and kind.isinstance(attribute))


def dictionary(attributes: Any) -> dict[str, Any]:
  """The attributes of a dictionary, or of an op."""
  pairs: dict[str, Any] = {}
  for each in attributes:
    name = each if isinstance(each, str) else each.name
    pairs[name] = converted(attributes[name])
  return pairs


_DIMENSION_NUMBERS: dict[Any, tuple[str, ...]] = {
  stablehlo.DotDimensionNumbers: (
    "lhs_batching_dimensions",
    "rhs_batching_dimensions",
    "lhs_contracting_dimensions",
    "rhs_contracting_dimensions",
  ),
  stablehlo.GatherDimensionNumbers: (
    "offset_dims",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "start_index_map",
    "index_vector_dim",
  ),
  stablehlo.ScatterDimensionNumbers: (
    "update_window_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "scattered_dims_to_operand_dims",
    "index_vector_dim",
  ),
  stablehlo.ConvDimensionNumbers: (
    "input_batch_dimension",
    "input_feature_dimension",
    "input_spatial_dimensions",
    "kernel_input_feature_dimension",
    "kernel_output_feature_dimension",
    "kernel_spatial_dimensions",
    "output_batch_dimension",
    "output_feature_dimension",
    "output_spatial_dimensions",
  ),
}


def _namespace(attribute: Any, names: tuple[str, ...]) -> SimpleNamespace:
  values = {name: getattr(attribute, name) for name in names}
  return SimpleNamespace(
    **{name: value if isinstance(value, int) else tuple(value) for name, value in values.items()}
  )
