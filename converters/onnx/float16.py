"""float16 for ONNX: products are computed in float16, and what follows from them.

Each op of the graph computes in float16 or in float32:

- products (`_PRODUCTS`) in float16;
- moves and simple elementwise ops (`_FOLLOWING`) in float16 if an operand is float16, which saves a
  Cast and keeps what a float32 op returned;
- all other ops in float32: sums, softmax, norms, exponentials, powers, sorting, bits, loops and
  branches.

An op with a constant that float16 does not hold, such as 1e9 or 1e-12, stays in float32. A tensor
gets its other form by a Cast where an op needs it; float32 keeps the name of the tensor, so that
bodies of loops and branches, inputs and outputs stay as they are. Where inputs and outputs are
float16 too, the two names are exchanged at last.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import protos
from .protos import FLOAT, FLOAT16, INT64
from .runtime import extra, session

_PRODUCTS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])
_FOLLOWING = frozenset(
  re.findall(
    r"\w+",
    """
    Abs Add AveragePool Clip Concat DepthToSpace Div Erf Expand Flatten Gather GatherElements
    GatherND Gelu Identity LeakyRelu Max MaxPool Min Mul Neg Pad Relu Reshape Sigmoid Slice
    SpaceToDepth Split Squeeze Sub Tanh Tile Transpose Unsqueeze Where
    """,
  )
)
# Elements of a constant. Smaller ones do not make an op compute in float16.
_LEAST_SIZE = 1024
LARGEST = float(np.finfo(np.float16).max)
# key in the model's metadata: the inputs and outputs, separated by spaces, that are float16 in the
# file and float32 in the function
ENDS = "jax2tf.float16"


def holds(array: np.ndarray) -> bool:
  """Whether no element becomes infinite in float16, and not all become zeros or subnormal."""
  finite = np.abs(array[np.isfinite(array)])
  largest = float(finite.max(initial=0.0))
  if array.size < _LEAST_SIZE:
    ordinary = finite[finite > 0]
    least = float(ordinary.min(initial=1.0))
    return largest <= LARGEST and least >= float(np.finfo(np.float16).tiny)
  return largest <= LARGEST and not 0 < largest < np.finfo(np.float16).tiny


@dataclass(frozen=True)
class Halved:
  """The model in float16.

  Attributes:
    proto: the onnx.ModelProto.
    rounded: {tensor of the float32 model that is float16 here: the name of its node}.
    weights: {input that stands for a parameter, and is float16: its new name}.
  """

  proto: Any
  rounded: Mapping[str, str]
  weights: Mapping[str, str]


def halved(proto: Any, weights: Mapping[str, np.ndarray], *, keep_io_types: bool = True) -> Halved:
  """The model with products in float16.

  Args:
    proto: the onnx.ModelProto, which stays as it is.
    weights: {input that stands for a parameter: its value}.
    keep_io_types: whether inputs and outputs stay float32.
  """
  onnx = extra("onnx")
  inferred = protos.inferred(proto)
  constants = {
    tensor.name: onnx.numpy_helper.to_array(tensor)
    for tensor in proto.graph.initializer
    if tensor.data_type == FLOAT
  }
  constants |= {name: value for name, value in weights.items() if value.dtype == np.float32}
  described = (*inferred.input, *inferred.value_info, *inferred.output)
  floats = {value.name for value in described if value.type.tensor_type.elem_type == FLOAT}
  ways = _Ways(floats | set(constants), constants, set(weights))
  ends = [] if keep_io_types else _float_ends(proto.graph, weights)
  ways.enter([value.name for value in proto.graph.input if value.name in ends])
  for node in proto.graph.node:
    ways.take(node)
  for output in proto.graph.output:
    ways.leave(output.name, output.name in ends)
  result = onnx.ModelProto()
  result.CopyFrom(proto)
  graph = result.graph
  del graph.node[:], graph.value_info[:], graph.initializer[:]
  graph.node.extend(ways.nodes)
  graph.initializer.extend(_stored(proto.graph, ways))
  narrow = {name: ways.narrow[name] for name in weights if name in ways.stored}
  for value in graph.input:
    if value.name in narrow:
      value.name, value.type.tensor_type.elem_type = narrow[value.name], FLOAT16
  _exchange(graph, {name: ways.narrow[name] for name in ends})
  if ends:
    result.metadata_props.add(key=ENDS, value=" ".join(ends))
  return Halved(result, ways.rounded, narrow)


def _float_ends(graph: Any, weights: Collection[str]) -> list[str]:
  """The inputs and outputs that are float32, without parameters."""
  return [
    value.name
    for value in (*graph.input, *graph.output)
    if value.type.tensor_type.elem_type == FLOAT and value.name not in weights
  ]


def _exchange(graph: Any, narrow: Mapping[str, str]) -> None:
  """Gives the float16 forms the names of inputs and outputs."""
  names = {name: f"{name}/float32" for name in narrow}
  names |= {half: name for name, half in narrow.items()}
  for node in graph.node:
    protos.rename_values(node, names)
  for value in (*graph.input, *graph.output):
    if value.name in narrow:
      value.type.tensor_type.elem_type = FLOAT16


class _Ways:
  """Chooses float16 or float32 for each node, in their order.

  Attributes:
    nodes: the new nodes.
    narrow: {tensor: the name of its float16 form}.
    stored: the constants that have a float16 form in the file.
    rounded: see `Halved`.
  """

  def __init__(self, floats: set[str], constants: Mapping[str, np.ndarray], parameters: set[str]):
    self._floats, self._constants, self._parameters = floats, constants, parameters
    self._large = {name for name, x in constants.items() if x.size >= _LEAST_SIZE and holds(x)}
    self._not_wide: set[str] = set()  # tensors without a float32 form so far
    self.nodes: list[Any] = []
    self.narrow: dict[str, str] = {}
    self.stored: set[str] = set()
    self.rounded: dict[str, str] = {}

  def take(self, node: Any) -> None:
    """Adds a node, and the Casts that it needs."""
    new = type(node)()
    new.CopyFrom(node)
    if self._is_half(node):
      new.input[:] = [self._half(name) if name in self._floats else name for name in node.input]
      for i, name in enumerate(node.output):
        if name in self._floats:
          new.output[i] = self.narrow[name] = _half_name(name)
          self._not_wide.add(name)
          self.rounded[name] = node.name
    else:
      for name in protos.reads(node):
        self.widen(name)
    self.nodes.append(new)

  def _is_half(self, node: Any) -> bool:
    operands = [name for name in node.input if name in self._floats]
    if not all(holds(self._constants[name]) for name in operands if name in self._constants):
      return False
    if node.op_type in _PRODUCTS:
      return bool(operands)
    follows = node.op_type in _FOLLOWING
    return follows and any(self._is_half_already(name) for name in operands)

  def _is_half_already(self, name: str) -> bool:
    return name in self._large or (name in self.narrow and name not in self._constants)

  def _half(self, name: str) -> str:
    """The name of the float16 form of a tensor."""
    if name not in self.narrow:
      if name in self._large:
        self._not_wide.add(name)
      if name in self._large or (name in self._constants and name not in self._parameters):
        self.stored.add(name)
      else:
        self._cast(name, _half_name(name), FLOAT16)
        self.rounded[name] = name
      self.narrow[name] = _half_name(name)
    return self.narrow[name]

  def enter(self, names: Sequence[str]) -> None:
    """Takes inputs that are float16."""
    for name in names:
      self.narrow[name] = _half_name(name)
      self._not_wide.add(name)
      self.rounded[name] = name

  def leave(self, name: str, narrow: bool) -> None:
    """Gives an output its form."""
    if narrow:
      self._half(name)
    else:
      self.widen(name)

  def widen(self, name: str) -> None:
    """Gives a tensor its float32 form, under its own name."""
    if name in self._not_wide:
      self._not_wide.remove(name)
      self._cast(self.narrow[name], name, FLOAT)

  def _cast(self, operand: str, result: str, dtype: int) -> None:
    cast = extra("onnx").helper.make_node("Cast", [operand], [result], f"{result}/Cast", to=dtype)
    self.nodes.append(cast)


def _half_name(name: str) -> str:
  return f"{name}/float16"


def _stored(graph: Any, ways: _Ways) -> Iterator[Any]:
  """The initializers, each in the forms that the nodes use."""
  helper = extra("onnx").numpy_helper
  used = {name for node in ways.nodes for name in protos.reads(node)}
  used |= {output.name for output in graph.output}
  # a large constant has one form in the file; a Cast makes the other
  cast = {output for node in ways.nodes if node.op_type == "Cast" for output in node.output}
  for tensor in graph.initializer:
    if tensor.name in ways.stored:
      value = helper.to_array(tensor).astype(np.float16)
      yield helper.from_array(value, ways.narrow[tensor.name])
    if tensor.name in used - cast:
      yield tensor


def largest(
  proto: Any, tensors: Sequence[str], feeds: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, float]:
  """{tensor: the largest finite magnitude that the float32 model computes in it}.

  Args:
    proto: the onnx.ModelProto in float32.
    tensors: names of tensors of its outermost graph.
    feeds: the inputs of each run.
  """
  onnx = extra("onnx")
  measured = onnx.ModelProto()
  measured.CopyFrom(proto)
  graph, helper = measured.graph, onnx.helper
  zero, flat = "largest/zero", "largest/flat"
  graph.initializer.append(helper.make_tensor(zero, FLOAT, [1], [0.0]))
  graph.initializer.append(helper.make_tensor(flat, INT64, [1], [-1]))
  del graph.output[:]
  results = [f"largest/{i}" for i in range(len(tensors))]
  for result, tensor in zip(results, tensors, strict=True):
    steps = (
      ("Reshape", [tensor, flat], "row"),
      ("Concat", [f"{result}/row", zero], "some"),  # ReduceMax of nothing is an error
      ("IsInf", [f"{result}/some"], "infinite"),
      ("Where", [f"{result}/infinite", zero, f"{result}/some"], "finite"),
      ("Abs", [f"{result}/finite"], "magnitude"),
    )
    for op, operands, name in steps:
      axis = {"axis": 0} if op == "Concat" else {}
      graph.node.append(helper.make_node(op, operands, [f"{result}/{name}"], **axis))
    graph.node.append(helper.make_node("ReduceMax", [f"{result}/magnitude"], [result], keepdims=0))
    graph.output.append(helper.make_tensor_value_info(result, FLOAT, []))
  opened = session(measured.SerializeToString())
  found = [[float(x) for x in opened.run(results, dict(feed))] for feed in feeds]
  return {
    tensor: max(values)
    for tensor, values in zip(tensors, zip(*found, strict=True), strict=True)
    if not any(np.isnan(values))
  }
