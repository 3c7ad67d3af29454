"""DequantizeLinear in place of the nodes that dequantize a parameter.

  (float32(w) - zero) * scale

with a scale for the whole parameter, for each index of one axis, or for each block of one axis. The
values stay the same: both subtract integers and multiply once, in float32.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import narrow, protos
from .parameters import QUANTIZED, Parameters, tensor
from .protos import FLOAT, INT32
from .runtime import extra

# The first opset of DequantizeLinear with blocks. With one scale for an axis it is older than 18.
_BLOCKS_SINCE = 21


@dataclass(frozen=True)
class _Scales:
  """How the scales of a DequantizeLinear lie.

  Attributes:
    shape: of the scales in the file.
    attributes: of the node.
  """

  shape: tuple[int, ...]
  attributes: dict[str, int]

  @classmethod
  def of(cls, shape: Sequence[int], scale: Sequence[int]) -> _Scales | None:
    """For a parameter of this shape, and scales of a shape that broadcasts to it; None if
    DequantizeLinear has no such scales."""
    if len(scale) > len(shape):
      return None
    aligned = (*[1] * (len(shape) - len(scale)), *scale)
    if any(size not in (1, whole) for size, whole in zip(aligned, shape, strict=True)):
      return None
    several = [axis for axis, size in enumerate(aligned) if size > 1]
    if not several:
      return cls((), {})
    if len(several) == 1:
      (axis,) = several
      return cls((aligned[axis],), {"axis": axis})
    shared = [axis for axis, size in enumerate(shape) if size > 1 and axis not in several]
    if len(shared) != 1:
      return None
    return cls(aligned, {"axis": shared[0], "block_size": shape[shared[0]]})


def join(graph: Any, parameters: Parameters, fixed: Collection[str], newest: int) -> int:
  """Changes a GraphProto, in which parameters are inputs, and its parameters.

  Args:
    graph: the graph.
    parameters: its parameters.
    fixed: the parameters that get a further row, and keep their shape.
    newest: the newest opset that the file may have.

  Returns:
    the oldest opset that the new nodes need.
  """
  joining = _Joining(graph, parameters, newest)
  for name in sorted(parameters.narrow.difference(fixed)):
    joining.move(name)
  joining.join(fixed)
  joining.prune()
  return joining.oldest


class _Joining:
  """A graph whose parameters get another shape, or another node behind them.

  Attributes:
    oldest: the oldest opset that its new nodes need.
  """

  def __init__(self, graph: Any, parameters: Parameters, newest: int):
    self.oldest = 0
    self._graph, self._parameters, self._newest = graph, parameters, newest
    self._constants = {constant.name: constant for constant in graph.initializer}
    self._producers: dict[str, Any] = {}

  def move(self, name: str) -> None:
    """Gives a parameter the shape that the only nodes behind it give it, so that its scales
    broadcast to it as they are."""
    while (node := self._only_move_of(name)) is not None:
      change = self._change(node)
      if change is None:
        return
      self._parameters.change(name, change)
      (result,), operand = node.output, node.input[0]
      for user in protos.nodes(self._graph):
        user.input[:] = [operand if x == result else x for x in user.input]
      self._graph.node.remove(node)

  def _only_move_of(self, name: str) -> Any:
    """The node that uses the parameter, maybe after a cast, if there is only one, and its result is
    no output."""
    uses = _uses(self._graph)
    node: Any = None
    operand = name
    while len(users := uses[operand]) == 1 and (node := users[0]) is not None:
      if node.op_type != "Cast":
        break
      operand = node.output[0]
    if node is None or len(users) != 1 or None in uses[node.output[0]]:
      return None
    return node if node.input[0] == operand else None

  def _change(self, node: Any) -> Callable[[np.ndarray], np.ndarray] | None:
    if node.op_type == "Transpose":
      axes = [list(a.ints) for a in node.attribute if a.name == "perm"]
      return lambda array: array.transpose(*axes)
    if node.op_type == "Reshape" and node.input[1] in self._constants:
      sizes = [int(size) for size in self._constant(node.input[1])]
      return None if 0 in sizes else lambda array: array.reshape(sizes)
    return None

  def join(self, fixed: Collection[str]) -> None:
    """Puts DequantizeLinear in the place of products."""
    self._producers = {name: node for node in self._graph.node for name in node.output}
    for node in list(self._graph.node):
      if node.op_type == "Mul":
        for wide, scale in (tuple(node.input), tuple(node.input)[::-1]):
          if self._joined(node, wide, scale, fixed):
            break

  def _joined(self, node: Any, wide: str, scale: str, fixed: Collection[str]) -> bool:
    """Whether the node, a product of `wide` and `scale`, became a DequantizeLinear."""
    found = self._quantized(wide)
    if found is None or found[0] in fixed:
      return False
    name, zero = found
    factor = self._value(scale)
    if factor is None or factor.dtype != np.float32:
      return False
    spec = self._parameters.specs[name]
    scales = _Scales.of(spec.shape.as_list(), factor.shape)
    if scales is None or (zero is not None and zero.shape not in (factor.shape, ())):
      return False
    oldest = max(
      _BLOCKS_SINCE if "block_size" in scales.attributes else 0, narrow.SINCE.get(spec.dtype, 0)
    )
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if oldest > self._newest or not (zero is None or _fits(zero, dtype)):
      return False
    self.oldest = max(self.oldest, oldest)
    result = node.output[0]
    operands = {"scale": factor.reshape(scales.shape)}
    if zero is not None:
      whole = np.broadcast_to(zero, factor.shape)
      operands["zero_point"] = whole.reshape(scales.shape).astype(dtype)
    for label, value in operands.items():
      self._graph.initializer.append(tensor(f"{result}/{label}", [value]))
    inputs = [name, *(f"{result}/{label}" for label in operands)]
    new = extra("onnx").helper.make_node(
      "DequantizeLinear", inputs, [result], f"{result}/DequantizeLinear", **scales.attributes
    )
    node.CopyFrom(new)
    return True

  def _quantized(self, wide: str) -> tuple[str, np.ndarray | None] | None:
    """(the parameter, what is subtracted from it) of a float32 tensor; None if it is another."""
    zero: np.ndarray | None = None
    is_float = False
    while (node := self._producers.get(wide)) is not None:
      if node.op_type == "Sub" and zero is None:
        zero = self._value(node.input[1])
        if zero is None:
          return None
      elif node.op_type == "Cast":
        (to,) = (a.i for a in node.attribute if a.name == "to")
        # what is between must have every value
        if to not in (FLOAT, INT32) and node.input[0] not in self._parameters.wide:
          return None
        is_float = is_float or to == FLOAT
      else:
        return None
      wide = node.input[0]
    if not is_float or wide not in self._parameters.narrow:
      return None
    return (wide, zero) if self._parameters.specs[wide].dtype in QUANTIZED else None

  def _value(self, name: str) -> np.ndarray | None:
    """The value of a constant, or of a parameter that only a cast or a reshape changes."""
    if name in self._constants:
      return self._constant(name)
    if name in self._parameters.values:
      return self._parameters.values[name].numpy()
    node = self._producers.get(name)
    if node is None or node.op_type not in ("Cast", "Reshape"):
      return None
    value = self._value(node.input[0])
    if value is None:
      return None
    if node.op_type == "Reshape":
      change = self._change(node)
      return None if change is None else change(value)
    (to,) = (a.i for a in node.attribute if a.name == "to")
    return value.astype(extra("onnx").helper.tensor_dtype_to_np_dtype(to))

  def _constant(self, name: str) -> np.ndarray:
    array: np.ndarray = extra("onnx").numpy_helper.to_array(self._constants[name])
    return array

  def prune(self) -> None:
    """Removes what nothing uses any longer."""
    while unused := self._unused():
      for node in unused:
        self._graph.node.remove(node)
    uses = _uses(self._graph)
    for constant in list(self._graph.initializer):
      if not uses[constant.name]:
        self._graph.initializer.remove(constant)
    for value in list(self._graph.input):
      if value.name in self._parameters.values and not uses[value.name]:
        self._graph.input.remove(value)
        self._parameters.remove(value.name)

  def _unused(self) -> list[Any]:
    uses = _uses(self._graph)
    return [node for node in self._graph.node if not any(uses[name] for name in node.output)]


def _fits(zero: np.ndarray, dtype: np.dtype[Any]) -> bool:
  """Whether the numbers are integers of this dtype."""
  if dtype.itemsize > 1 or dtype.kind not in "iuV":
    return False
  return bool((zero.astype(np.float64) == zero.astype(dtype).astype(np.float64)).all())


def _uses(graph: Any) -> dict[str, list[Any]]:
  """{tensor: the nodes of the outermost graph that use it, and None for each other use}."""
  uses: dict[str, list[Any]] = collections.defaultdict(list)
  for node in graph.node:
    for name in node.input:
      uses[name].append(node)
    for body in protos.bodies(node):
      for name in _names(body):
        uses[name].append(None)
  for output in graph.output:
    uses[output.name].append(None)
  return uses


def _names(body: Any) -> Iterator[str]:
  """The tensors that a body uses or returns."""
  for node in body.node:
    yield from node.input
    for inner in protos.bodies(node):
      yield from _names(inner)
  yield from (output.name for output in body.output)
