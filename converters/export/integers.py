"""Products and convolutions of 8-bit integers, exactly, in float32: runtimes lack kernels of int32,
or have slow ones.

A sum of products of such integers is an integer, and float32 has every integer up to 2**24. So the
order of the sum does not matter, and a longer sum is added in parts, as int32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from . import replay
from .replay import Replacement

_EXACT = 2**24
_LARGEST = 255  # of the magnitudes of 8-bit integers
# Ops whose first operand has the elements of the result, or zeros.
_MOVES = {"ExpandDims", "GatherV2", "Identity", "Pad", "Reshape", "ReverseV2", "Slice", "Squeeze"}
_MOVES |= {"StridedSlice", "Tile", "Transpose", "Unpack", "BroadcastTo"}
_OF_4_BITS = {tf.as_dtype("int4"): (-8, 7), tf.as_dtype("uint4"): (0, 15)}
_IN_FLOAT32 = {tf.int32: tf.float32}


def of_8_bits(exact: Callable[..., list[tf.Tensor] | None]) -> Callable[[Replacement], Replacement]:
  """Puts `exact`, one of the functions below, before a replacement, which has what it leaves."""

  def before(replacement: Replacement) -> Replacement:
    def chosen(op: tf.Operation, *operands: tf.Tensor) -> Any:
      results = exact(op, *operands)
      return replacement(op, *operands) if results is None else results

    return chosen

  return before


def product(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor] | None:
  """MatMul, BatchMatMulV2: i32[..., i, k], i32[..., k, j] -> i32[..., i, j].

  Returns:
    None if the operands are not known to be 8-bit integers, or k is not known.
  """
  first, second = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
  x_axis = -2 if op.get_attr(first) else -1
  y_axis = -1 if op.get_attr(second) else -2
  return _in_parts(op, (x, x_axis), (y, y_axis), x.shape[x_axis], 1)


def convolution(op: tf.Operation, image: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor] | None:
  """Conv2D, Conv3D: image i32[n,*s,g*i], kernel i32[*k,i,g*o] -> i32[n,*t,g*o].

  Returns:
    None if the operands are not known to be 8-bit integers, or the kernel's sizes are not known, or
    the sum of a group is too long.
  """
  if op.inputs[0].dtype != tf.int32:
    return None
  *lengths, inputs, _ = kernel.shape.as_list()
  if None in (*lengths, inputs, image.shape[-1]) or op.get_attr("data_format")[-1:] != b"C":
    return None
  if image.shape[-1] != inputs and _parts(op, math.prod([*lengths, inputs])) != 1:
    return None
  return _in_parts(op, (image, -1), (kernel, -2), inputs, math.prod(lengths))


def _in_parts(
  op: tf.Operation, x: tuple[tf.Tensor, int], y: tuple[tf.Tensor, int], size: int | None, terms: int
) -> list[tf.Tensor] | None:
  """The op on float32 operands, cut along an axis of each of this size. `terms`: of the sum for
  each index of the axis."""
  if op.inputs[0].dtype != tf.int32 or size is None or not (count := _parts(op, size * terms)):
    return None
  if count > 1 and _parts(op, terms) != 1:
    return None
  length = math.ceil(size / count) if size else 1
  sizes = [min(length, size - start) for start in range(0, size, length)] or [0]
  operands = [
    tf.split(wide, sizes, axis) if len(sizes) > 1 else [wide]
    for wide, axis in ((tf.cast(tensor, tf.float32), axis) for tensor, axis in (x, y))
  ]
  parts = [
    tf.cast(replay.again(op, pair, _IN_FLOAT32)[0], tf.int32)
    for pair in zip(*operands, strict=True)
  ]
  return [functools.reduce(tf.add, parts)]


def _parts(op: tf.Operation, terms: int) -> int:
  """The number of parts of a sum of so many products in which each is exact; 0 if the operands may
  be larger than 8 bits."""
  x, y = (_bound(operand) for operand in op.inputs)
  if x is None or y is None:
    return 0
  return max(1, math.ceil(terms * x * y / _EXACT))


def _bound(x: tf.Tensor) -> int | None:
  """The largest magnitude of an operand; None if it may be more than that of 8 bits."""
  least, greatest = _range(x)
  largest = max(-least, greatest)
  return largest if largest <= _LARGEST else None


def _range(x: tf.Tensor) -> tuple[int, int]:
  """Numbers between which all elements of a tensor of integers are."""
  op, limits = x.op, _limits(x.dtype)
  if x.dtype.size == 1:
    return limits
  if op.type == "Const":
    value = np.asarray(tf.get_static_value(x))
    return int(value.min(initial=0)), int(value.max(initial=0))
  if (op.type != "Cast" and op.type not in _MOVES) or not op.inputs[0].dtype.is_integer:
    return limits
  least, greatest = _range(op.inputs[0])
  # a cast takes an element that its dtype lacks modulo 2**bits: -1 becomes 2**16 - 1
  fits = limits[0] <= least and greatest <= limits[1]
  return (min(least, 0), max(greatest, 0)) if fits else limits


def _limits(dtype: tf.DType) -> tuple[int, int]:
  """The least and the greatest integer of a dtype."""
  if dtype in _OF_4_BITS:
    return _OF_4_BITS[dtype]
  return int(dtype.min), int(dtype.max)
