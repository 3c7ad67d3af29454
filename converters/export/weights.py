"""Weights that a converter never sees, because they are inputs while it runs.

Converters of TensorFlow and ONNX copy each constant many times: TensorFlow 2.21's LiteRT converter
takes 28 times the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from .narrow import INT4, packed
from .ranges import RangedWeight


@dataclass(frozen=True)
class Weight:
  """An array that is computed when it is written, and not kept.

  Attributes:
    shape: its sizes.
    dtype: its dtype.
    read: computes it.
  """

  shape: tuple[int, ...]
  dtype: np.dtype[Any]
  read: Callable[[], np.ndarray]

  @classmethod
  def of(cls, variable: tf.Variable) -> Weight:
    """The value of a variable, whose memory is shared."""
    dtype = np.dtype(variable.dtype.as_numpy_dtype)
    return cls(tuple(variable.shape), dtype, lambda: np.asarray(variable.value()))

  @classmethod
  def of_array(cls, array: np.ndarray) -> Weight:
    """An array that is there already."""
    return cls(array.shape, array.dtype, lambda: array)

  @property
  def size(self) -> int:
    """The number of elements."""
    return int(np.prod(self.shape, dtype=np.int64))

  @property
  def nbytes(self) -> int:
    """In bytes."""
    return self.size * self.dtype.itemsize

  def reshaped(self, shape: Sequence[int]) -> Weight:
    """The same elements in other sizes."""
    return Weight(tuple(shape), self.dtype, lambda: self.read().reshape(shape))

  def transposed(self, order: Sequence[int]) -> Weight:
    """Its axes in this order."""
    shape = tuple(self.shape[axis] for axis in order)
    return Weight(shape, self.dtype, lambda: self.read().transpose(order))

  def part(self, index: tuple[Any, ...]) -> Weight:
    """weight[index], of which only the sizes are computed here."""
    shape = np.broadcast_to(np.zeros((), np.bool_), self.shape)[index].shape
    return Weight(shape, self.dtype, lambda: self.read()[index])

  def cast(self, dtype: Any) -> Weight:
    """Rounded to another dtype."""
    return Weight(self.shape, np.dtype(dtype), lambda: self.read().astype(dtype))

  def in_four_bits(self) -> Weight:
    """Integers of 4 bits as the bytes of a file."""
    size = -(-self.size // 2)
    return Weight(
      (size,), np.dtype(np.uint8), lambda: packed(self.read().astype(INT4.as_numpy_dtype))
    )


def nbytes(variable: tf.Variable) -> int:
  """The size of a variable; 0 if its shape is not known."""
  return int(variable.shape.num_elements() or 0) * int(variable.dtype.size)


def large(
  variables: Sequence[tf.Variable], least: int, total: int, dtypes: Sequence[tf.DType]
) -> list[tf.Variable]:
  """The large variables of a large model; none of others.

  Args:
    variables: all of the model; several may be the same.
    least: the bytes of a variable that is an input; smaller ones are constants.
    total: the bytes of all variables that make a model large.
    dtypes: those of variables that may be inputs.
  """
  unique = {id(variable): variable for variable in variables}.values()
  if sum(map(nbytes, unique)) <= total:
    return []
  return [v for v in unique if v.dtype in dtypes and nbytes(v) >= least]


def named(variables: Sequence[tf.Variable], taken: Collection[str]) -> dict[str, tf.Variable]:
  """{name of an input: variable}; several may be the same. `taken`: the names of other inputs."""
  unique = list({id(variable): variable for variable in variables}.values())
  unique.sort(key=lambda variable: variable.name)  # a graph has them in the order of a set
  stem = "weight"
  while any(name.startswith(stem) for name in taken):
    stem += "_"
  return {f"{stem}{i}": variable for i, variable in enumerate(unique)}


def used(weights: Mapping[str, Any], concrete: Any) -> dict[str, Any]:
  """Those that a ConcreteFunction reads, or quantizes."""
  graph = concrete.graph
  read = {id(variable) for variable in graph.variables}
  return {
    name: variable
    for name, variable in weights.items()
    if (variable.op.graph is graph if isinstance(variable, RangedWeight) else id(variable) in read)
  }
