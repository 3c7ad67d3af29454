"""Values that are known while the function is traced: constants, and integers that may be symbolic
dimensions.

A module computes sizes by ops on integers, and gives them to ops as operands. JAX takes sizes as
Python's integers and symbolic dimensions, so these ops are computed here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from jax.extend.core import InconclusiveDimensionOperation

from jax2tf.stablehlo.graph import Op, Value

MOST_ELEMENTS = 64  # of what is computed here; sizes have a few


class Sizes:
  """An array of integers or booleans of which some are symbolic dimensions.

  Attributes:
    values: an array of objects.
    dtype: of the value in the module.
  """

  def __init__(self, values: Any, dtype: Any):
    self.values: np.ndarray[Any, Any] = np.asarray(values, object)
    self.dtype = np.dtype(dtype)

  @property
  def shape(self) -> tuple[int, ...]:
    return self.values.shape

  @property
  def ndim(self) -> int:
    return self.values.ndim


@dataclass(frozen=True)
class PerPlatform:
  """A number that depends on the platform for which the program is compiled.

  Attributes:
    values: of each platform.
  """

  values: tuple[tuple[str, int], ...]
  dtype = np.dtype(np.int32)
  shape = ()

  @classmethod
  def indices(cls, platforms: Sequence[str]) -> PerPlatform:
    """The position of each platform."""
    return cls(tuple((platform, index) for index, platform in enumerate(platforms)))

  def chosen(self, functions: Callable[[int], Callable[..., Any]]) -> Any:
    """What the function of the platform's number gives, chosen when the program is compiled."""
    by_platform = {platform: functions(value) for platform, value in self.values}
    return lax.platform_dependent(**by_platform)


def is_static(value: Any) -> bool:
  """Whether a value is known while tracing."""
  return isinstance(value, np.ndarray | np.generic | Sizes | PerPlatform)


def is_small(value: Any) -> bool:
  """Whether a value may be sizes: it is static, and has few integers or booleans."""
  is_number = is_static(value) and not isinstance(value, PerPlatform)
  return is_number and _is_small(value.shape, value.dtype)


def settled(values: Any, dtype: Any) -> np.ndarray[Any, Any] | Sizes:
  """A NumPy array if each entry is a number, which wraps as the op does; else Sizes."""
  values, dtype = np.asarray(values, object), np.dtype(dtype)
  if any(map(is_symbolic_dim, values.flat)):
    return Sizes(values, dtype)
  if dtype.kind == "b":
    return values.astype(bool)
  numbers = [_wrapped(int(each), dtype) for each in values.flat]
  return np.array(numbers, dtype).reshape(values.shape)


def _wrapped(number: int, dtype: np.dtype[Any]) -> int:
  bits = 8 * dtype.itemsize
  if dtype.kind == "u":
    return number % (1 << bits)
  half = 1 << (bits - 1)
  return (number + half) % (1 << bits) - half


def array(value: Any) -> Any:
  """The value as an array of NumPy or JAX."""
  if isinstance(value, PerPlatform):
    return value.chosen(lambda number: lambda: jnp.asarray(number, value.dtype))
  if not isinstance(value, Sizes):
    return value
  parts = [jnp.asarray(each, value.dtype) for each in value.values.flat]
  return jnp.stack(parts).reshape(value.shape) if value.shape else parts[0]


def sizes(value: Any) -> tuple[Any, ...] | None:
  """A vector as sizes; None if it depends on data."""
  if isinstance(value, jax.core.Tracer):
    return None
  if isinstance(value, Sizes):
    entries = value.values
  elif isinstance(value, np.ndarray | np.generic | jax.Array):
    entries = np.asarray(value)
  else:
    return None
  return tuple(each if is_symbolic_dim(each) else int(each) for each in entries.flat)


def number(value: Any) -> int | None:
  """The number of a scalar; None if it depends on data or is symbolic."""
  entries = sizes(value)
  if entries is None or len(entries) != 1 or is_symbolic_dim(entries[0]):
    return None
  return int(entries[0])


def _quotient(left: Any, right: Any) -> Any:
  """Truncated; sizes are not negative, so for them it is floored."""
  if is_symbolic_dim(left) or is_symbolic_dim(right):
    return left // right
  if right == 0:
    return -1
  magnitude = abs(int(left)) // abs(int(right))
  return magnitude if (left < 0) == (right < 0) else -magnitude


def _remainder(left: Any, right: Any) -> Any:
  if is_symbolic_dim(left) or is_symbolic_dim(right):
    return left % right
  return left if right == 0 else int(left) - int(right) * _quotient(left, right)


def _larger(left: Any, right: Any) -> Any:
  return jax.core.max_dim(left, right) if _any_symbolic(left, right) else max(left, right)


def _smaller(left: Any, right: Any) -> Any:
  return jax.core.min_dim(left, right) if _any_symbolic(left, right) else min(left, right)


def _any_symbolic(*values: Any) -> bool:
  return any(map(is_symbolic_dim, values))


