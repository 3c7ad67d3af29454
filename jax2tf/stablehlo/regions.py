"""What the region of a reduction, a scatter or a sort computes, by its structure.

A region becomes an expression, a tree of tuples in a normal form: operands of commutative ops in
one order, and no GT and GE. So two regions with equal expressions compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf.stablehlo.graph import Block, Op, Value

Expression = tuple[Any, ...]

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_SWAPPED = {"GT": "LT", "GE": "LE"}


def argument(index: int) -> Expression:
  return ("argument", index)


def apply(name: str, *operands: Expression) -> Expression:
  """An op without attributes."""
  if name in _COMMUTATIVE:
    operands = tuple(sorted(operands, key=repr))
  return (name, *operands)


def compare(
  direction: str, left: Expression, right: Expression, *, total: bool = False
) -> Expression:
  """A comparison; `total` says that it is in the total order of floats."""
  if direction in _SWAPPED:
    direction, left, right = _SWAPPED[direction], right, left
  if direction in ("EQ", "NE"):
    left, right = sorted((left, right), key=repr)
  return (f"{direction} TOTALORDER" if total else direction, left, right)


def literal(value: np.ndarray[Any, Any]) -> Expression:
  """A constant, by its bits."""
  return ("constant", value.dtype.name, value.shape, value.tobytes())


def expressions(block: Block) -> list[Expression]:
  """The results of a region."""
  known = {value: argument(index) for index, value in enumerate(block.arguments)}
  return [_expression(value, known) for value in block.results]


def _expression(value: Value, known: dict[Value, Expression]) -> Expression:
  if value not in known:
    known[value] = ("outer", id(value)) if value.owner is None else _of_op(value, known)
  return known[value]


def _of_op(value: Value, known: dict[Value, Expression]) -> Expression:
  op = value.owner
  assert op is not None
  if op.name == "constant":
    return literal(op.attributes["value"])
  operands = [_expression(each, known) for each in op.operands]
  if op.name == "compare":
    total = op.get("compare_type") == "TOTALORDER" and _is_float(op.operands[0])
    return compare(op.attributes["comparison_direction"], operands[0], operands[1], total=total)
  if op.attributes or op.blocks or len(op.results) != 1 or op.name == "convert":
    return ("op", id(op), value.index, *operands)
  return apply(op.name, *operands)


def _is_float(value: Value) -> bool:
  return bool(jnp.issubdtype(value.dtype, jnp.floating))


def second(left: Any, right: Any) -> Any:
  """What a scatter computes that puts its updates in place of the elements."""
  return right


_COMBINATIONS: dict[str, Callable[..., Any]] = {
  "add": lax.add,
  "and": lax.bitwise_and,
  "maximum": lax.max,
  "minimum": lax.min,
  "multiply": lax.mul,
  "or": lax.bitwise_or,
  "xor": lax.bitwise_xor,
}
# Numbers of one bit.
_OF_BOOLEANS: dict[str, Callable[..., Any]] = {
  "add": lax.bitwise_or,
  "and": lax.bitwise_and,
  "maximum": lax.bitwise_or,
  "minimum": lax.bitwise_and,
  "multiply": lax.bitwise_and,
  "or": lax.bitwise_or,
  "xor": lax.bitwise_xor,
}


def combination(block: Block, dtype: Any) -> Callable[..., Any] | None:
  """The function of `lax` that a region of two scalars is, or `second`; None for another one."""
  if len(block.arguments) != 2 or len(block.results) != 1:
    return None
  (result,) = expressions(block)
  if result == argument(1):
    return second
  table = _OF_BOOLEANS if np.dtype(dtype).kind == "b" else _COMBINATIONS
  both = argument(0), argument(1)
  return next((function for name, function in table.items() if result == apply(name, *both)), None)


def identity(function: Callable[..., Any], dtype: Any) -> np.ndarray[Any, Any]:
  """The value that a combination leaves every other one as it is with."""
  if function in (lax.add, lax.bitwise_or, lax.bitwise_xor):
    return np.zeros((), dtype)
  if function is lax.mul:
    return np.ones((), dtype)
  if function is lax.bitwise_and:
    return np.array(True) if np.dtype(dtype).kind == "b" else np.array(-1).astype(dtype)
  is_largest = function is lax.max
  if jnp.issubdtype(dtype, jnp.floating):
    return np.array(-np.inf if is_largest else np.inf).astype(dtype)
  limits = jnp.iinfo(dtype)
  return np.array(limits.min if is_largest else limits.max).astype(dtype)


def extreme_index(block: Block, dtypes: Any) -> str | None:
  """ "argmax" or "argmin" for the region that JAX writes for it; None for another one.

  Of pairs of a value and an index it takes NaN first, then the better value, then the smaller
  index.
  """
  if len(block.arguments) != 4 or np.dtype(dtypes[1]).kind not in "iu":
    return None
  found = expressions(block)
  left, left_index, right, right_index = map(argument, range(4))
  is_nan = compare("NE", left, left)
  is_earlier = apply("and", compare("EQ", left, right), compare("LT", left_index, right_index))
  for name, direction in (("argmax", "GT"), ("argmin", "LT")):
    is_better = compare(direction, left, right)
    takes_left = apply("or", is_better, is_nan)
    takes_index = apply("or", takes_left, is_earlier)
    wanted = [
      apply("select", takes_left, left, right),
      apply("select", takes_index, left_index, right_index),
    ]
    if found == wanted:
      return name
  return None


@dataclass(frozen=True)
class SortKey:
  """One of the values that a comparator compares, the first first.

  Attributes:
    value: it, computed from the left one of two elements.
    operand: of the sort, if the key is that operand's element; else None.
    is_descending: whether larger ones come first.
    is_total: whether floats are in their total order, with NaNs and both zeros told apart.
    is_canonical: whether it is `operand`, its zeros and NaNs made one each, as JAX does it.
  """

  value: Value
  operand: int | None
  is_descending: bool
  is_total: bool
  is_canonical: bool


def sort_keys(block: Block) -> list[SortKey] | None:
  """The keys by which a comparator compares elements lexicographically; None for another one."""
  if len(block.results) != 1:
    return None
  known = {value: argument(index) for index, value in enumerate(block.arguments)}
  keys: list[SortKey] = []
  value: Value | None = block.results[0]
  while value is not None:
    _expression(value, known)
    first, equal, value = _first_key(value)
    key = None if first is None else _key(first, known)
    if key is None or (equal is not None and not _is_equality(equal, first, known)):
      return None
    keys.append(key)
  return keys


def _first_key(value: Value) -> tuple[Op | None, Op | None, Value | None]:
  """Of `a < b`, or of `a < b or (a == b and rest)`, the comparisons and the rest."""
  op = value.owner
  if op is None or op.name == "compare":
    return op, None, None
  if op.name == "or":
    for less, both in (op.operands, op.operands[::-1]):
      if less.owner is None or less.owner.name != "compare":
        continue
      if both.owner is None or both.owner.name != "and":
        continue
      for equal, rest in (both.owner.operands, both.owner.operands[::-1]):
        if equal.owner is not None and equal.owner.get("comparison_direction") == "EQ":
          return less.owner, equal.owner, rest
  return None, None, None


def _is_equality(equal: Op, less: Op | None, known: dict[Value, Expression]) -> bool:
  """Whether the values that are equal are the ones that `less` compares."""
  assert less is not None
  same_order = equal.get("compare_type") == less.get("compare_type")
  compared, equated = ({known[each] for each in op.operands} for op in (less, equal))
  return same_order and compared == equated


def _key(less: Op, known: dict[Value, Expression]) -> SortKey | None:
  direction = less.get("comparison_direction")
  if direction not in ("LT", "GT"):
    return None
  left, right = less.operands
  sides = [_sides(known[each]) for each in (left, right)]
  if sides == [{0}, {1}]:
    is_descending = direction == "GT"
  elif sides == [{1}, {0}]:
    left, right, is_descending = right, left, direction == "LT"
  else:
    return None
  if _of_right(known[left]) != known[right]:
    return None
  plain = known[left][1] // 2 if known[left][0] == "argument" else None
  canonical = _canonical_operand(known[left], left) if _is_number(left) else None
  return SortKey(
    value=left,
    operand=plain if canonical is None else canonical,
    is_descending=is_descending,
    is_total=less.get("compare_type") == "TOTALORDER" and _is_float(left),
    is_canonical=canonical is not None,
  )


def _is_number(value: Value) -> bool:
  return value.type is not None and value.type.dtype is not None


def _sides(expression: Expression) -> set[int]:
  """Which of the two elements an expression depends on: 0 the left one, 1 the right one; 2 for what
  has no structure."""
  if expression[0] == "argument":
    return {expression[1] % 2}
  if expression[0] == "constant":
    return set()
  if expression[0] in ("outer", "op"):
    return {2}
  return set().union(*(_sides(each) for each in expression[1:]))


def _of_right(expression: Expression) -> Expression:
  """The expression for the right element, in normal form."""
  if expression[0] == "argument":
    return argument(expression[1] + 1)
  if expression[0] == "constant":
    return expression
  name, operands = expression[0], [_of_right(each) for each in expression[1:]]
  if name.split()[0] in ("EQ", "NE", "LT", "LE"):
    return compare(name.split()[0], operands[0], operands[1], total=name.endswith("TOTALORDER"))
  return apply(name, *operands)


def _canonical_operand(expression: Expression, value: Value) -> int | None:
  """The operand that JAX's comparator makes canonical: its zeros 0.0, its NaNs one NaN."""
  if not _is_float(value):
    return None
  for leaf in _arguments(expression):
    nan = np.array(np.nan).astype(value.dtype)
    zero = np.zeros((), value.dtype)
    without_zero = apply("select", compare("EQ", leaf, literal(zero)), literal(zero), leaf)
    wanted = apply("select", compare("NE", leaf, leaf), literal(nan), without_zero)
    if expression == wanted:
      return int(leaf[1]) // 2
  return None


def _arguments(expression: Expression) -> set[Expression]:
  if expression[0] == "argument":
    return {expression}
  if expression[0] in ("constant", "outer", "op"):
    return set()
  return set().union(*(_arguments(each) for each in expression[1:]))
