"""Windows of one or two dimensions as TensorFlow's pooling of images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from jax import lax
from jax.core import max_dim

from jax2tf import _tf_compat
from jax2tf._jax_compat.shape_poly import dimension_bounds
from jax2tf.context import RuleContext
from jax2tf.dtypes import HALF
from jax2tf.lowering._common import beside_images, scalar
from jax2tf.lowering._movement import is_zero, transposed


@dataclass(frozen=True)
class Axis:
  """The windows along one axis of an operand."""

  size: Any
  window: Any
  stride: int
  padding: tuple[Any, Any]
  base_dilation: int
  window_dilation: int
  out: Any

  @property
  def is_trivial(self) -> bool:
    """Each element is a window."""
    return self.window == self.stride == self.base_dilation == 1 and self.padding == (0, 0)

  @property
  def is_whole(self) -> bool:
    """The only window is the whole axis."""
    return (
      self.window == self.size
      and self.out == self.base_dilation == self.window_dilation == 1
      and self.padding == (0, 0)
    )

  @property
  def is_pooling(self) -> bool:
    """TensorFlow's pooling has such windows, there are any, and each of them meets the operand."""
    lo, hi = self.padding
    meets = not (isinstance(lo, int) and isinstance(hi, int)) or (
      0 <= lo < self.window and 0 <= hi < self.window
    )
    return (
      isinstance(self.window, int)
      and self.base_dilation == self.window_dilation == 1
      and meets
      and not is_zero(self.out)
    )

  @property
  def with_a_window(self) -> Axis:
    """Padded until one window fits, if only the graph can decide whether one does: TensorFlow's ops
    fail or crash for none."""
    if dimension_bounds(self.out)[0] >= 1:
      return self
    (lo, hi), span = self.padding, (self.window - 1) * self.window_dilation + 1
    return replace(
      self, padding=(lo, hi + max_dim(span - lo - self._dilated - hi, 0)), out=max_dim(self.out, 1)
    )

  @property
  def ending_with_a_window(self) -> Axis:
    """Padded or cut behind the last window. Sizes of slices then differ by numbers, and JAX can
    compare them."""
    if isinstance(self.out, int):
      return self
    end = (self.out - 1) * self.stride + (self.window - 1) * self.window_dilation + 1
    lo, _ = self.padding
    return replace(self, padding=(lo, end - lo - self._dilated))

  @property
  def _dilated(self) -> Any:
    return max_dim((self.size - 1) * self.base_dilation + 1, 0)


def window_axes(
  operand: Any,
  out: Any,
  *,
  window_dimensions: Sequence[Any],
  window_strides: Sequence[int],
  padding: Sequence[Any],
  base_dilation: Sequence[int] = (),
  window_dilation: Sequence[int] = (),
) -> tuple[Axis, ...]:
  """The params of a reduction over windows, by axis; `operand` and `out` are avals."""
  ones = (1,) * len(operand.shape)
  return tuple(
    Axis(*axis)
    for axis in zip(
      operand.shape,
      window_dimensions,
      window_strides,
      map(tuple, padding),
      base_dilation or ones,
      window_dilation or ones,
      out.shape,
      strict=True,
    )
  )


def whole_axes(axes: Sequence[Axis]) -> list[int]:
  """The axes to reduce, if the only window is the whole of them; else nothing."""
  reduced = [i for i, axis in enumerate(axes) if not axis.is_trivial]
  return reduced if all(axes[i].is_whole for i in reduced) else []


