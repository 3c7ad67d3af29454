"""The convolutions that TensorFlow has ops for: plain, depthwise, and the gradients of both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import lax

from jax2tf import _tf_compat
from jax2tf.context import RuleContext
from jax2tf.lowering._movement import flipped_kernel, is_one

Sizes = tuple[Any, ...]


@dataclass(frozen=True)
class Conv:
  """image f32[batch,*image,features], kernel f32[*kernel,features/groups,outputs] ->
  f32[batch,*out,outputs]."""

  batch: Any
  image: Sizes
  features: Any
  kernel: Sizes
  outputs: Any
  out: Sizes
  strides: tuple[int, ...]
  padding: tuple[tuple[Any, Any], ...]
  lhs_dilation: tuple[int, ...]
  rhs_dilation: tuple[int, ...]
  # symbolic where JAX batches over the kernels: compare with != 1, which is decided, and not with >
  groups: Any
  batch_groups: Any

  @property
  def rank(self) -> int:
    """The number of spatial dimensions."""
    return len(self.image)

  @property
  def is_depthwise(self) -> bool:
    """Each feature has its own kernels. TF 2.21: no dilation and one stride for both dimensions in
    the op."""
    return (
      1 != self.groups == self.features
      and self.rank == 2
      and len(set(self.strides)) == 1
      and set(self.rhs_dilation) == {1}
    )


def plain_conv(ctx: RuleContext, conv: Conv, image: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """A convolution of 2 dimensions, or of 3 without groups and dilation; without batch groups."""

  def flipped() -> tf.Tensor:
    spatial = list(range(conv.rank))
    return tf.transpose(flipped_kernel(kernel, spatial), [*spatial, conv.rank + 1, conv.rank])

  if (
    set(conv.lhs_dilation) != {1} and (out := input_gradient(ctx, conv, image, flipped)) is not None
  ):
    return out
  pads = _padding_attribute(conv)
  if pads is None:
    config = (
      (0, 0, 0),
      *((lo, hi, d - 1) for (lo, hi), d in zip(conv.padding, conv.lhs_dilation, strict=True)),
      (0, 0, 0),
    )
    aval = jax.ShapeDtypeStruct(
      (conv.batch, *conv.image, conv.features), image.dtype.as_numpy_dtype
    )
    image = ctx.lower_fun(functools.partial(_zero_padded, config), image, avals=[aval])
    pads = {"padding": "VALID"}
  strides = [1, *conv.strides, 1]
  if conv.is_depthwise and image.dtype.is_floating:
    kernel = ctx.reshape(kernel, (*conv.kernel, conv.features, conv.outputs // conv.groups))
    return tf.raw_ops.DepthwiseConv2dNative(input=image, filter=kernel, strides=strides, **pads)
  op = tf.raw_ops.Conv2D if conv.rank == 2 else tf.raw_ops.Conv3D
  return op(
    input=image, filter=kernel, strides=strides, dilations=[1, *conv.rhs_dilation, 1], **pads
  )


def _zero_padded(config: Any, x: Any) -> Any:
  return lax.pad(x, jnp.zeros((), x.dtype), config)


def _padding_attribute(conv: Conv) -> dict[str, Any] | None:
  """The padding as an attribute of TensorFlow's ops, or None if it cannot be expressed."""
  if set(conv.lhs_dilation) != {1}:
    return None
  if all(pads == (0, 0) for pads in conv.padding):
    return {"padding": "VALID"}
  dilated = [(k - 1) * d + 1 for k, d in zip(conv.kernel, conv.rhs_dilation, strict=True)]
  if conv.padding == _same(conv.image, dilated, conv.strides):
    return {"padding": "SAME"}
  return _explicit(conv.padding)


def _same(
  image: Sequence[Any], kernel: Sequence[Any], strides: Sequence[int]
) -> tuple[tuple[Any, Any], ...]:
  return tuple((low, high) for low, high in lax.padtype_to_pads(image, kernel, strides, "SAME"))


