"""Parameters of 4 and 8 bits that a function dequantizes, which stay so in a .tflite file.

TensorFlow's converter computes what is constant, so it would make float32 of them. They are inputs
while it runs. Afterwards `binding` makes constants of them, and `dequantizing` finds their scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import tensorflow as tf

from ..bundle.notation import Spec
from ..export.narrow import OF_4_BITS, Table
from ..export.registry import replaces
from ..export.replay import again
from ..export.source import ExportError, Signature, Source
from .runtime import RUNTIME, TARGET

# As the graph that is converted has them. Its dtypes of 4 bits are those of 8.
TABLE = Table(OF_4_BITS)
DTYPES = (tf.int8, tf.uint8, *OF_4_BITS)
# Ops whose first operand has the elements of the results.
_MOVES = {"ExpandDims", "GatherV2", "Identity", "Reshape", "Slice", "Squeeze", "StridedSlice"}
_MOVES |= {"Transpose", "Unpack"}
# What has its own graphs, into which `binding` brings constants.
_BODIES = ("If", "StatelessIf", "StatelessWhile", "TensorListFromTensor", "While")
# Their products of int32 are computed in float32; see `export/integers.py`.
_PRODUCTS = ("BatchMatMulV2", "Conv2D", "Conv3D", "MatMul")


def held(source: Source) -> Source:
  """The model without 4-bit integers, but in its variables.

  Raises:
    ExportError: an input or an output is one, or an op computes in them.
  """
  for signature in source.signatures.values():
    for name, text in {**signature.record.inputs, **signature.record.outputs}.items():
      if any(Spec.parse(text).dtype == dtype.as_numpy_dtype for dtype in OF_4_BITS):
        raise ExportError(
          TARGET,
          f"{name!r} of signature {signature.name!r} is {Spec.parse(text).dtype}, which {RUNTIME} "
          "has for parameters only; take and return int8 or float32, and convert in the function",
        )
    if computing := TABLE.computing(signature.function):
      why = f"{RUNTIME} moves and converts 4-bit integers, and computes nothing in them"
      raise signature.refuse(TARGET, RUNTIME, dict.fromkeys(computing, why))
  signatures = {
    name: replace(one, function=TABLE.held(one.function)) for name, one in source.signatures.items()
  }
  return replace(source, signatures=signatures)


@replaces("Cast", on="tflite", because="LiteRT 2.3: none of 4-bit integers but to float32")
def _cast(op: tf.Operation, x: tf.Tensor) -> Sequence[tf.Tensor]:
  """Of a parameter of 4 bits, which int8 or uint8 holds."""
  return [tf.cast(x, op.outputs[0].dtype)] if op.inputs[0].dtype in OF_4_BITS else again(op, (x,))


def dequantized(signature: Signature) -> Iterator[tf.Variable]:
  """The variables of 4 and 8 bits that the signature only converts to floats, maybe after it has
  taken rows or subtracted integers, or multiplies as integers."""
  graph = signature.function.graph
  handles = {id(outer): inner for outer, inner in graph.captures}
  for variable in graph.variables:
    handle = handles.get(id(variable.handle))
    if variable.dtype in DTYPES and handle is not None and _becomes_float(handle):
      yield variable


def _becomes_float(tensor: tf.Tensor) -> bool:
  """Whether all uses of integers, or of a variable, make floats of them."""
  uses = tensor.consumers()
  return bool(uses) and all(_use_becomes_float(op, tensor) for op in uses)


def _use_becomes_float(op: tf.Operation, tensor: tf.Tensor) -> bool:
  if op.type in _PRODUCTS:
    return bool(op.outputs[0].dtype == tf.int32)
  if op.type in _BODIES or (op.type == "Cast" and op.outputs[0].dtype.is_floating):
    return True
  is_operand = op.inputs[0] is tensor
  if op.type in ("Cast", "ReadVariableOp", "Sub", *_MOVES) and is_operand:
    return op.outputs[0].dtype.is_integer and all(map(_becomes_float, op.outputs))
  return False
