"""Ranges of tensors that the function itself quantizes: Qwix' composites `quant.fake_quant`.

A lowered composite is an IdentityN of its result and of its operand, with its attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf._tf_compat import FAKE_QUANT

from ..bundle import graphs
from .replay import Replacement
from .source import Signature, Source

MARK = "IdentityN"
_BITS = {b"i4": 4, b"i8": 8}


@dataclass(frozen=True)
class Range:
  """round(x / scale) + zero, of so many bits.

  Attributes:
    scale, zero: one number, or one for each index of `axis`.
    axis: None for one number.
    bits: of each integer.
    is_narrow: whether the least integer is left out.
  """

  scale: np.ndarray
  zero: np.ndarray
  axis: int | None
  bits: int
  is_narrow: bool

  @classmethod
  def of(cls, attributes: Any) -> Range | None:
    """From the attributes of a node; None for another node, and for a range that is only known at
    run time, or of other bits."""
    if f"{FAKE_QUANT}scale" not in attributes:
      return None
    scale, zero, axis, dtype, narrow = (
      attributes[f"{FAKE_QUANT}{key}"]
      for key in ("scale", "zero_point", "axis", "dtype", "narrow_range")
    )
    if dtype.s not in _BITS or not scale.list.f:
      return None
    scales = np.array(scale.list.f, np.float32)
    zeros = np.array(zero.list.i or [0] * scales.size, np.int64)
    return cls(scales, zeros, axis.i if axis.i >= 0 else None, _BITS[dtype.s], narrow.b)

  @property
  def is_of_tensor(self) -> bool:
    """Whether it has one scale, and all integers of 8 bits."""
    return self.axis is None and self.bits == 8 and not self.is_narrow

  def quantized(self, x: np.ndarray) -> np.ndarray:
    """The integers of an array, as int8."""
    shape = [1] * x.ndim
    if self.axis is not None:
      shape[self.axis] = -1
    scale, zero = self.scale.reshape(shape), self.zero.reshape(shape)
    most = (1 << (self.bits - 1)) - 1
    whole = np.round(x / scale + zero.astype(np.float32))
    return np.clip(whole, -most if self.is_narrow else -most - 1, most).astype(np.int8)


def has_any(source: Source) -> bool:
  """Whether a signature quantizes tensors in known ranges."""
  nodes = (
    node
    for one in source.signatures.values()
    for node in graphs.nodes(one.function.graph.as_graph_def())
  )
  return any(node.op == MARK and Range.of(node.attr) is not None for node in nodes)


@dataclass(frozen=True, eq=False)
class RangedWeight:
  """The integers of a parameter that the function quantizes, as a variable.

  Attributes:
    op: the IdentityN.
    range: its range.
    values: the tensor that is quantized.
  """

  op: tf.Operation
  range: Range
  variable: tf.Variable
  values: tf.Tensor
  dtype = tf.int8

  @property
  def name(self) -> str:
    return f"{self.variable.name.split(':')[0]}/quantized"

  @property
  def shape(self) -> tf.TensorShape:
    return self.values.shape

  @cached_property
  def _array(self) -> np.ndarray:
    return self.range.quantized(_value(self.values, self.variable))

  def numpy(self) -> np.ndarray:
    """int8: the integers."""
    return self._array

  def dequantized(self, integers: tf.Tensor) -> tf.Tensor:
    """(integers - zero) * scale."""
    shape = [1] * self.shape.rank
    if self.range.axis is not None:
      shape[self.range.axis] = -1
    wide = tf.cast(integers, tf.float32)
    if self.range.zero.any():
      wide -= tf.constant(self.range.zero.astype(np.float32).reshape(shape))
    return wide * tf.constant(self.range.scale.reshape(shape))


def weights_of(signature: Signature) -> Iterator[RangedWeight]:
  """The parameters that the signature quantizes, outside of its loops and branches."""
  graph = signature.function.graph
  variables = {id(v.handle): v for v in graph.variables}
  inner = {inside.ref(): variables.get(id(outer)) for outer, inside in graph.captures}
  for op in graph.get_operations():
    found = Range.of(op.node_def.attr) if op.type == MARK else None
    if found is None or not op.inputs[1].shape.is_fully_defined():
      continue
    root = _root(op.inputs[1])
    variable = None if root is None else inner.get(root.ref())
    if variable is not None and variable.dtype == tf.float32:
      yield RangedWeight(op, found, variable, op.inputs[1])


def _root(x: tf.Tensor) -> tf.Tensor | None:
  """The handle of the variable of which the tensor has the elements."""
  while x.op.type in ("Identity", "Reshape", "Transpose"):
    x = x.op.inputs[0]
  return x.op.inputs[0] if x.op.type == "ReadVariableOp" else None


def _value(x: tf.Tensor, variable: tf.Variable) -> np.ndarray:
  if x.op.type == "ReadVariableOp":
    return np.asarray(variable.value())
  array = _value(x.op.inputs[0], variable)
  if x.op.type == "Transpose":
    return array.transpose(tf.get_static_value(x.op.inputs[1]))
  return array.reshape(x.shape.as_list())


def marked(of_weight: Any, of_activation: Any) -> Replacement:
  """A replacement of IdentityN.

  Args:
    of_weight: op -> the new tensor of a parameter that the function quantizes; None for another.
    of_activation: (range, new result, new operand) -> the new tensor.
  """

  def replacement(op: tf.Operation, *operands: Any) -> list[Any]:
    found = Range.of(op.node_def.attr)
    if found is None:
      return list(operands)
    result = of_weight(op)
    return [of_activation(found, *operands) if result is None else result, operands[1]]

  return replacement