def _explicit(padding: Sequence[tuple[Any, Any]]) -> dict[str, Any] | None:
  numbers = [p for pads in ((0, 0), *padding, (0, 0)) for p in pads]
  # TF 2.21: Conv3D takes SAME and VALID only
  if len(padding) != 2 or not all(isinstance(p, int) and p >= 0 for p in numbers):
    return None
  return {"padding": "EXPLICIT", "explicit_paddings": numbers}


def input_gradient(
  ctx: RuleContext, conv: Conv, image: tf.Tensor, kernel: Callable[[], tf.Tensor]
) -> tf.Tensor | None:
  """The convolution as the gradient of another one with respect to its image, if it is exactly
  that; else None.

  `lhs_dilation` are the strides of that other convolution, and `kernel` gives its kernel,
  f32[*kernel,outputs,features/groups]: that of this one, reversed.
  """
  if not image.dtype.is_floating or set(conv.strides) != {1} or set(conv.rhs_dilation) != {1}:
    return None
  depthwise = (
    1 != conv.groups == conv.outputs and conv.rank == 2 and len(set(conv.lhs_dilation)) == 1
  )
  if conv.groups != 1 and not depthwise:
    return None
  before = [k - 1 - lo for k, (lo, _) in zip(conv.kernel, conv.padding, strict=True)]
  pads = _forward_padding(conv.out, conv.kernel, conv.image, conv.lhs_dilation, before)
  if pads is None:
    return None
  ops = {2: tf.raw_ops.Conv2DBackpropInput, 3: tf.raw_ops.Conv3DBackpropInputV2}
  op = tf.raw_ops.DepthwiseConv2dNativeBackpropInput if depthwise else ops[conv.rank]
  strides = [1, *conv.lhs_dilation, 1]
  if pads["padding"] != "EXPLICIT" or _tf_compat.is_compiled_by_xla():
    sizes = ctx.shape((conv.batch, *conv.out, conv.outputs))
    return op(input_sizes=sizes, filter=kernel(), out_backprop=image, strides=strides, **pads)
  # The whole padded image, and then without its padding. TF 2.21: with explicit padding there is no
  # op of oneDNN, and the other takes 1.4 times as long. tf2onnx 1.17 does not read explicit
  # padding, and LiteRT 2.3 has no such op.
  numbers = pads["explicit_paddings"][2:-2]
  margins = list(zip(numbers[::2], numbers[1::2], strict=True))
  padded = ctx.shape(
    (
      conv.batch,
      *(n + lo + hi for n, (lo, hi) in zip(conv.out, margins, strict=True)),
      conv.outputs,
    )
  )
  whole = op(
    input_sizes=padded, filter=kernel(), out_backprop=image, strides=strides, padding="VALID"
  )
  return tf.slice(
    whole, [0, *(lo for lo, _ in margins), 0], ctx.shape((conv.batch, *conv.out, conv.outputs))
  )


def is_filter_gradient(conv: Conv) -> bool:
  """Whether the kernel is the larger side, as where JAX sums over the images of a batch for the
  gradient of a kernel."""
  if conv.rank not in (2, 3) or conv.groups != 1 or set(conv.strides) != {1}:
    return False
  if set(conv.lhs_dilation) != {1}:
    return conv.batch_groups == 1 and set(conv.rhs_dilation) == {1}
  return conv.batch_groups == 1 or (
    conv.batch_groups == conv.batch and conv.rank == 2 and len(set(conv.rhs_dilation)) == 1
  )


