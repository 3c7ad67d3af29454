"""Gradients of convolutions and pools, transposed convolutions with explicit padding, and
convolutions of an unknown number of features, in ops that targets have.

Kernels that are moved over an image have static sizes, and channels are last. What differs stays as
it is, and the target refuses it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from .replay import again, sizes_of, with_shape

_Size: TypeAlias = Any  # int | tf.Tensor, i32[]


def input_gradient(
  op: Any, sizes: tf.Tensor, kernel: tf.Tensor, cotangent: tf.Tensor
) -> list[tf.Tensor]:
  """Conv2DBackpropInput, Conv3DBackpropInputV2: cotangent f32[n,*t,o], kernel f32[*k,i,o] ->
  f32[n,*s,i].

  No target reads `explicit_paddings`, and in ONNX the windows must fill the image. So the op gives
  the image that they fill, of which a part is cut; zeros are appended.
  """
  image, shape, lengths = _known(op.outputs[0])[1:-1], _known(kernel)[:-2], _known(cotangent)[1:-1]
  if (
    not _is_plain(op)
    or None in (*image, *shape, *lengths)
    or not len(image) == len(shape) == len(lengths) > 0
  ):
    return again(op, [sizes, kernel, cotangent])
  strides = op.get_attr("strides")[1:-1]
  full = [(t - 1) * stride + k for t, stride, k in zip(lengths, strides, shape, strict=True)]
  if op.get_attr("padding") != b"EXPLICIT" and all(
    n <= f for n, f in zip(image, full, strict=True)
  ):
    return again(op, [sizes, kernel, cotangent])
  low = [lo for lo, _ in _padding(op, image, shape, strides)]
  whole = tf.stack([sizes_of(cotangent)[0], *full, kernel.shape[-2]])
  attributes = {
    "strides": op.get_attr("strides"),
    "padding": "VALID",
    "data_format": op.get_attr("data_format").decode(),
  }
  filled = getattr(tf.raw_ops, op.type)(
    input_sizes=whole, filter=kernel, out_backprop=cotangent, **attributes
  )
  cropped = filled[(slice(None), *(slice(lo, lo + n) for lo, n in zip(low, image, strict=True)))]
  missing = [n - size for n, size in zip(image, cropped.shape.as_list()[1:-1], strict=True)]
  return [
    tf.pad(cropped, [[0, 0], *([0, more] for more in missing), [0, 0]]) if any(missing) else cropped
  ]


def convolution(op: Any, image: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
  """Conv2D, Conv3D: image f32[n,*s,g*i], kernel f32[*k,i,g*o] -> f32[n,*t,g*o].

  Products of matrices where i or o is not known, as in the gradient of a kernel, which sums over a
  symbolic batch. LiteRT needs both, and tf2onnx the number of groups. One product for each place of
  the result or of the kernel, whichever is smaller: that gradient has the places of a small kernel.
  """
  if None not in _known(kernel)[-2:] or not kernel.dtype.is_floating or not _is_channels_last(op):
    return again(op, [image, kernel])
  strides, dilations = op.get_attr("strides")[1:-1], op.get_attr("dilations")[1:-1]
  *lengths, inputs, outputs = sizes_of(kernel)
  image, out = _padded(op, image, lengths)
  batch, *sizes, features = sizes_of(image)
  counts = {name: math.prod(n) for name, n in (("out", out), ("kernel", lengths)) if _are_known(n)}
  if not counts:
    return again(op, [image, kernel])
  groups = _at_least(1, features // _at_least(1, inputs))
  parted = tf.reshape(image, [batch, math.prod(sizes), groups, inputs])
  image = tf.reshape(tf.transpose(parted, [2, 0, 1, 3]), [groups * batch, *sizes, inputs])
  if min(counts, key=counts.__getitem__) == "out":
    length = math.prod(lengths) * inputs
    weights = tf.transpose(tf.reshape(kernel, [length, groups, outputs // groups]), [1, 0, 2])
    windows = _windows(image, lengths, out, dilations, strides)
    parts = [
      tf.matmul(tf.reshape(window, [groups, batch, length]), weights) for _, window in windows
    ]
    result = tf.transpose(tf.stack(parts, 2), [1, 2, 0, 3])
  else:
    count, rows = math.prod(lengths), batch * math.prod(out)
    weights = tf.reshape(kernel, [count, inputs, groups, outputs // groups])
    weights = tf.unstack(tf.transpose(weights, [0, 2, 1, 3]), count)
    windows = _windows(image, out, lengths, strides, dilations)
    parts = [
      tf.matmul(tf.reshape(window, [groups, rows, inputs]), weight)
      for weight, (_, window) in zip(weights, windows, strict=True)
    ]
    result = tf.transpose(tf.add_n(parts), [1, 0, 2])
  return [with_shape(tf.reshape(result, [batch, *out, outputs]), op.outputs[0].shape)]


def depthwise_convolution(op: Any, image: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
  """DepthwiseConv2dNative: image f32[n,h,w,i], kernel f32[kh,kw,i,m] -> f32[n,h',w',i*m].

  A sum over the places of the kernel where i or m is not known.
  """
  lengths, features = _known(kernel)[:2], _known(kernel)[2:]
  is_moved = None in features and None not in lengths and kernel.dtype.is_floating
  if not is_moved or not _is_channels_last(op):
    return again(op, [image, kernel])
  image, out = _padded(op, image, lengths)
  strides, dilations = op.get_attr("strides")[1:-1], op.get_attr("dilations")[1:-1]
  windows = _windows(image, out, lengths, strides, dilations)
  parts = [tf.expand_dims(window, -1) * kernel[position] for position, window in windows]
  inputs, multiplier = sizes_of(kernel)[2:]
  result = tf.reshape(tf.add_n(parts), [sizes_of(image)[0], *out, inputs * multiplier])
  return [with_shape(result, op.outputs[0].shape)]


def filter_gradient(
  op: Any, image: tf.Tensor, sizes: tf.Tensor, cotangent: tf.Tensor
) -> list[tf.Tensor]:
  """Conv2DBackpropFilter, Conv3DBackpropFilterV2: image f32[n,*s,i], cotangent f32[n,*t,o] ->
  f32[*k,i,o]."""

  def product(window: tf.Tensor, inputs: int, outputs: int) -> tf.Tensor:
    return tf.matmul(
      tf.reshape(window, [-1, inputs]), tf.reshape(cotangent, [-1, outputs]), transpose_a=True
    )

  return _by_places(op, image, sizes, cotangent, product)


def depthwise_filter_gradient(
  op: Any, image: tf.Tensor, sizes: tf.Tensor, cotangent: tf.Tensor
) -> list[tf.Tensor]:
  """DepthwiseConv2dNativeBackpropFilter: image f32[n,h,w,i], cotangent f32[n,h',w',i*m] ->
  f32[kh,kw,i,m]."""

  def product(window: tf.Tensor, inputs: int, outputs: int) -> tf.Tensor:
    return tf.reduce_sum(
      tf.reshape(window, [-1, inputs, 1]) * tf.reshape(cotangent, [-1, inputs, outputs]), 0
    )

  return _by_places(op, image, sizes, cotangent, product)


def depthwise_input_gradient(
  op: Any, sizes: tf.Tensor, kernel: tf.Tensor, cotangent: tf.Tensor
) -> list[tf.Tensor]:
  """DepthwiseConv2dNativeBackpropInput: cotangent f32[n,h',w',i*m], kernel f32[kh,kw,i,m] ->
  f32[n,h,w,i].

  A depthwise convolution by the reversed kernel of the cotangent with zeros between its elements.
  """
  shape, strides = kernel.shape.as_list(), op.get_attr("strides")[1:3]
  if not _is_plain(op) or None in shape:
    return again(op, [sizes, kernel, cotangent])
  image = [sizes[i + 1] if n is None else n for i, n in enumerate(_known(op.outputs[0])[1:3])]
  low = [lo for lo, _ in _padding(op, image, shape[:2], strides)]
  spread = cotangent
  for axis, stride in enumerate(strides, 1):
    spread = _with_zeros_between(spread, axis, stride)
  # The image that it convolves begins `before` pixels ahead of the first element. What is behind
  # that image is cut.
  before = [k - 1 - lo for k, lo in zip(shape[:2], low, strict=True)]
  spread = tf.pad(
    spread,
    [[0, 0], *([_positive(lo), k - 1] for k, lo in zip(shape[:2], before, strict=True)), [0, 0]],
  )
  lengths = [n + k - 1 for n, k in zip(image, shape[:2], strict=True)]
  spread = _of_sizes(
    tf.slice(spread, [0, *(_positive(-lo) for lo in before), 0], [-1, *lengths, -1]),
    [None, *lengths, shape[2] * shape[3]],
  )
  turned = tf.reshape(
    tf.reverse(tf.reverse(kernel, [0]), [1]), [*shape[:2], shape[2] * shape[3], 1]
  )
  parts = tf.raw_ops.DepthwiseConv2dNative(
    input=spread, filter=turned, strides=[1, 1, 1, 1], padding="VALID"
  )
  if shape[3] != 1:
    parts = tf.reduce_sum(tf.reshape(parts, [-1, *image, *shape[2:]]), -1)
  return [with_shape(parts, op.outputs[0].shape)]


def max_pool_gradient(
  op: Any, image: tf.Tensor, pooled: tf.Tensor, cotangent: tf.Tensor
) -> list[tf.Tensor]:
  """MaxPoolGrad: image f32[n,h,w,i], pooled and cotangent f32[n,h',w',i] -> f32[n,h,w,i].

  The first of the largest elements of a window gets its cotangent.
  """
  window, strides = op.get_attr("ksize")[1:-1], op.get_attr("strides")[1:-1]
  if op.get_attr("data_format") != b"NHWC" or op.get_attr("ksize")[-1] != 1:
    return again(op, [image, pooled, cotangent])
  pads = _padding(op, sizes_of(image)[1:-1], window, strides)
  padded = tf.pad(image, [[0, 0], *map(list, pads), [0, 0]], constant_values=image.dtype.min)
  sizes = [lo + n + hi for n, (lo, hi) in zip(sizes_of(image)[1:-1], pads, strict=True)]
  free, total = tf.ones_like(pooled, tf.bool), tf.zeros([], image.dtype)
  for position, values in _windows(padded, sizes_of(pooled)[1:-1], window, strides):
    here = tf.equal(values, pooled)
    part = tf.where(here & free, cotangent, tf.zeros([], cotangent.dtype))
    free &= ~here
    for axis, stride in enumerate(strides, 1):
      part = _with_zeros_between(part, axis, stride)
    part = tf.pad(
      part,
      [[0, 0], *([first, size - 1] for first, size in zip(position, window, strict=True)), [0, 0]],
    )
    total += tf.slice(part, [0] * 4, [-1, *sizes, -1])
  cut = tf.slice(total, [0, *(lo for lo, _ in pads), 0], [-1, *sizes_of(image)[1:-1], -1])
  return [with_shape(cut, op.outputs[0].shape)]


def _with_zeros_between(x: tf.Tensor, axis: int, stride: int) -> tf.Tensor:
  """Each element of an axis, and stride - 1 zeros after it."""
  if stride == 1:
    return x
  sizes = sizes_of(x)
  apart = tf.pad(
    tf.expand_dims(x, axis + 1),
    [[0, (stride - 1) * (d == axis + 1)] for d in range(len(sizes) + 1)],
  )
  return tf.reshape(apart, [*sizes[:axis], sizes[axis] * stride, *sizes[axis + 1 :]])


def _by_places(
  op: Any,
  image: tf.Tensor,
  sizes: tf.Tensor,
  cotangent: tf.Tensor,
  product: Callable[[tf.Tensor, int, int], tf.Tensor],
) -> list[tf.Tensor]:
  """A kernel from the product of each of its places: of what it meets in the image, and the
  cotangent."""
  shape = op.outputs[0].shape.as_list()
  if not _is_plain(op) or None in shape:
    return again(op, [image, sizes, cotangent])
  strides = op.get_attr("strides")[1:-1]
  pads = _padding(op, sizes_of(image)[1:-1], shape[:-2], strides)
  image = _with_padding(image, pads)
  windows = _windows(image, sizes_of(cotangent)[1:-1], shape[:-2], strides)
  return [tf.reshape(tf.stack([product(window, *shape[-2:]) for _, window in windows]), shape)]


def _padded(op: Any, image: tf.Tensor, lengths: Sequence[_Size]) -> tuple[tf.Tensor, list[_Size]]:
  """The image of a convolution with its padding, and the sizes of the result."""
  strides, dilations = op.get_attr("strides")[1:-1], op.get_attr("dilations")[1:-1]
  spans = [(k - 1) * dilation + 1 for k, dilation in zip(lengths, dilations, strict=True)]
  image = _with_padding(image, _padding(op, sizes_of(image)[1:-1], spans, strides))
  sizes = sizes_of(image)[1:-1]
  out = [(n - k) // stride + 1 for n, k, stride in zip(sizes, spans, strides, strict=True)]
  return image, out


def _with_padding(image: tf.Tensor, pads: Sequence[tuple[_Size, _Size]]) -> tf.Tensor:
  if all(isinstance(p, int) and p == 0 for pair in pads for p in pair):
    return image
  return tf.pad(image, [[0, 0], *map(list, pads), [0, 0]])


def _windows(
  image: tf.Tensor,
  lengths: Sequence[_Size],
  kernel: Sequence[int],
  strides: Sequence[int],
  dilations: Sequence[int] | None = None,
) -> Iterator[tuple[tuple[int, ...], tf.Tensor]]:
  """Each place of a kernel, and what it meets in the image, f32[n,*lengths,i]."""
  for position in itertools.product(*map(range, kernel)):
    starts = [p * d for p, d in zip(position, dilations or [1] * len(position), strict=True)]
    cut = [
      slice(first, first + (n - 1) * stride + 1, stride)
      for first, n, stride in zip(starts, lengths, strides, strict=True)
    ]
    yield position, image[(slice(None), *cut)]


def _padding(
  op: Any, image: Sequence[_Size], kernel: Sequence[int], strides: Sequence[int]
) -> list[tuple[_Size, _Size]]:
  """The padding of each spatial dimension."""
  if op.get_attr("padding") == b"EXPLICIT":
    return _pairs(op.get_attr("explicit_paddings"))[1:-1]
  if op.get_attr("padding") == b"VALID":
    return [(0, 0)] * len(kernel)
  pads = []
  for n, k, stride in zip(image, kernel, strides, strict=True):
    total = -(-n // stride) * stride - stride + k - n
    total = _positive(total)
    pads.append((total // 2, total - total // 2))
  return pads


def _positive(size: _Size) -> _Size:
  return _at_least(0, size)


def _at_least(least: int, size: _Size) -> _Size:
  return max(least, size) if isinstance(size, int) else tf.maximum(least, size)


def _are_known(sizes: Sequence[_Size]) -> bool:
  return all(isinstance(size, int) for size in sizes)


def _pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
  return list(zip(numbers[::2], numbers[1::2], strict=True))


def _known(x: tf.Tensor) -> list[Any]:
  """The known sizes of a tensor, None for others, or nothing if its rank is unknown."""
  return [] if x.shape.rank is None else list(x.shape.as_list())


def _of_sizes(x: tf.Tensor, sizes: Sequence[_Size | None]) -> tf.Tensor:
  """The tensor with these static sizes, of which some are no ints."""
  return with_shape(x, tf.TensorShape([size if isinstance(size, int) else None for size in sizes]))


def _is_channels_last(op: Any) -> bool:
  return op.get_attr("data_format") in (b"NHWC", b"NDHWC")


def _is_plain(op: Any) -> bool:
  return (
    _is_channels_last(op)
    and set(op.get_attr("dilations")) == {1}
    and op.outputs[0].dtype.is_floating
  )
