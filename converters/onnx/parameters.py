"""Parameters of a signature in an ONNX file: inside or beside it, and those of 4 and 8 bits and of
bfloat16 in their own dtype.

While tf2onnx works, a parameter that is to stay as it is is an input of the graph: it would fold a
constant with the cast behind it, and store the result as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import tensorflow as tf

from ..export import replay
from ..export.narrow import packed
from ..export.pair import REAL, Pair
from . import bfloat16, narrow, protos
from .runtime import extra

# Dtypes of the parameters that DequantizeLinear takes.
QUANTIZED = {tf.int8, tf.uint8, *narrow.HELD}
# Those of the parameters that stay so in the file; of bfloat16 only above this number of elements,
# for tf2onnx computes with constants.
_STORED = {tf.bfloat16, *QUANTIZED}
_SMALL = 1024
_MOVES = ("Gather", "Transpose")


class Value(Protocol):
  """What gives the value of a parameter in the file, such as a variable."""

  def numpy(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Changed:
  """A value that is computed of another one when it is read."""

  before: Value
  change: Callable[[np.ndarray], np.ndarray]

  def numpy(self) -> np.ndarray:
    return self.change(self.before.numpy())


@dataclass(frozen=True)
class Part:
  """The real or the imaginary part of a complex variable, as a variable."""

  whole: Any
  part: Literal["real", "imag"]

  @property
  def name(self) -> str:
    return f"{self.whole.name.split(':')[0]}.{self.part}"

  @property
  def dtype(self) -> tf.DType:
    return REAL[self.whole.dtype]

  @property
  def shape(self) -> tf.TensorShape:
    return self.whole.shape

  def numpy(self) -> np.ndarray:
    return getattr(self.whole.numpy(), self.part)


class Parameters:
  """The parameters of a graph that is being replayed.

  Attributes:
    names: {tensor in TensorFlow: input in ONNX}, of those that are inputs of the graph.
    values: {input: what gives its value in the file}.
    specs: {input: its dtype and shape in the file}.
    wide: {input: its dtype in the graph}, where that of the file is narrower.
    narrow: the inputs of fewer bits that stay so.
    keeps: whether there are such.
  """

  def __init__(self, taken: Sequence[str], *, beside: bool, keeps: bool, opset: int | None):
    """
    Args:
      taken: names of inputs and outputs.
      beside: whether all parameters are outside of the graph, which holds at most 2 GiB.
      keeps: whether those of 4 and 8 bits and of bfloat16 stay so.
      opset: of the file; None for one that has all of their dtypes.
    """
    self._taken = set(taken)
    self._beside, self.keeps, self._opset = beside, keeps, opset
    self._tensors: dict[int, Any] = {}
    self.names: dict[str, str] = {}
    self.values: dict[str, Value] = {}
    self.specs: dict[str, tf.TensorSpec] = {}
    self.wide: dict[str, tf.DType] = {}
    self.narrow: set[str] = set()

  def read(self, op: Any, variable: Any) -> list[Any]:
    """The value of a variable in the outermost graph, whose tensors bodies of loops and branches
    capture: a placeholder, for a complex one two, or a constant."""
    del op
    if id(variable) not in self._tensors:
      self._tensors[id(variable)] = self._tensor(variable)
    return [self._tensors[id(variable)]]

  def _tensor(self, variable: Any) -> Any:
    in_file = self._dtype_in_file(variable.dtype)
    is_small = in_file == tf.bfloat16 and variable.shape.num_elements() <= _SMALL
    if not (self._beside or (self.keeps and in_file in _STORED and not is_small)):
      return replay.constant_of(variable, held_dtype(variable.dtype))
    if variable.dtype in REAL:
      parts = Part(variable, "real"), Part(variable, "imag")
      return Pair(*(self._placeholder(part, part.dtype) for part in parts))
    return self._placeholder(variable, in_file)

  def _dtype_in_file(self, dtype: tf.DType) -> tf.DType:
    if not self.keeps:
      return held_dtype(dtype)
    is_too_new = self._opset is not None and self._opset < narrow.SINCE.get(dtype, 0)
    return held_dtype(dtype) if is_too_new else dtype

  def _placeholder(self, variable: Any, in_file: tf.DType) -> tf.Tensor:
    name = stem = variable.name.split(":")[0]
    while name in self._taken:
      name = f"{stem}_{len(self._taken)}"
    self._taken.add(name)
    held = held_dtype(variable.dtype)
    with replay.outermost().as_default(), tf.name_scope(""), tf.control_dependencies(None):
      tensor = tf.compat.v1.placeholder(held, variable.shape, name)
    self.names[tensor.name] = name
    self.specs[name] = tf.TensorSpec(variable.shape, in_file)
    self.values[name] = (
      variable
      if variable.dtype == in_file
      else Changed(variable, lambda array: converted(array, held))
    )
    if in_file != held:
      self.wide[name] = held
    if self.keeps and in_file in _STORED:
      self.narrow.add(name)
    return tensor

  def change(self, name: str, move: Callable[[np.ndarray], np.ndarray]) -> None:
    """Moves the elements of a parameter, which may give it another shape."""
    spec = self.specs[name]
    shape = move(np.broadcast_to(np.int8(0), spec.shape.as_list())).shape
    self.specs[name] = tf.TensorSpec(shape, spec.dtype)
    self.values[name] = Changed(self.values[name], move)

  def remove(self, name: str) -> None:
    """Leaves out a parameter."""
    del self.values[name], self.specs[name]
    self.wide.pop(name, None)
    self.narrow.discard(name)


def held_dtype(dtype: tf.DType) -> tf.DType:
  """The dtype of the graph of TensorFlow that holds values of this dtype."""
  return {**bfloat16.HELD, **narrow.HELD}.get(dtype, dtype)


def converted(array: np.ndarray, dtype: tf.DType) -> np.ndarray:
  """The values in a wider dtype."""
  with np.errstate(invalid="ignore"):  # of a signalling NaN
    return array.astype(dtype.as_numpy_dtype)


def widen(graph: Any, wide: Mapping[str, tf.DType], specs: Mapping[str, tf.TensorSpec]) -> None:
  """Puts a Cast behind each of these inputs of a GraphProto, whose dtype is narrower in the file.
  Of bfloat16, rows are taken and axes moved before the Cast.

  Args:
    graph: the graph.
    wide: {input: its dtype behind the Cast}.
    specs: {input: its dtype and shape in the file}.
  """
  names = {name: f"{name}/wide" for name in wide}
  moved = {name: dtype for name, dtype in wide.items() if specs[name].dtype == tf.bfloat16}
  _read_wide(graph, names, moved)
  nodes = list(graph.node)
  del graph.node[:]
  graph.node.extend(_cast(name, names[name], dtype) for name, dtype in wide.items())
  graph.node.extend(nodes)


def _read_wide(graph: Any, names: Mapping[str, str], moved: Mapping[str, tf.DType]) -> None:
  """Has the nodes of a graph, also in loops and branches, read inputs under these names. A node
  that moves elements of one of `moved` reads that as it is, and gets a Cast behind it."""
  nodes = list(graph.node)
  del graph.node[:]
  for node in nodes:
    for body in protos.bodies(node):
      _read_wide(body, names, moved)
    if node.op_type in _MOVES and node.input[0] in moved:
      (result,) = node.output
      node.output[:] = [f"{result}/narrow"]
      node.input[1:] = [names.get(name, name) for name in node.input[1:]]
      graph.node.extend([node, _cast(node.output[0], result, moved[node.input[0]])])
    else:
      node.input[:] = [names.get(name, name) for name in node.input]
      graph.node.append(node)


def _cast(name: str, result: str, dtype: tf.DType) -> Any:
  """The Cast of a value to this dtype."""
  helper = extra("onnx").helper
  to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype.as_numpy_dtype))
  return helper.make_node("Cast", [name], [result], f"{name}/Cast", to=to)


def rows_of(value: Value, last: np.ndarray | None) -> list[np.ndarray]:
  """The rows of a parameter in the file, and a further one of this number."""
  rows = np.ascontiguousarray(value.numpy())
  return [rows] if last is None else [rows, np.full([1, *rows.shape[1:]], last, rows.dtype)]


def tensor(name: str, rows: Sequence[np.ndarray]) -> Any:
  """The onnx.TensorProto of a parameter inside of the file, of rows in one array or several."""
  onnx = extra("onnx")
  array = np.concatenate(rows) if len(rows) > 1 else rows[0]
  return onnx.TensorProto(
    name=name,
    data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
    dims=array.shape,
    raw_data=packed(array).tobytes(),
  )
