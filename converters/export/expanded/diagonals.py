"""Diagonals of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ..expansion import expands
from ..replay import sizes_of
from ._matrices import ranks_are_known


def _one_diagonal(op: Any, x: tf.Tensor, k: tf.Tensor, padding: tf.Tensor) -> bool:
  offset = tf.get_static_value(k)
  return ranks_are_known(op, x) and offset is not None and np.size(offset) == 1


@expands("MatrixDiagPartV3", takes=_one_diagonal)
def _diagonal_part(op: Any, x: tf.Tensor, k: tf.Tensor, padding: tf.Tensor) -> list[tf.Tensor]:
  """x [..., m, n], k i32[] -> [..., length of diagonal k]; it needs no padding."""
  offset = int(np.ravel(tf.get_static_value(k))[0])
  *leading, m, n = sizes_of(x)
  down, right = max(-offset, 0), max(offset, 0)
  sizes = m - down, n - right
  if all(isinstance(length, int) for length in sizes):
    positions = np.arange(min(sizes)) * (n + 1) + down * n + right
  else:
    positions = tf.range(tf.minimum(*sizes)) * (n + 1) + down * n + right
  part = tf.gather(tf.reshape(x, [*leading, m * n]), positions, axis=-1)
  return [part]
