"""What all equations share whose ops go into one graph, as `ModuleContext` in JAX's lowering."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf._tf_compat import scopes
from jax2tf.dims import DimensionValues
from jax2tf.dtypes import FLOAT0, data_of, is_key
from jax2tf.errors import warn_user
from jax2tf.placement.devices import Destination

# Below this size a constant is cheaper to repeat in a body than to capture, and stays visible to
# TensorFlow's shape inference and constant folding.
_SMALL_CONSTANT = 16


class Constants:
  """The arrays that a function closes over, as tensors: one each, in the outermost graph."""

  def __init__(self) -> None:
    self._outermost = scopes.scope_here()
    self._name_scope = "/".join(filter(None, [tf.get_current_name_scope(), "constants/"]))
    # keeps the array alive, so that its id stays unique
    self._tensors: dict[int, tuple[Any, tf.Tensor]] = {}
    self._small: dict[tuple[scopes.Scope, bytes, str], tf.Tensor] = {}

  def __call__(self, value: Any, aval: Any) -> tf.Tensor:
    if id(value) in self._tensors:
      return self._tensors[id(value)][1]
    array = _host_array(value, aval)
    if array.size <= _SMALL_CONSTANT:
      here = scopes.scope_here()
      if here is None:
        return tf.constant(array)
      key = (here, array.tobytes(), f"{array.dtype}{array.shape}")
      if key not in self._small:
        self._small[key] = tf.constant(array)
      return self._small[key]
    if self._outermost is None:
      return tf.constant(array)
    with self._outermost.entered(), tf.name_scope(self._name_scope):
      tensor = tf.constant(array)
    self._tensors[id(value)] = (value, tensor)
    return tensor


def _host_array(value: Any, aval: Any) -> np.ndarray:
  if is_key(aval.dtype):
    return np.asarray(jax.random.key_data(value))
  if aval.dtype == FLOAT0:
    return np.zeros(aval.shape, np.bool_)
  if data := data_of(aval.dtype):
    return np.asarray(jax.lax.convert_element_type(value, data[1]))
  return np.asarray(value, aval.dtype)


@dataclass(frozen=True)
class StackedRows:
  """The rows of a loop before they were stacked.

  Attributes:
    handle: the TensorList that holds them.
    block: the sizes of a block of rows, if each of its elements is one; else [].
    is_reversed: whether the first of them is the last row.
  """

  handle: tf.Tensor
  block: Sequence[int]
  is_reversed: bool


class Stacks:
  """{stacked rows, as one tensor: the rows before}, of the graphs of one conversion.

  A TensorList is a value of one graph, so it cannot be a param of an equation. A loop that reads
  what another one has stacked reads from the list.
  """

  def __init__(self) -> None:
    # keeps the tensor alive, so that its id stays unique
    self._of_tensor: dict[int, tuple[tf.Tensor, StackedRows]] = {}

  def add(self, tensor: tf.Tensor, rows: StackedRows) -> None:
    """Says of which rows a tensor consists."""
    self._of_tensor[id(tensor)] = tensor, rows

  def of(self, tensor: tf.Tensor) -> StackedRows | None:
    """The rows of which a tensor consists, for ops of the graph under construction."""
    if id(tensor) not in self._of_tensor or tensor.graph is not _tf_compat.current_graph():
      return None
    return self._of_tensor[id(tensor)][1]

  def alias(self, tensor: tf.Tensor, source: tf.Tensor) -> None:
    """Says that a tensor is the identity of another one."""
    if id(source) in self._of_tensor:
      self.add(tensor, self._of_tensor[id(source)][1])


@dataclass(frozen=True)
class GraphContext:
  """What all equations share whose ops go into one graph.

  Attributes:
    dimensions: values of symbolic dimensions.
    destination: where the graph will run.
    constants: makes tensors of arrays.
    compiled: whether XLA compiles the branch under construction; None if either it or kernels may
      run it.
    assertions: ops that check sizes, as rules make them; ops that rely on one wait for it.
    omitted_effects: prints and checks that the graph omits, each with its line.
    stacks: the rows that loops have stacked.
  """

  dimensions: DimensionValues
  destination: Destination = field(default_factory=Destination)
  constants: Constants = field(default_factory=Constants)
  compiled: bool | None = None
  assertions: list[tf.Operation] = field(default_factory=list)
  omitted_effects: list[str] = field(default_factory=list)
  stacks: Stacks = field(default_factory=Stacks)

  def in_current_graph(self) -> GraphContext:
    """The same for the graph under construction now, which may be that of a gradient function."""
    return replace(self, dimensions=self.dimensions.in_current_graph(), constants=Constants())

  def branch(self, compiled: bool, sizes: dict[str, Any]) -> GraphContext:
    """The same for a branch that XLA, or kernels, run; `sizes` has more dimension variables."""
    return replace(self, compiled=compiled, dimensions=self.dimensions.also(sizes))

  def warn_of_omitted_effects(self) -> None:
    """Issues one warning for all omitted prints and checks."""
    if lines := dict.fromkeys(self.omitted_effects):
      self.omitted_effects.clear()
      listed = "".join(f"\n  {line}" for line in lines)
      warn_user(
        f"TensorFlow's XLA compiles no callbacks: jit_compile=True omits prints and checks:{listed}"
      )


def asserted(
  condition: tf.Tensor, data: Sequence[Any], message: str, summarize: int | None = None
) -> tf.Operation:
  """An op that fails if the condition does not hold: with `data` when it runs, with `message` when
  XLA compiles it.

  XLA drops Asserts. So behind one there is an op that XLA compiles only if the condition holds,
  which may depend on sizes: they are static for XLA. XLA's error contains the name of the op, which
  is the message. Without XLA, Grappler removes the op, because its result is unused.
  """
  name = re.sub(r"[^\w.]+", "_", message).strip("_")
  with tf.device(condition.device):
    check = tf.debugging.Assert(condition, data, summarize=summarize)
    with tf.control_dependencies([check]):
      step = tf.cast(condition, tf.int32)
      return tf.range(step, step, step, name=name).op  # a range has no steps of 0