def filter_gradient(
  ctx: RuleContext, conv: Conv, image: tf.Tensor, cotangent: tf.Tensor
) -> tf.Tensor | None:
  """image f32[n,*image,batch], cotangent f32[n,*kernel,outputs] -> f32[*out,batch,outputs], or
  None.

  The convolution, whose features are the images of a batch, as the gradient of another one with
  respect to its kernel; `rhs_dilation` are the strides of that other convolution.
  """
  if set(conv.lhs_dilation) != {1}:
    return _transposed_filter_gradient(ctx, conv, image, cotangent)
  pads = _forward_padding(
    conv.image, conv.out, conv.kernel, conv.rhs_dilation, [lo for lo, _ in conv.padding]
  )
  if pads is None or not image.dtype.is_floating:
    return None
  strides = [1, *conv.rhs_dilation, 1]
  if all(map(is_one, conv.out)) and set(strides) != {1} and pads["padding"] != "EXPLICIT":
    # TF 2.21: oneDNN's op crashes for a kernel of one pixel and strides, as with 8 features, 16
    # outputs and 10 x 10 pixels.
    image = image[tuple(slice(None, None, stride) for stride in strides)]
    strides = [1] * len(strides)
  if conv.batch_groups != 1:
    sizes = ctx.shape((*conv.out, conv.batch, conv.outputs // conv.batch))
    kernel = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
      input=image, filter_sizes=sizes, out_backprop=cotangent, strides=strides, **pads
    )
    # TF 2.21: without oneDNN the op does not write its result if there are no images
    if tf.compat.dimension_value(image.shape[0]) is None:
      kernel = tf.where(tf.shape(image)[0] > 0, kernel, tf.zeros([], kernel.dtype))
    return ctx.reshape(kernel, (*conv.out, 1, conv.outputs))
  op = tf.raw_ops.Conv2DBackpropFilter if conv.rank == 2 else tf.raw_ops.Conv3DBackpropFilterV2
  return op(
    input=image,
    filter_sizes=ctx.shape((*conv.out, conv.batch, conv.outputs)),
    out_backprop=cotangent,
    strides=strides,
    **pads,
  )


def _transposed_filter_gradient(
  ctx: RuleContext, conv: Conv, image: tf.Tensor, cotangent: tf.Tensor
) -> tf.Tensor | None:
  """As `filter_gradient`, of a transposed convolution: out[k] = sum over s of image[s] cotangent[s
  * dilation + low - k].

  With k counted from the other end these are the sums of the convolution from the cotangent to the
  image.
  """
  flipped = replace(
    conv,
    batch=conv.outputs,
    outputs=conv.batch,
    image=conv.kernel,
    kernel=conv.image,
    padding=tuple((k - 1 - lo, 0) for k, (lo, _) in zip(conv.out, conv.padding, strict=True)),
    lhs_dilation=conv.rhs_dilation,
    rhs_dilation=conv.lhs_dilation,
  )
  kernel = filter_gradient(ctx, flipped, cotangent, image)
  spatial = list(range(conv.rank))
  return (
    None
    if kernel is None
    else tf.transpose(flipped_kernel(kernel, spatial), [*spatial, conv.rank + 1, conv.rank])
  )


def _forward_padding(
  image: Sizes, kernel: Sizes, out: Sizes, strides: Sequence[int], before: Sequence[Any]
) -> dict[str, Any] | None:
  """The padding, `before` each dimension of the image, that gives `out`; None if there is none."""
  sizes = list(zip(image, kernel, out, strides, before, strict=True))
  if all(lo == 0 and o == (n - k) // s + 1 for n, k, o, s, lo in sizes):
    return {"padding": "VALID"}
  if all(o == -(-n // s) for n, _, o, s, _ in sizes) and tuple(before) == tuple(
    lo for lo, _ in _same(image, kernel, strides)
  ):
    return {"padding": "SAME"}
  if not all(isinstance(d, int) for size in sizes for d in size):
    return None
  padding = [(lo, max(0, (o - 1) * s + k - n - lo)) for n, k, o, s, lo in sizes]
  if any(
    (n + lo + hi - k) // s + 1 != o
    for (n, k, o, s, _), (lo, hi) in zip(sizes, padding, strict=True)
  ):
    return None
  return _explicit(padding)


def without_batch_groups(ctx: RuleContext, conv: Conv, image: tf.Tensor) -> tuple[Conv, tf.Tensor]:
  """Groups of the batch as groups of features: f32[g*n,h,w,i] -> f32[n,h,w,g*i]."""
  groups, batch, rank = conv.batch_groups, conv.batch // conv.batch_groups, conv.rank
  image = ctx.reshape(image, (groups, batch, *conv.image, conv.features))
  image = tf.transpose(image, [1, *range(2, rank + 2), 0, rank + 2])
  conv = replace(conv, batch=batch, features=groups * conv.features, groups=groups, batch_groups=1)
  return conv, ctx.reshape(image, (batch, *conv.image, conv.features))
