"""The oldest release of ONNX Runtime in which a model has the answers of the newest one.

Three things decide: the opset of the model, CPU kernels of its ops that came later than that, and
kernels that lost NaN or infinities. The tables are measured: `make targets` asks each release
and fails if it answers otherwise (docs/reports/targets.md). A release is 1.`number`, with its
newest patch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import protos
from .runtime import extra
from .sorting import UNLESS_NAN

# {opset: the first release that opens it}, at the lowest IR version that has it.
OPSETS: Mapping[int, int] = {
  18: 14,
  19: 15,
  20: 17,
  21: 18,
  22: 21,
  23: 23,
  24: 24,
  25: 24,
  26: 25,
  27: 32,
  28: 32,
}

_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_NARROW = ("int8", "int16", "uint8", "uint16", "uint32", "uint64")


def _each(ops: tuple[str, ...], dtypes: tuple[str, ...], first: int) -> dict[tuple[str, str], int]:
  return dict.fromkeys(itertools.product(ops, dtypes), first)


# {(op, dtype): the first release with a kernel}, if that is later than opset 18. float16 is not
# here: for an op without its kernel, every release casts to float32 and back.
KERNELS: Mapping[tuple[str, str], int] = {
  **_each(("Trilu",), ("bool",), 19),
  **_each(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceProd"), ("double",), 20),
  **_each(("ArgMax", "ReduceMean"), ("int64",), 20),
  **_each(("ArgMin",), ("int8", "uint8", "int64"), 20),
  **_each((*_ARITHMETIC, *_COMPARISONS), _NARROW, 21),
  **_each(("Neg",), ("int16",), 21),
  **_each(("DepthToSpace",), ("uint8",), 21),
  **_each(("SplitToSequence",), ("bool",), 23),
  **_each(("ConvInteger",), ("int8",), 24),
  **_each(("Max", "Min"), ("int8", "uint8"), 24),
  **_each(("TopK",), ("int8", "int16", "uint8"), 26),
  **_each(("DepthToSpace", "SpaceToDepth"), ("int8",), 28),
  **_each(("SpaceToDepth",), ("uint8",), 28),
  **_each(("Cos",), ("double",), 29),
  **_each(("Trilu",), ("int32",), 29),
  **_each(("Where",), ("int8", "uint32"), 31),
  **_each(("BitShift",), ("uint16",), 32),
}
_FLOATS = ("float", "float16", "double")
# {(op, dtype): the first release with the newest one's answers for NaN and infinities}.
NAN: Mapping[tuple[str, str], int] = {
  **_each(("Floor",), ("float", "float16"), 16),
  **_each(("LogSoftmax",), ("double",), 16),
  **_each(("ReduceMax", "ReduceMin"), _FLOATS, 16),
  **_each(("Max", "Min"), ("float", "double"), 19),
  **_each(("Max", "Min"), ("float16",), 20),
  **_each(("Sqrt",), ("float", "float16"), 21),
  **_each(("Erf",), ("float", "float16"), 27),
  **_each(("PRelu",), ("float",), 27),
  **_each(("TopK",), _FLOATS, 32),
}
_OPERAND = {"Where": 1}  # the operand that has the dtype; for other ops the first

# What opset 21 has, and ONNX Runtime 1.18, the first release with that opset, has not: 4-bit
# integers in DequantizeLinear and in Cast, and blocks of scales. Measured in 1.18 to 1.23.
_FOUR_BITS = {"DequantizeLinear": 19, "Cast": 23}
_BLOCKS = 19

# Keys in the model's metadata.
OLDEST, OLDEST_FOR_NAN = "jax2tf.oldest_runtime", "jax2tf.oldest_runtime_for_nan"


class Oldest(NamedTuple):
  """The oldest releases of ONNX Runtime for a model, such as "1.14".

  Attributes:
    ordinary: the first that opens it and has the newest release's answers for ordinary inputs.
    nan: the first that has them for NaN and infinities too.
  """

  ordinary: str
  nan: str


def oldest(model: Any) -> Oldest:
  """The oldest releases for an onnx.ModelProto that this package wrote.

  Raises:
    ImportError: onnx is missing.
  """
  (opset,) = (entry.version for entry in model.opset_import)
  kinds = set(_kinds(protos.inferred(model), {}))
  firsts = [*(_first(KERNELS, *kind) for kind in kinds), *_of_quantized(model.graph)]
  ordinary = max([OPSETS[opset], *firsts])
  nan = max([ordinary, *(_first(NAN, *kind) for kind in kinds)])
  return Oldest(f"1.{ordinary}", f"1.{nan}")


def _of_quantized(graph: Any) -> Iterator[int]:
  """The first release for each node that takes a parameter of 4 bits, or scales of blocks."""
  of = extra("onnx").TensorProto
  dtypes = {tensor.name: tensor.data_type for tensor in graph.initializer}
  dtypes |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
  for node in protos.nodes(graph):
    if node.input and dtypes.get(node.input[0]) in (of.INT4, of.UINT4):
      yield _FOUR_BITS[node.op_type]
    if any(attribute.name == "block_size" for attribute in node.attribute):
      yield _BLOCKS


def newest_opset() -> tuple[int, str]:
  """(the newest opset that can be written and compared here, whose newest it is)."""
  installed = extra("onnx.defs").onnx_opset_version()
  version = extra("onnxruntime").__version__
  release = int(version.split(".")[1])
  opened = max(opset for opset, first in OPSETS.items() if first <= release)
  known = max(OPSETS)
  return min(
    (installed, "of the onnx that is installed"),
    (opened, f"that ONNX Runtime {version}, which is installed, opens"),
    (known, "that jax2tf knows"),
    key=lambda newest: newest[0],
  )


def _first(table: Mapping[tuple[str, str], int], op: str, dtype: str) -> int:
  """The release in which the table has an op of this dtype right; of an unknown dtype, in which it
  has all."""
  if dtype:
    return table.get((op, dtype), 0)
  return max((first for (name, _), first in table.items() if name == op), default=0)


def _kinds(graph: Any, outer: Mapping[str, str]) -> Iterator[tuple[str, str]]:
  """(op, dtype) of the nodes of a GraphProto, also of loops and branches. The dtype is "" if it is
  unknown. `outer`: {name: dtype} around the graph."""
  of = extra("onnx").TensorProto.DataType.Name
  dtypes = dict(outer) | {t.name: of(t.data_type).lower() for t in graph.initializer}
  for value in (*graph.input, *graph.value_info, *graph.output):
    if elements := value.type.tensor_type.elem_type:
      dtypes[value.name] = of(elements).lower()
  for node in graph.node:
    position = _OPERAND.get(node.op_type, 0)
    if UNLESS_NAN in node.name:
      continue  # in opset 18 each of these has its kernel
    yield (
      node.op_type,
      dtypes.get(node.input[position], "") if len(node.input) > position else "none",
    )
    for body in protos.bodies(node):
      yield from _kinds(body, dtypes)
