"""Products of complex numbers: bilinear ops, and products over axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ..pair import REAL, Pair, of_pairs
from ..replay import again
from ..special import like
from .arithmetic import multiply, real


@of_pairs("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
def _bilinear(op: Any, x: Pair, y: Pair) -> list[Pair]:
  """x c64[b,n,k], y c64[b,k,m] -> c64[b,n,m]; four real products."""

  def product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return again(op, [a, b], REAL)[0]

  if op.type.startswith("BatchMatMul"):  # which conjugates what it transposes
    x, y = (
      Pair(operand.re, -operand.im) if op.get_attr(adjoint) else operand
      for operand, adjoint in ((x, "adj_x"), (y, "adj_y"))
    )
  re = product(x.re, y.re) - product(x.im, y.im)
  return [Pair(re, product(x.re, y.im) + product(x.im, y.re))]


@of_pairs("Prod")
def _prod(op: Any, x: Pair, axes: tf.Tensor) -> list[Pair]:
  """x c64[n,m] -> c64[m], by halves; the size of the axes must be known."""
  known = tf.get_static_value(axes)
  sizes = x.shape.as_list()
  reduced = (
    sorted({int(axis) % len(sizes) for axis in np.ravel(known)}) if known is not None else []
  )
  if known is None or any(sizes[axis] is None for axis in reduced):
    raise NotImplementedError("a product over an axis of unknown size")
  for axis in reversed(reduced):
    x = _halved(x.map(lambda part, axis=axis: _last(part, axis)))
    x = x.map(lambda part: tf.squeeze(part, -1))
  if op.get_attr("keep_dims"):
    for axis in reduced:
      x = x.map(lambda part, axis=axis: tf.expand_dims(part, axis))
  return [x]


def _last(x: tf.Tensor, axis: int) -> tf.Tensor:
  """Moves an axis to the end."""
  rest = [k for k in range(x.shape.rank) if k != axis]
  return tf.transpose(x, [*rest, axis])


def _halved(x: Pair) -> Pair:
  """x c64[...,n] -> c64[...,1], its product."""
  size = x.shape[-1]
  if size == 0:
    return real(tf.ones_like(tf.reduce_sum(x.re, -1, keepdims=True)))
  while size > 1:
    half = size // 2
    first = x.map(lambda part, half=half: part[..., :half])
    second = x.map(lambda part, half=half: part[..., half : 2 * half])
    product = multiply(first, second)
    if size % 2:
      rest = x.map(lambda part: part[..., -1:])
      product = product.map(lambda part, last: tf.concat([part, last], -1), rest)
    x, size = product, size - half
  return x


@of_pairs("Cumprod")
def _cumprod(op: Any, x: Pair, axis: tf.Tensor) -> list[Pair]:
  """x c64[n,m] -> c64[n,m], in log n steps; the size of the axis must be known."""
  rank, known = x.shape.rank, tf.get_static_value(axis)
  size = None if known is None else x.shape[int(known)]
  if size is None:
    raise NotImplementedError("a cumulative product over an axis of unknown size")
  axis = int(known) % rank
  if op.get_attr("reverse"):
    x = x.map(lambda part: tf.reverse(part, [axis]))
  if op.get_attr("exclusive"):
    x = _shifted(x, axis, 1, size)
  step = 1
  while step < size:
    x = multiply(x, _shifted(x, axis, step, size))
    step *= 2
  if op.get_attr("reverse"):
    x = x.map(lambda part: tf.reverse(part, [axis]))
  return [x]


def _shifted(x: Pair, axis: int, by: int, size: int) -> Pair:
  """x moved along the axis, with ones before it."""
  paddings = [[by if k == axis else 0, 0] for k in range(x.shape.rank)]
  begin = [slice(None)] * axis + [slice(0, size - by)]
  kept = x.map(lambda part: part[tuple(begin)])
  ones_before = tf.pad(kept.re, paddings, constant_values=like(1, kept.re))
  return Pair(ones_before, tf.pad(kept.im, paddings))
