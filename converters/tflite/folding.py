"""Computes ops on constant weights, as TensorFlow's converter does it for constants: when the file
is written, one weight at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from ..export.weights import Weight
from .dequantizing import Narrow
from .parts import DEQUANTIZES_FLOAT16, Parts, dtype_of

# (options of the op, its operands) -> its results, or None if it stays
_Rule: TypeAlias = Callable[..., Sequence[Weight] | None]

_ALIASES = ("RESHAPE", "EXPAND_DIMS", "SQUEEZE")
# In bytes: those of operands that are compared to find equal ops.
_SMALL = 4096


class Folding:
  """Folds the ops of a model whose operands are constants, one of them a large weight.

  Equal ops, of several signatures, have one result.
  """

  def __init__(self, parts: Parts, *, widens: bool = False):
    """`widens`: also floats to wider ones, for the file will have neither."""
    self._parts, self._widens = parts, widens
    self._results: dict[Any, list[int]] = {}

  def fold(self, graph: Any, op: Any) -> bool:
    """Whether the op is no longer needed, because its results are constants."""
    tensors = [graph.tensors[n] for n in op.inputs if n >= 0]
    if not any(int(tensor.buffer) in self._parts.weights for tensor in tensors):
      return False
    kind, outputs = self._parts.kind(op), [graph.tensors[n] for n in op.outputs]
    shapes = [_sizes(tensor) for tensor in outputs]
    values = [self._parts.value(tensor) for tensor in tensors]
    if kind == "CAST" and not self._widens and _widens_float16(tensors[0], outputs[0]):
      # LiteRT computes it once, and XNNPACK reads float16 as it is.
      op.opcodeIndex = self._parts.code("DEQUANTIZE", DEQUANTIZES_FLOAT16)
      op.builtinOptions, op.builtinOptionsType = None, 0
      return False
    operands = [value for value in values if value is not None]
    if len(operands) < len(tensors):
      return False
    if kind in _ALIASES and math.prod(shapes[0]) == operands[0].size:
      outputs[0].buffer = tensors[0].buffer
      return True
    if kind == "TRANSPOSE":
      order = tuple(int(axis) for axis in operands[1].read())
      outputs[0].buffer = self._parts.transposed(int(tensors[0].buffer), operands[0].shape, order)
      return True
    if (rule := _RULES.get(kind)) is None:
      return False
    options = repr(vars(op.builtinOptions)) if op.builtinOptions else ""
    dtypes = [dtype_of(tensor) for tensor in outputs]
    key = kind, options, *map(str, dtypes), *map(self._key, tensors, operands)
    if key not in self._results:
      is_wider = kind == "CAST" and self._widens and _are_floats([operands[0].dtype, *dtypes])
      results = (
        [operands[0].cast(dtypes[0])] if is_wider else rule(op.builtinOptions, dtypes, *operands)
      )
      if results is None or (_nbytes(results) > _nbytes(operands) and not is_wider):
        return False
      if [result.shape for result in results] != shapes:
        return False
      self._results[key] = [self._parts.add(result) for result in results]
    for tensor, buffer in zip(outputs, self._results[key], strict=True):
      tensor.buffer = buffer
    return True

  def _key(self, tensor: Any, operand: Weight) -> Any:
    """What equal operands have in common."""
    if int(tensor.buffer) in self._parts.weights or operand.nbytes > _SMALL:
      return int(tensor.buffer), operand.shape
    return operand.read().tobytes(), operand.shape, operand.dtype


def _sizes(tensor: Any) -> tuple[int, ...]:
  return tuple(int(n) for n in (() if tensor.shape is None else tensor.shape))


def _nbytes(weights: Sequence[Weight]) -> int:
  return sum(weight.nbytes for weight in weights)


def _widens_float16(x: Any, y: Any) -> bool:
  return dtype_of(x) == np.float16 and dtype_of(y) == np.float32


def _cast(_: Any, dtypes: Sequence[np.dtype[Any]], x: Weight) -> list[Weight] | None:
  """Rounds, and keeps what widens in the program, so that the file has the narrow dtype."""
  (dtype,) = dtypes
  if isinstance(x, Narrow):
    wide = x.widened(dtype)
    return None if wide is None else [wide]
  is_narrower = dtype.itemsize <= x.dtype.itemsize
  return [x.cast(dtype)] if is_narrower and _are_floats([x.dtype, dtype]) else None


def _are_floats(dtypes: Sequence[Any]) -> bool:
  return all(dtype is not None and jnp.issubdtype(dtype, np.floating) for dtype in dtypes)


def _elementwise(function: Callable[..., np.ndarray]) -> _Rule:
  """Of float32, which NumPy rounds as LiteRT does."""

  def rule(options: Any, dtypes: Any, x: Weight, y: Weight) -> list[Weight] | None:
    if options.fusedActivationFunction or {x.dtype, y.dtype} != {np.dtype(np.float32)}:
      return None
    shape = np.broadcast_shapes(x.shape, y.shape)
    return [Weight(shape, x.dtype, lambda: function(x.read(), y.read()))]

  return rule


def _subtracted(options: Any, dtypes: Any, x: Weight, y: Weight) -> Sequence[Weight] | None:
  shifted = x.shifted(y) if isinstance(x, Narrow) and _is_plain(options) else None
  return [shifted] if shifted is not None else _elementwise(np.subtract)(options, dtypes, x, y)


def _multiplied(options: Any, dtypes: Any, x: Weight, y: Weight) -> Sequence[Weight] | None:
  for weight, scale in ((x, y), (y, x)):
    scaled = weight.scaled(scale) if isinstance(weight, Narrow) and _is_plain(options) else None
    if scaled is not None:
      return [scaled]
  return _elementwise(np.multiply)(options, dtypes, x, y)


def _is_plain(options: Any) -> bool:
  return not options.fusedActivationFunction


def _slice(_: Any, dtypes: Any, x: Weight, begin: Weight, size: Weight) -> list[Weight]:
  pairs = zip(begin.read().tolist(), size.read().tolist(), strict=True)
  return [x.part(tuple(slice(b, None if n < 0 else b + n) for b, n in pairs))]


def _strided_slice(
  options: Any, dtypes: Any, x: Weight, begin: Weight, end: Weight, strides: Weight
) -> list[Weight] | None:
  if options.ellipsisMask or options.newAxisMask or getattr(options, "offset", False):
    return None
  index: list[Any] = []
  numbers = (one.read().tolist() for one in (begin, end, strides))
  for i, (first, last, step) in enumerate(zip(*numbers, strict=True)):
    bit = 1 << i
    if options.shrinkAxisMask & bit:
      index.append(first)
    else:
      start = None if options.beginMask & bit else first
      index.append(slice(start, None if options.endMask & bit else last, step))
  return [x.part(tuple(index))]


def _split(options: Any, dtypes: Any, axis: Weight, x: Weight) -> list[Weight]:
  along = int(axis.read()) % len(x.shape)
  size = x.shape[along] // options.numSplits
  before = (slice(None),) * along
  return [x.part((*before, slice(i * size, (i + 1) * size))) for i in range(options.numSplits)]


def _unpack(options: Any, dtypes: Any, x: Weight) -> list[Weight]:
  along = options.axis % len(x.shape)
  return [x.part((*(slice(None),) * along, i)) for i in range(options.num)]


def _joined(options: Any, dtypes: Any, *parts: Weight) -> list[Weight] | None:
  if options.fusedActivationFunction:
    return None
  along = options.axis % len(parts[0].shape)
  shape = list(parts[0].shape)
  shape[along] = sum(part.shape[along] for part in parts)
  read = lambda: np.concatenate([part.read() for part in parts], along)  # noqa: E731
  return [Weight(tuple(shape), parts[0].dtype, read)]


_RULES: Mapping[str, _Rule] = {
  "CAST": _cast,
  "ADD": _elementwise(np.add),
  "SUB": _subtracted,
  "MUL": _multiplied,
  "DIV": _elementwise(np.divide),
  "SLICE": _slice,
  "STRIDED_SLICE": _strided_slice,
  "SPLIT": _split,
  "UNPACK": _unpack,
  "CONCATENATION": _joined,
}
