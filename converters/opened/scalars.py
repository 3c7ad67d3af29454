"""TensorFlow functions of scalars, the reducers and comparators of `Xla*` ops, as StableHLO's
regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf.messages import Message
from jax2tf.stablehlo.graph import Block, Op, Tensor, Value

from . import places

_ELEMENTWISE = {
  "Abs": "abs",
  "Add": "add",
  "AddV2": "add",
  "BitwiseAnd": "and",
  "BitwiseOr": "or",
  "BitwiseXor": "xor",
  "Exp": "exponential",
  "Expm1": "exponential_minus_one",
  "Imag": "imag",
  "Invert": "not",
  "Log": "log",
  "Log1p": "log_plus_one",
  "LogicalAnd": "and",
  "LogicalNot": "not",
  "LogicalOr": "or",
  "Maximum": "maximum",
  "Minimum": "minimum",
  "Mul": "multiply",
  "Neg": "negate",
  "Real": "real",
  "RealDiv": "divide",
  "Select": "select",
  "SelectV2": "select",
  "Sqrt": "sqrt",
  "Sub": "subtract",
  "Tanh": "tanh",
}
_COMPARISONS = {
  "Equal": "EQ",
  "Greater": "GT",
  "GreaterEqual": "GE",
  "Less": "LT",
  "LessEqual": "LE",
  "NotEqual": "NE",
}
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_SHIFTS = {"RightShift": "shift_right_arithmetic", "LeftShift": "shift_left"}


def scalar(dtype: Any) -> Tensor:
  """The type of a scalar."""
  return Tensor((), np.dtype(dtype), f"tensor<{np.dtype(dtype).name}>")


def block(functions: Mapping[str, Any], name: str) -> Block:
  """The region of a function of scalars.

  Args:
    functions: {name: FunctionDef}.
    name: of the function.

  Raises:
    NotImplementedError: it has ops that are not elementwise, or that XLA computes in another way.
  """
  definition = functions[name]
  arguments = []
  for index, argument in enumerate(definition.signature.input_arg):
    kind = scalar(tf.as_dtype(argument.type).as_numpy_dtype)
    arguments.append(Value(kind, kind.text, None, index))
  region = Block(arguments)
  region.results = _Translation(functions, region).results(definition, arguments)
  return region


class _Translation:
  """Adds the ops of functions to a region."""

  def __init__(self, functions: Mapping[str, Any], region: Block):
    self._functions, self._region = functions, region

  def results(self, definition: Any, arguments: Sequence[Value]) -> list[Value]:
    """The results of a function."""
    names = [argument.name for argument in definition.signature.input_arg]
    known: dict[str, Value] = dict(zip(names, arguments, strict=True))
    for node in _in_order(definition):
      for index, value in enumerate(self._of_node(definition, node, known)):
        known[f"{node.name}:{index}"] = value
    wanted = (definition.ret[each.name] for each in definition.signature.output_arg)
    return [known[_key(reference)] for reference in wanted]

  def _of_node(self, definition: Any, node: Any, known: Mapping[str, Value]) -> list[Value]:
    operands = [known[_key(each)] for each in node.input if not each.startswith("^")]
    if node.op == "NoOp":
      return []
    if node.op == "Const":
      array = np.asarray(tf.make_ndarray(node.attr["value"].tensor))
      return [self._constant(array)] if array.ndim == 0 else self._refuse(definition, node)
    if node.op in places.SAME:
      return operands
    if node.op in _CALLS:
      return self.results(self._functions[node.attr["f"].func.name], operands)
    return [self._computed(definition, node, operands)]

  def _computed(self, definition: Any, node: Any, operands: list[Value]) -> Value:
    if node.op in _ELEMENTWISE:
      name = _ELEMENTWISE[node.op]
      of_parts = operands[-1].dtype
      dtype = np.zeros((), of_parts).real.dtype if name in ("real", "imag") else of_parts
      return self._op(name, operands, dtype)
    if node.op in _COMPARISONS:
      return self._compared(_COMPARISONS[node.op], operands)
    if node.op == "IsNan":
      return self._compared("NE", [operands[0], operands[0]])
    if node.op == "ZerosLike":
      return self._constant(np.zeros((), operands[0].dtype))
    if node.op == "Bitcast":
      to = tf.as_dtype(node.attr["type"].type).as_numpy_dtype
      return self._op("bitcast_convert", operands, to)
    if node.op == "Cast" and operands[0].dtype.kind in "biu":
      return self._op("convert", operands, tf.as_dtype(node.attr["DstT"].type).as_numpy_dtype)
    if node.op in _SHIFTS and _is_inside(operands):
      is_logical = node.op == "RightShift" and operands[0].dtype.kind == "u"
      name = "shift_right_logical" if is_logical else _SHIFTS[node.op]
      return self._op(name, operands, operands[0].dtype)
    return self._refuse(definition, node)

  def _compared(self, direction: str, operands: list[Value]) -> Value:
    """A comparison; of the bits by which JAX orders floats, that of the floats in total order."""
    floats = [_of_ordered_bits(each) for each in operands]
    known = [each for each in floats if each is not None]
    is_total = len(known) == len(operands)
    attributes = {
      "comparison_direction": direction,
      "compare_type": "TOTALORDER" if is_total else _kind(operands[0]),
    }
    return self._op("compare", known if is_total else operands, bool, attributes)

  def _constant(self, array: np.ndarray[Any, Any]) -> Value:
    return self._op("constant", [], array.dtype, {"value": array})

  def _op(self, name: str, operands: list[Value], dtype: Any, attributes: Any = None) -> Value:
    for operand in operands:
      operand.uses += 1
    op = Op("stablehlo", name, operands, [], attributes or {}, [], "a function of TensorFlow")
    kind = scalar(dtype)
    op.results = [Value(kind, kind.text, op)]
    self._region.ops.append(op)
    return op.results[0]

  def _refuse(self, definition: Any, node: Any) -> Any:
    raise NotImplementedError(
      Message(
        problem=f"the function {definition.signature.name!r} that an Xla op applies to pairs of "
        f"numbers has an op {node.op} ({node.name!r}), for which there is no rule",
        advice="write the model with jax2tf.convert, from its JAX function",
      )
    )


def _in_order(definition: Any) -> list[Any]:
  """The nodes, each after its inputs."""
  nodes = {node.name: node for node in definition.node_def}
  ordered: dict[str, Any] = {}

  def visit(name: str) -> None:
    if name in ordered or name not in nodes:
      return
    for each in nodes[name].input:
      visit(each.lstrip("^").partition(":")[0])
    ordered[name] = nodes[name]

  for name in nodes:
    visit(name)
  return list(ordered.values())


def _key(reference: str) -> str:
  """`node:output:0` as `node:0`; the name of an argument as it is."""
  name, _, place = reference.partition(":")
  return f"{name}:{place.rpartition(':')[2]}" if place else name


def _kind(value: Value) -> str:
  return {"f": "FLOAT", "c": "FLOAT", "V": "FLOAT", "i": "SIGNED"}.get(value.dtype.kind, "UNSIGNED")


def _is_inside(operands: Sequence[Value]) -> bool:
  """Whether a shift is by a constant number of bits that the value has."""
  shifted, amount = operands
  count = _constant_of(amount)
  return count is not None and 0 <= int(count) < 8 * shifted.dtype.itemsize


def _constant_of(value: Value) -> np.ndarray[Any, Any] | None:
  owner = value.owner
  return owner.attributes["value"] if owner is not None and owner.name == "constant" else None


def _of_ordered_bits(value: Value) -> Value | None:
  """The float of which a value is the bits in JAX's order, `b ^ ((b >> 31) >>> 1)`; else None."""
  outer = _operands(value, "xor")
  if outer is None:
    return None
  bits, mask = outer
  floats = _operands(bits, "bitcast_convert")
  signed = _operands(mask, "bitcast_convert")
  halved = _operands(signed[0], "shift_right_logical") if signed else None
  unsigned = _operands(halved[0], "bitcast_convert") if halved else None
  spread = _operands(unsigned[0], "shift_right_arithmetic") if unsigned else None
  if floats is None or halved is None or spread is None or spread[0] is not bits:
    return None
  width = 8 * bits.dtype.itemsize
  shifts = [_constant_of(spread[1]), _constant_of(halved[1])]
  if shifts != [width - 1, 1] or bits.dtype.itemsize != floats[0].dtype.itemsize:
    return None
  return floats[0] if floats[0].dtype.kind in "fV" else None


def _operands(value: Value, name: str) -> list[Value] | None:
  owner = value.owner
  return owner.operands if owner is not None and owner.name == name else None