@dataclass(frozen=True)
class Images:
  """An operand seen as images [batch, height, width, channels] with windows over height and
  width.

  Attributes:
    axes: of the images.
    removed: axes of the operand, ascending, of size 1, that the images do not have.
    inserted: an axis that an operand of three dimensions gets.
    permutation: of the four axes.
  """

  axes: tuple[Axis, ...]
  removed: tuple[int, ...]
  inserted: int | None
  permutation: tuple[int, ...]

  @classmethod
  def of(cls, axes: Sequence[Axis], dtype: tf.DType) -> Images | None:
    """None if TensorFlow cannot pool like this."""
    ones = [i for i, axis in enumerate(axes) if axis.is_trivial and axis.is_whole]
    removed = tuple(ones[: max(len(axes) - 4, 0)])
    axes = [axis for i, axis in enumerate(axes) if i not in removed]
    windowed = [i for i, axis in enumerate(axes) if not axis.is_trivial]
    if (
      not dtype.is_floating
      or not windowed
      or len(windowed) > 2
      or not all(axis.is_pooling for axis in axes)
    ):
      return None
    if len(axes) == 3:
      at = 1 if windowed == [1] else 0
      axes = [*axes[:at], Axis(1, 1, 1, (0, 0), 1, 1, 1), *axes[at:]]
      windowed = [i + (i >= at) for i in windowed]
    elif len(axes) == 4:
      at = None
    else:
      return None
    height, width = sorted((windowed + [i for i in (1, 2) if i not in windowed])[:2])
    batch, channels = (i for i in range(4) if i not in (height, width))
    permutation = (batch, height, width, channels)
    images = cls(tuple(axes[i] for i in permutation), removed, at, permutation)
    return images if images.is_same or images.is_explicit else None

  @property
  def is_same(self) -> bool:
    """The padding is TensorFlow's SAME."""
    size, window, stride = (
      [getattr(axis, name) for axis in self.axes] for name in ("size", "window", "stride")
    )
    return [tuple(pads) for pads in lax.padtype_to_pads(size, window, stride, "SAME")] == [
      axis.padding for axis in self.axes
    ]

  @property
  def is_explicit(self) -> bool:
    """The padding is known."""
    return all(isinstance(p, int) for axis in self.axes for p in axis.padding)

  @property
  def is_valid(self) -> bool:
    """There is no padding."""
    return all(axis.padding == (0, 0) for axis in self.axes)

  @property
  def has_windows(self) -> bool:
    """There is one at least."""
    return all(axis.with_a_window is axis for axis in self.axes)

  def to_nhwc(self, x: tf.Tensor) -> tf.Tensor:
    """`x` as images."""
    x = tf.squeeze(x, self.removed) if self.removed else x
    return transposed(
      x if self.inserted is None else tf.expand_dims(x, self.inserted), self.permutation
    )

  def from_nhwc(self, x: tf.Tensor) -> tf.Tensor:
    """The inverse of `to_nhwc`."""
    x = transposed(x, [self.permutation.index(i) for i in range(4)])
    x = x if self.inserted is None else tf.squeeze(x, self.inserted)
    for axis in self.removed:
      x = tf.expand_dims(x, axis)
    return x

  def pooled(self, ctx: RuleContext, y: tf.Tensor) -> tf.Tensor:
    """The result of the op on `padded` images, as JAX has it."""
    return self.from_nhwc(
      y if self.has_windows else tf.slice(y, [0] * 4, ctx.shape([axis.out for axis in self.axes]))
    )

  def padded(
    self, ctx: RuleContext, x: tf.Tensor, value: float
  ) -> tuple[tf.Tensor, dict[str, Any]]:
    """(images with what the op cannot pad, the attributes of the op)."""
    attributes = {
      "ksize": [axis.window for axis in self.axes],
      "strides": [axis.stride for axis in self.axes],
    }
    if self.has_windows and self.is_valid:
      return x, {**attributes, "padding": "VALID"}
    if self.has_windows and self.is_same and value != 0:
      return x, {**attributes, "padding": "SAME"}
    # TF 2.21: XLA has no MaxPool with explicit padding
    return _padded(ctx, x, [axis.with_a_window.padding for axis in self.axes], value), {
      **attributes,
      "padding": "VALID",
    }


def _padded(
  ctx: RuleContext, x: tf.Tensor, padding: Sequence[tuple[Any, Any]], value: float
) -> tf.Tensor:
  sizes = ctx.shape([size for pair in padding for size in pair])
  pairs = np.reshape(sizes, (-1, 2)) if isinstance(sizes, list) else tf.reshape(sizes, (-1, 2))
  return tf.pad(x, pairs, constant_values=scalar(value, x))


