"""The text in a file that replaces a Python function that prints or raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf._tf_compat.callbacks import Text


class _Placeholder:
  """Placeholder for an operand in a formatted text; records that it was used."""

  def __init__(self, number: int, used: list[int]):
    self._number, self._used = number, used

  def __repr__(self) -> str:
    self._used.append(self._number)
    return Text.PLACEHOLDER

  def __format__(self, spec: str) -> str:
    return repr(self)


def text_of(
  words: Callable[[Sequence[Any]], str], operands: Sequence[tf.Tensor], end: str, stream: str
) -> Text | None:
  """The TensorFlow text for `words(operands)` and `end`; None if the format accesses parts of an
  operand, such as "{x.shape}"."""
  used: list[int] = []
  try:
    template = words([_Placeholder(i, used) for i in range(len(operands))]) + end
  except (AttributeError, IndexError, KeyError, TypeError, ValueError):
    return None
  sizes = [
    math.prod(operands[i].shape) if operands[i].shape.is_fully_defined() else math.inf for i in used
  ]
  few = sum(sizes) <= np.get_printoptions()["threshold"]
  return Text(template, tuple(used), -1 if few else 3, stream)
