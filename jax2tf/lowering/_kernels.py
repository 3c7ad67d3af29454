"""Ops that Grappler merges into an op without a kernel for their dtype.

Grappler optimises each graph before it runs. It replaces forms of ops without asking whether the
new op has a kernel. TF 2.21: only the rewrites of NO_KERNEL lead to such ops;
tests/lowering/test_kernels.py has all rewrites, and derives the dtypes from TensorFlow's kernels.

In these dtypes the rules use the functions below. What they emit is part of no form, whatever ops
Grappler removes around it: the result is behind an EnsureShape, or made of other ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from jax2tf.dtypes import FLOAT8, UNSIGNED
from jax2tf.lowering._common import is_known, scalar

# The op that Grappler creates -> the dtypes for which it has no CPU kernel, while those merged do.
NO_KERNEL: dict[str, tuple[tf.DType, ...]] = {
  # Of Square(Sub(x, y)). Square may have been Mul of equal tensors, and Sub may have been x + (-y).
  "SquaredDifference": (tf.int8, tf.int16, *UNSIGNED),
  # Of Sub(0, y). Grappler may have computed the 0.
  "Neg": UNSIGNED,
  # Of Pack(x, x ...), also where the tensors are two of equal value.
  "Tile": (tf.uint16, *FLOAT8),
}


def subtract(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x - y of any dtype that TensorFlow computes with; integers wrap."""
  if x.dtype in NO_KERNEL["Neg"] and not is_known(lambda value: value != 0, x):
    return tf.bitwise.invert(tf.bitwise.invert(x) + y)  # in two's complement
  return _apart(tf.subtract(x, y), "SquaredDifference")


def negative(x: tf.Tensor) -> tf.Tensor:
  """-x of any dtype that TensorFlow computes with; integers wrap."""
  if x.dtype in UNSIGNED:  # TF 2.21: no unsigned kernel for Neg
    return tf.bitwise.invert(x) + scalar(1, x)
  return _apart(tf.negative(x), "SquaredDifference")


def stacked(operands: Sequence[tf.Tensor], axis: int = 0) -> tf.Tensor:
  """Tensors of one shape and dtype along a new axis."""
  first, *rest = operands
  return tf.stack([_apart(first, "Tile"), *rest] if rest else [first], axis)


def _apart(x: tf.Tensor, created: str) -> tf.Tensor:
  """`x`; Grappler does not merge its op with the one that takes it into `created`."""
  if tf.executing_eagerly() or x.dtype not in NO_KERNEL[created]:
    return x
  return tf.ensure_shape(x, x.shape)
