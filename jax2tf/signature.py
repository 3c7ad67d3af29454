"""The calling convention of a traced function: what its flat operands and results stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Signature:
  """(leaves, values of captured variables) -> (results, final values of refs).

  Attributes:
    in_tree: structure of `(args, kwargs)` without static arguments, whose leaves come first.
    out_tree: structure of the user's result, whose leaves come first.
    substituted: the variables that TensorFlow functions inside capture. Their values are the
      operands after the leaves.
    closed_over: the variables of the refs that the function closes over. Their values are the last
      operands, and their final values the last results, after those of refs among the arguments.
  """

  in_tree: Any
  out_tree: Any
  substituted: tuple[tf.Variable, ...] = ()
  closed_over: tuple[tf.Variable, ...] = ()

  @property
  def captured(self) -> tuple[tf.Variable, ...]:
    """The variables whose values are operands."""
    return (*self.substituted, *self.closed_over)

  @property
  def n_results(self) -> int:
    """How many leaves the user's result has."""
    return int(self.out_tree.num_leaves)

  def split_operands(self, operands: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """(those of the leaves, those of `captured`)."""
    count = self.in_tree.num_leaves
    return operands[:count], operands[count:]

  def split_results(self, results: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """(those of the user, the final values of refs: of the arguments, then of `closed_over`)."""
    return results[: self.n_results], results[self.n_results :]
