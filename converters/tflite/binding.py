"""Makes constants of the inputs that stand for weights, when TensorFlow's converter has run.

The converter then has no weight to fold: `folding` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import ranges, replay, weights
from ..export.narrow import OF_4_BITS
from ..export.ranges import Range, RangedWeight
from ..export.replay import Replacement
from ..export.source import Source
from ..export.weights import Weight
from . import blocks, dequantizing, dynamic, folding, integer, narrow, rows
from .dequantizing import Narrow
from .fusing import Fusing
from .integer import Ranges
from .parts import Parts, add_tensor

# In bytes. Smaller weights are constants, which the converter folds: biases, scales of
# normalisations, tables of numbers.
_LEAST = 2**16
# In bytes of all variables. TF 2.21: the converter takes 28 times the constants beside them (50 MB:
# 1.8 GB and 107 s; as inputs 0.5 GB and 55 s), so those of a smaller model take 1 GB. It folds more
# than `folding`.
LARGE = 2**25
# The values of `quantization` with which weights may be inputs.
SCHEMES = (None, "float16")
# {the same of large models: bits of the weights}
DYNAMIC = {"dynamic_int8": 8, "int4": 4}
# What LiteRT's converter takes as inputs; those of 4 bits as such of 8.
_DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.int8, tf.uint8, tf.int32, *OF_4_BITS)


def is_large(source: Source) -> bool:
  """Whether the converter gets the weights as inputs for their size."""
  signatures = source.signatures.values()
  variables = [v for one in signatures for v in one.function.graph.variables]
  return bool(weights.large(variables, _LEAST, LARGE, _DTYPES))


def inputs_of(source: Source) -> dict[str, tf.Variable]:
  """{input: variable} of the weights that are inputs while the converter runs."""
  signatures = source.signatures.values()
  variables = [v for one in signatures for v in one.function.graph.variables]
  written = {id(v) for one in signatures if one.state for v in one.state.variables}
  taken = {name for one in signatures for name in one.record.inputs}
  read = [v for v in variables if id(v) not in written]
  large = weights.large(read, _LEAST, LARGE, _DTYPES)
  dequantized = [v for one in signatures for v in narrow.dequantized(one) if id(v) not in written]
  quantized = [weight for one in signatures for weight in ranges.weights_of(one)]
  return weights.named([*large, *dequantized, *quantized], taken)


def quantizing(variables: Mapping[str, Any], noted: Ranges | None) -> dict[str, Replacement]:
  """The replacement of what the function quantizes.

  Args:
    variables: {input: variable}.
    noted: gets the ranges of other tensors than parameters; None if these are computed as floats.
  """
  names = {id(v.op): name for name, v in variables.items() if isinstance(v, RangedWeight)}

  def of_weight(op: tf.Operation) -> tf.Tensor | None:
    if (name := names.get(id(op))) is None:
      return None
    return variables[name].dequantized(replay.outermost().get_tensor_by_name(f"{name}:0"))

  def of_activation(found: Range, result: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return result if noted is None else noted.noted(found, result, x)

  return {ranges.MARK: ranges.marked(of_weight, of_activation)}


def bound(
  contents: bytes,
  variables: Mapping[str, tf.Variable],
  noted: Ranges | None = None,
  bits: int | None = None,
) -> Parts:
  """The model with the values of variables in place of its inputs.

  Args:
    contents: the .tflite model.
    variables: {input: variable}.
    noted: the ranges of its tensors, if they are to be integers.
    bits: of the integers that large weights become, for activations that are quantized at run time;
      None for weights as they are.
  """
  parts = Parts.of(contents)
  buffers = {name: parts.add(_value(variable)) for name, variable in variables.items()}
  constants = _Constants(parts, widens=bits is not None)
  for signature in parts.model.signatureDefs:
    graph = parts.model.subgraphs[signature.subgraphIndex]
    entries = {entry.name.decode(): entry for entry in signature.inputs}
    chosen = {name: entry.tensorIndex for name, entry in entries.items() if name in buffers}
    for name, number in chosen.items():
      graph.tensors[number].buffer = buffers[name]
      graph.tensors[number].name = variables[name].name.split(":")[0].encode()
    signature.inputs = [entry for name, entry in entries.items() if name not in buffers]
    graph.inputs = _without(graph.inputs, set(chosen.values()))
    constants.propagate(graph)
  fuse = Fusing(parts).fuse
  for graph in parts.model.subgraphs:
    rows.take(parts, graph)
    fuse(graph)
    blocks.split(parts, graph)
  if noted is not None:
    integer.quantize(parts, noted)
  if bits is not None:
    dynamic.quantize(parts, bits)
  dequantizing.materialize(parts)
  parts.sweep()
  return parts


def _value(variable: tf.Variable) -> Weight:
  """The value of a variable, of 4 and 8 bits as integers that may get a scale."""
  if variable.dtype not in narrow.DTYPES:
    return Weight.of(variable)
  dtype = np.dtype(OF_4_BITS.get(variable.dtype, variable.dtype).as_numpy_dtype)
  # TF 2.21: only numpy() gives an array of uint4
  read = lambda: variable.numpy().astype(dtype)  # noqa: E731
  integers = Weight(tuple(variable.shape), dtype, read)
  return Narrow.made(dtype, integers, 4 if variable.dtype in OF_4_BITS else 8)


class _Constants:
  """Follows constants through ops, loops and branches."""

  def __init__(self, parts: Parts, *, widens: bool):
    self._parts = parts
    self._folding = folding.Folding(parts, widens=widens)
    self._callers = Counter(n for graph in parts.model.subgraphs for n in self._called(graph))

  def _called(self, graph: Any) -> Iterator[int]:
    for op in graph.operators:
      yield from _bodies(self._parts.kind(op), op)

  def propagate(self, graph: Any) -> None:
    """Folds the ops of the graph whose operands are constants, and gives its loops and branches
    constants of their own.

    A loop would copy what it carries in each step.
    """
    renamed: dict[int, int] = {}
    remaining = []
    for op in graph.operators:
      op.inputs = np.array([renamed.get(int(n), int(n)) for n in op.inputs], np.int32)
      kind = self._parts.kind(op)
      if bodies := _bodies(kind, op):
        if all(self._callers[n] == 1 for n in bodies):
          renamed |= self._into(graph, kind, op, [self._parts.model.subgraphs[n] for n in bodies])
        for n in bodies:
          self.propagate(self._parts.model.subgraphs[n])
      if not self._folding.fold(graph, op):
        remaining += [op, *self._narrow_rows(graph, kind, op)]
    graph.operators = remaining
    graph.outputs = np.array([renamed.get(int(n), int(n)) for n in graph.outputs], np.int32)

  def _narrow_rows(self, graph: Any, kind: str, op: Any) -> list[Any]:
    """Lets a GATHER take its rows of a table of 8-bit integers. Returns the CAST behind it."""
    if kind != "GATHER":
      return []
    table = graph.tensors[op.inputs[0]]
    weight = self._parts.value(table)
    if not isinstance(weight, Narrow) or weight.dtype == weight.quantized.dtype:
      return []
    if weight.zero is not None or weight.scale is not None:
      return []
    integers = Narrow.made(weight.quantized.dtype, weight.quantized, weight.bits)
    buffer = self._parts.add(integers)
    number = add_tensor(graph, table.name + b"/narrow", integers.dtype, table.shape, buffer)
    return [rows.taken(self._parts, graph, op, number)]

  def _into(self, graph: Any, kind: str, op: Any, bodies: Sequence[Any]) -> dict[int, int]:
    """Moves the constant operands of a loop or a branch into its bodies. Returns {result of the
    loop: the constant that it is}."""
    first = 1 if kind == "IF" else 0  # after the predicate
    operands = [int(n) for n in op.inputs[first:]]
    constant = [i for i, n in enumerate(operands) if int(graph.tensors[n].buffer) in self._weights]
    if kind == "WHILE":
      body = bodies[1]
      constant = [i for i in constant if body.outputs[i] == body.inputs[i]]
    for inner in bodies:
      for i in constant:
        inner.tensors[inner.inputs[i]].buffer = graph.tensors[operands[i]].buffer
      inner.inputs = _without_places(inner.inputs, constant)
    op.inputs = np.array([*op.inputs[:first], *_without_places(operands, constant)], np.int32)
    if kind == "IF":
      return {}
    bodies[1].outputs = _without_places(bodies[1].outputs, constant)
    results = {int(op.outputs[i]): operands[i] for i in constant}
    op.outputs = _without_places(op.outputs, constant)
    return results

  @property
  def _weights(self) -> Mapping[int, Weight]:
    return self._parts.weights


def _bodies(kind: str, op: Any) -> tuple[int, ...]:
  """The subgraphs of a loop (condition, body) or of a branch."""
  options = op.builtinOptions
  if kind == "WHILE":
    return options.condSubgraphIndex, options.bodySubgraphIndex
  return (options.thenSubgraphIndex, options.elseSubgraphIndex) if kind == "IF" else ()


def _without(numbers: Sequence[int], dropped: set[int]) -> np.ndarray:
  return np.array([n for n in numbers if int(n) not in dropped], np.int32)


def _without_places(numbers: Sequence[int], places: Sequence[int]) -> np.ndarray:
  return np.array([n for i, n in enumerate(numbers) if i not in places], np.int32)
