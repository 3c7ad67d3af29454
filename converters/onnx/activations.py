"""ONNX's Softmax along any axis, PRelu and Softsign, which stand for several ops of a graph that
the replay reads."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from . import composites, matching

_SAME = ("Identity", "Maximum", "Reshape", "StopGradient")  # between z - ... and max(z)


def softmax(op: Any, x: tf.Tensor) -> tf.Tensor | None:
  """exp(z - max(z)) over its sum along one axis of f32[...], where z may be -inf outside of a mask,
  and the sum be that inside of it; None of another quotient.

  Args:
    op: the RealDiv of the original graph.
    x: its first operand in the new graph.
  """
  numerator, denominator = op.inputs
  total = _moved(denominator, ("Identity", "Reshape"))
  if x.dtype != tf.float32 or numerator.op.type != "Exp" or total.op.type != "Sum":
    return None
  difference = numerator.op.inputs[0].op
  if difference.type != "Sub":
    return None
  z, largest = difference.inputs[0], _moved(difference.inputs[1], _SAME)
  axis = _axis(total.op)
  is_shifted = largest.op.type == "Max" and largest.op.inputs[0].ref() == z.ref()
  if axis is None or not is_shifted or _axis(largest.op) != axis:
    return None
  summed = total.op.inputs[0]
  if summed.ref() != numerator.ref() and not _is_inside(summed, numerator, z):
    return None
  if not _is_beside(denominator, z, axis) or not _is_beside(difference.inputs[1], z, axis):
    return None
  if x.op.type != "Exp" or x.op.inputs[0].op.type != "Sub":
    return None
  return composites.composite("Softmax", [x.op.inputs[0].op.inputs[0]], axis=axis)


def _is_inside(summed: tf.Tensor, numerator: tf.Tensor, z: tf.Tensor) -> bool:
  """Whether `summed` is the numerator inside of a mask and else 0, and z is -inf there."""
  if summed.op.type != "SelectV2" or z.op.type != "SelectV2":
    return False
  mask, inside, outside = summed.op.inputs
  mask_of_z, _, outside_of_z = z.op.inputs
  is_of_mask = inside.ref() == numerator.ref() and matching.are_equal(mask, mask_of_z)
  return is_of_mask and _is_number(outside, 0) and _is_number(outside_of_z, float("-inf"))


def _moved(x: tf.Tensor, kinds: tuple[str, ...]) -> tf.Tensor:
  """What is before these ops; a Maximum is one with -inf."""
  while x.op.type in kinds:
    if x.op.type == "Maximum" and not _is_number(x.op.inputs[1], float("-inf")):
      break
    x = x.op.inputs[0]
  return x


def _axis(reduction: Any) -> int | None:
  axes = tf.get_static_value(reduction.inputs[1])
  rank = reduction.inputs[0].shape.rank
  if axes is None or axes.size != 1 or rank is None:
    return None
  return int(axes.item()) % rank


def _is_beside(y: tf.Tensor, z: tf.Tensor, axis: int) -> bool:
  """Whether y, made of reductions of z along the axis, has their elements where they belong beside
  z: of the shape of z with a 1 at the axis, or without leading ones."""
  sizes = z.shape.as_list()
  sizes[axis] = 1
  if y.shape.rank is None or sizes.count(None) > 1:
    return False
  known = [1] * (len(sizes) - y.shape.rank) + y.shape.as_list()
  return known == sizes


def prelu(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor | None:
  """select(x >= 0, x, slope * x) of f32[...]; None of another SelectV2 of the new graph."""
  if x.dtype != tf.float32 or condition.op.type != "GreaterEqual" or y.op.type != "Mul":
    return None
  compared, zero = condition.op.inputs
  if compared is not x or not _is_number(zero, 0):
    return None
  for slope, factor in (y.op.inputs, y.op.inputs[::-1]):
    if factor is x and slope is not x and _is_row(slope, x):
      return composites.composite("PRelu", [x, slope])
  return None


def _is_row(slope: tf.Tensor, x: tf.Tensor) -> bool:
  """Whether the slope broadcasts to x, which it does not change in shape."""
  if slope.shape.rank is None or x.shape.rank is None or slope.shape.rank > x.shape.rank:
    return False
  aligned = x.shape.as_list()[x.shape.rank - slope.shape.rank :]
  sizes = zip(slope.shape.as_list(), aligned, strict=True)
  return all(size == 1 or (size is not None and size == of_x) for size, of_x in sizes)


def softsign(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor | None:
  """x / (|x| + 1) of f32[...]; None of another quotient of the new graph."""
  if x.dtype != tf.float32 or y.op.type != "AddV2" or not _is_number(y.op.inputs[1], 1):
    return None
  size = y.op.inputs[0].op
  return tf.nn.softsign(x) if size.type == "Abs" and size.inputs[0] is x else None


def _is_number(x: tf.Tensor, number: float) -> bool:
  value = tf.get_static_value(x) if x.dtype == tf.float32 else None
  return value is not None and value.size == 1 and float(value.item()) == number