def _sign(value: Any) -> int:
  if is_symbolic_dim(value):  # an inconclusive comparison raises, and the op is computed as data
    return 1 if value >= 1 else 0 if value == 0 else -1
  return int(value > 0) - int(value < 0)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
  "EQ": operator.eq,
  "NE": operator.ne,
  "LT": operator.lt,
  "LE": operator.le,
  "GT": operator.gt,
  "GE": operator.ge,
}
_OF_INTEGERS: dict[str, Callable[..., Any]] = {
  "add": operator.add,
  "subtract": operator.sub,
  "multiply": operator.mul,
  "divide": _quotient,
  "remainder": _remainder,
  "maximum": _larger,
  "minimum": _smaller,
  "negate": operator.neg,
  "sign": _sign,
  "select": lambda condition, left, right: left if condition else right,
  "clamp": lambda low, value, high: _smaller(_larger(value, low), high),
}
_OF_BOOLEANS: dict[str, Callable[..., Any]] = {
  "and": lambda left, right: bool(left) and bool(right),
  "or": lambda left, right: bool(left) or bool(right),
  "not": lambda value: not value,
  "xor": lambda left, right: bool(left) != bool(right),
  "select": lambda condition, left, right: left if condition else right,
}


def entries_of(value: Any) -> np.ndarray[Any, Any]:
  """The entries of a value that is known while tracing, as objects."""
  return value.values if isinstance(value, Sizes) else np.asarray(value).astype(object)


def folded(op: Op, operands: Sequence[Any]) -> np.ndarray[Any, Any] | Sizes | None:
  """The result of an op on few integers that are known; None for another op."""
  result = op.results[0] if len(op.results) == 1 else None
  if result is None or not may_be_sizes(result) or not operands:
    return None
  if not all(map(is_small, operands)):
    return None
  entries = [entries_of(operand) for operand in operands]
  shape: Any = result.shape
  try:
    rearranged = moved(op, entries, shape)
    if rearranged is not None:
      return settled(rearranged, result.dtype)
    elementwise = _elementwise(op, [each.dtype for each in operands])
    if elementwise is None:
      return None
    return settled(mapped(elementwise, entries, shape), result.dtype)
  except InconclusiveDimensionOperation:
    return None


def may_be_sizes(value: Value) -> bool:
  """Whether a value of the module may be sizes."""
  return value.type is not None and _is_small(value.shape, value.type.dtype)


def _is_small(shape: Any, dtype: Any) -> bool:
  """Whether an array has few elements, which are whole integers of NumPy or booleans."""
  if dtype is None or None in shape or math.prod(shape) > MOST_ELEMENTS:
    return False
  return np.dtype(dtype).kind in "iub" and np.dtype(dtype).name not in (
    "int2",
    "int4",
    "uint2",
    "uint4",
  )


def mapped(function: Callable[..., Any], entries: Any, shape: Any) -> np.ndarray[Any, Any]:
  """What a function gives for each row of entries, which broadcast to the shape."""
  entries = np.broadcast_arrays(*entries)
  results = np.empty(math.prod(shape), object)
  for index, row in enumerate(zip(*(each.flat for each in entries), strict=True)):
    results[index] = function(*row)
  return results.reshape(shape)


def _elementwise(op: Op, dtypes: Sequence[Any]) -> Callable[..., Any] | None:
  is_boolean = all(np.dtype(dtype).kind == "b" for dtype in dtypes)
  if op.name == "compare":
    return COMPARISONS[op.attributes["comparison_direction"]]
  if op.name == "convert":
    if op.results[0].dtype.kind == "b":
      return lambda value: value if isinstance(value, bool) else value != 0
    return lambda value: value if is_symbolic_dim(value) else int(value)
  if is_boolean:
    return _OF_BOOLEANS.get(op.name)
  return _OF_INTEGERS.get(op.name)


def moved(op: Op, entries: Any, shape: Any) -> np.ndarray[Any, Any] | None:
  """The result of an op that only moves elements; None for another op."""
  result: Any = None
  if op.name == "reshape":
    result = entries[0].reshape(shape)
  elif op.name == "concatenate":
    result = np.concatenate(entries, op.attributes["dimension"])
  elif op.name == "slice":
    bounds = (op.attributes[key] for key in ("start_indices", "limit_indices", "strides"))
    result = entries[0][tuple(slice(*bound) for bound in zip(*bounds, strict=True))]
  elif op.name == "broadcast_in_dim":
    inner = [1] * len(shape)
    for axis, size in zip(op.attributes["broadcast_dimensions"], entries[0].shape, strict=True):
      inner[axis] = size
    result = np.broadcast_to(entries[0].reshape(inner), shape)
  return result


def dynamic_dimension(value: Any, axis: int) -> np.ndarray[Any, Any] | Sizes:
  """A size of an array, as the int32 that StableHLO has for it."""
  return settled(scalar(value.shape[axis]), np.int32)


def scalar(entry: Any) -> np.ndarray[Any, Any]:
  """One entry as an array of objects, which NumPy does not look into."""
  values = np.empty((), object)
  values[()] = entry
  return values
