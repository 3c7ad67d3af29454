"""Discrete Fourier transforms of one to three axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..pair import Pair, of_pairs
from . import fourier


@of_pairs("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
def _complex(op: Any, x: Pair) -> list[Pair]:
  """x c64[...,n,m] -> c64[...,n,m]."""
  transform = fourier.inverse if op.type.startswith("I") else fourier.forward
  count = _count(op)
  _known(x.shape.as_list()[-count:])
  for axis in range(-count, 0):
    x = _along(transform, x, axis)
  return [x]


@of_pairs("RFFT", "RFFT2D", "RFFT3D")
def _of_real(op: Any, x: tf.Tensor, lengths: tf.Tensor) -> list[Pair]:
  """x f32[...,n,m] -> c64[...,n,m//2+1], after x is cut or padded to the lengths."""
  sizes = _lengths(lengths)
  for axis, size in enumerate(sizes, -len(sizes)):
    x = _fitted(x, axis, size)
  y = fourier.forward_of_real(x)
  for axis in range(-len(sizes), -1):
    y = _along(fourier.forward, y, axis)
  return [y]


@of_pairs("IRFFT", "IRFFT2D", "IRFFT3D")
def _to_real(op: Any, x: Pair, lengths: tf.Tensor) -> list[tf.Tensor]:
  """x c64[...,n,m//2+1] -> f32[...,n,m], after x is cut or padded for the lengths."""
  *others, last = _lengths(lengths)
  sizes = [*others, last // 2 + 1]
  for axis, size in enumerate(sizes, -len(sizes)):
    x = x.map(lambda part, axis=axis, size=size: _fitted(part, axis, size))
  for axis in range(-len(sizes), -1):
    x = _along(fourier.inverse, x, axis)
  return [fourier.inverse_to_real(x, last)]


def _count(op: Any) -> int:
  """The number of axes."""
  return int(op.type[-2]) if op.type.endswith("D") else 1


def _lengths(lengths: tf.Tensor) -> list[int]:
  known = tf.get_static_value(lengths)
  return _known(None if known is None else np.ravel(known).tolist())


def _known(sizes: Sequence[int | None] | None) -> list[int]:
  if sizes is None or None in sizes:
    raise NotImplementedError("a transform of unknown length; fix the sizes of its axes")
  return [int(size) for size in sizes if size is not None]


def _along(transform: Callable[[Pair], Pair], x: Pair, axis: int) -> Pair:
  """Transforms another axis than the last one."""
  order = list(range(x.shape.rank))
  order[axis], order[-1] = order[-1], order[axis]
  if axis == -1:
    return transform(x)
  moved = transform(x.map(lambda part: tf.transpose(part, order)))
  return moved.map(lambda part: tf.transpose(part, order))


def _fitted(x: tf.Tensor, axis: int, size: int) -> tf.Tensor:
  """x cut or padded by zeros to a size along the axis."""
  current, rank = x.shape[axis], x.shape.rank
  if current == size:
    return x
  if current is None:
    raise NotImplementedError("a transform of an axis of unknown size; fix its size")
  index = [slice(None)] * rank
  index[axis] = slice(0, size)
  paddings = [[0, 0]] * rank
  paddings[axis] = [0, max(0, size - current)]
  return x[tuple(index)] if current > size else tf.pad(x, paddings)