def max_pool(
  ctx: RuleContext, operand: tf.Tensor, axes: Sequence[Axis], sign: int, *, plain: bool = False
) -> tf.Tensor | None:
  """The maxima of the windows, or with sign -1 their minima; None if TensorFlow cannot pool like
  this.

  TF 2.21: MaxPool on CPU ignores NaN, and returns the least finite number for a window of nothing
  but -inf. A second MaxPool, over the class of each element, finds these windows; `plain` omits it.
  """
  images = Images.of(axes, operand.dtype)
  if images is None:
    return None
  x, attributes = images.padded(
    ctx, images.to_nhwc(operand if sign > 0 else -operand), float("-inf")
  )
  if plain:
    return images.pooled(ctx, tf.raw_ops.MaxPool(input=x, **attributes))
  numbers = (scalar(value, x) for value in (0, 1, 2, float("-inf"), float("nan")))
  zero, one, two, least, nan = beside_images(ctx, x.shape.rank, *numbers)
  kinds = tf.where(tf.math.is_nan(x), two, tf.where(tf.equal(x, least), zero, one))
  y, kind = (tf.raw_ops.MaxPool(input=z, **attributes) for z in (x, kinds))
  # Each selects a constant that is not finite: tf2onnx 1.17 computes other selections as c * x + (1
  # - c) * y, here NaN.
  y = tf.where(kind > one, nan, tf.where(tf.equal(kind, zero), least, y))
  y = images.pooled(ctx, y)
  return y if sign > 0 else -y


def max_pool_gradient(
  ctx: RuleContext, operand: tf.Tensor, source: tf.Tensor, axes: Sequence[Axis], sign: int
) -> tf.Tensor | None:
  """`source` added up where the maxima of `operand` stand, the first of equals; None as in
  `max_pool`."""
  images = Images.of(axes, operand.dtype)
  if images is None or source.dtype != operand.dtype:
    return None
  x, attributes = images.padded(
    ctx, images.to_nhwc(operand if sign > 0 else -operand), float("-inf")
  )
  source = images.to_nhwc(source)
  if not images.has_windows:  # TF 2.21: oneDNN's MaxPoolGrad ends the process for an empty operand
    source = _padded(
      ctx, source, [(0, axis.with_a_window.out - axis.out) for axis in images.axes], 0
    )
  pooled = tf.raw_ops.MaxPool(input=x, **attributes)
  gradient = tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=pooled, grad=source, **attributes)
  if attributes["padding"] == "VALID" and not (images.has_windows and images.is_valid):
    gradient = tf.slice(
      gradient,
      [ctx.dim(axis.padding[0]) for axis in images.axes],
      ctx.shape([axis.size for axis in images.axes]),
    )
  return images.from_nhwc(gradient)


def mean_pool(ctx: RuleContext, operand: tf.Tensor, axes: Sequence[Axis]) -> tf.Tensor | None:
  """The means of the windows, of halves in float32; None if TensorFlow cannot pool like this."""
  images = Images.of(axes, operand.dtype)
  return None if images is None or not images.is_explicit else _pooled(ctx, operand, images, _mean)


def sum_pool(ctx: RuleContext, operand: tf.Tensor, axes: Sequence[Axis]) -> tf.Tensor | None:
  """The sums of the windows, of halves in float32; None if TensorFlow cannot pool like this."""
  images = Images.of(axes, operand.dtype)
  if images is None or not images.is_explicit:
    return None
  _, *strides, _ = (axis.stride for axis in images.axes)
  channels = images.axes[-1].size
  # A mean times the size of its window is not the exact sum of integers. XLA on CPU has no fast
  # convolution of each channel by itself.
  exact = (
    isinstance(channels, int) and strides[0] == strides[1] and not _tf_compat.is_compiled_by_xla()
  )
  return _pooled(
    ctx,
    operand,
    images,
    functools.partial(_sum_by_convolution, channels) if exact else _sum_by_mean,
  )


def _pooled(
  ctx: RuleContext, operand: tf.Tensor, images: Images, op: Callable[..., tf.Tensor]
) -> tf.Tensor:
  wide = tf.cast(operand, tf.float32) if operand.dtype in HALF else operand
  x, attributes = images.padded(ctx, images.to_nhwc(wide), 0.0)
  return tf.cast(images.pooled(ctx, op(x, **attributes)), operand.dtype)


def _mean(x: tf.Tensor, **attributes: Any) -> tf.Tensor:
  return tf.raw_ops.AvgPool(value=x, **attributes)


def _sum_by_mean(x: tf.Tensor, *, ksize: Sequence[int], **attributes: Any) -> tf.Tensor:
  return tf.raw_ops.AvgPool(value=x, ksize=ksize, **attributes) * scalar(math.prod(ksize), x)


def _sum_by_convolution(
  channels: int, x: tf.Tensor, *, ksize: Sequence[int], **attributes: Any
) -> tf.Tensor:
  _, height, width, _ = ksize
  return tf.raw_ops.DepthwiseConv2dNative(
    input=x, filter=tf.ones([height, width, channels, 1], x.dtype), **attributes
  )
