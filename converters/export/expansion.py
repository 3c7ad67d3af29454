"""The registry of expansions: ops that targets lack, as TensorFlow functions of ops that they
have. The modules of `jax2tf.converters.export.expanded` fill it.

  @expands("TridiagonalSolve")

An expansion takes the op, for its attributes, and its operands, and returns the list of results, as
a replacement does; but the ops that it makes are replaced and expanded in turn. So it is TensorFlow
code as any, with loops and branches, and serves all targets. A replacement of a target goes before
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Expansion: TypeAlias = Callable[..., Sequence[tf.Tensor]]

# The most elements of a result that is computed from constants during the export. The TFLite
# converter (TF 2.21) folds sums and products of constants, but not cosines: of a kernel from 64
# states it made 1.2 MB.
_FOLDED = 2**15

EXPANSIONS: dict[str, Expansion] = {}  # {type of op: its expansion}
_TAKES: dict[str, Callable[..., bool]] = {}  # {type of op: whether its expansion takes operands}


def expands(
  *ops: str, takes: Callable[..., bool] = lambda op, *operands: True
) -> Callable[[Expansion], Expansion]:
  """Registers an expansion.

  Args:
    ops: the types of the expanded ops.
    takes: of the op and its operands, whether it is expanded; otherwise it stays.

  Raises:
    ValueError: an op already has one.
  """

  def register(expansion: Expansion) -> Expansion:
    if twice := [op for op in ops if op in EXPANSIONS]:
      raise ValueError(f"{twice[0]} already has an expansion, {EXPANSIONS[twice[0]].__qualname__}")
    EXPANSIONS.update(dict.fromkeys(ops, expansion))
    _TAKES.update(dict.fromkeys(ops, takes))
    return expansion

  return register


def is_expanded(op: tf.Operation, operands: Sequence[tf.Tensor]) -> bool:
  """Whether an op with these operands has an expansion."""
  return op.type in EXPANSIONS and _TAKES[op.type](op, *operands)


class Call:
  """A function of an op, such as its expansion, for its operands. Known integers, such as axes,
  stay constants.

  Attributes:
    op: the op.
    key: equal for ops whose results the same graph computes.
    tensors: the operands that are its inputs.
  """

  def __init__(self, op: tf.Operation, operands: Sequence[Any], function: Expansion):
    self.op, self._operands, self._function = op, operands, function
    self._known = [tf.get_static_value(x) if x.dtype.is_integer else None for x in operands]
    self.tensors = [x for x, value in zip(operands, self._known, strict=True) if value is None]
    attributes = sorted((name, str(value)) for name, value in op.node_def.attr.items())
    kinds = [
      (x.dtype, str(x.shape), None if value is None else value.tobytes())
      for x, value in zip(operands, self._known, strict=True)
    ]
    self.key = repr((op.type, attributes, kinds))

  def traced(self) -> Any:
    """Its ConcreteFunction of `tensors`."""

    def function(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
      given = iter(tensors)
      operands = [
        next(given) if value is None else tf.constant(value, x.dtype)
        for x, value in zip(self._operands, self._known, strict=True)
      ]
      return tuple(self._function(self.op, *operands))

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in self.tensors]
    with tf.init_scope():
      return tf.function(function, autograph=False).get_concrete_function(*specs)

  def folded(self, concrete: Any) -> list[tf.Tensor] | None:
    """The results of the traced function as constants, if the operands are known and the results
    are few."""
    known = [_known(x) for x in self.tensors]
    if any(value is None for value in known) or not all(map(_is_small, concrete.outputs)):
      return None
    with tf.init_scope():
      values = [y.numpy() for y in concrete(*map(tf.constant, known))]
    return [tf.constant(value) for value in values]


def _is_small(x: tf.Tensor) -> bool:
  """Whether it is known to have few elements."""
  size = x.shape.num_elements()
  return x.dtype != tf.variant and size is not None and size <= _FOLDED


def _known(x: tf.Tensor) -> Any:
  """The value of a small constant, or None."""
  return tf.get_static_value(x) if _is_small(x) else None
