"""Convolutions: layouts, dtypes and forms that TensorFlow lacks become the plain ones of
`_plain_conv`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import tensorflow as tf
from jax import lax

from jax2tf.context import RuleContext
from jax2tf.lowering._common import cast
from jax2tf.lowering._movement import flipped_kernel, transposed
from jax2tf.lowering._plain_conv import (
  Conv,
  filter_gradient,
  input_gradient,
  is_filter_gradient,
  plain_conv,
  without_batch_groups,
)
from jax2tf.lowering._pooling import Axis
from jax2tf.lowering._products import multiplicands, multiplied_in, product_as_result
from jax2tf.registry import lowers


@lowers(P.conv_general_dilated_p)
def _conv_general_dilated(
  ctx: RuleContext,
  lhs: tf.Tensor,
  rhs: tf.Tensor,
  *,
  dimension_numbers: Any,
  precision: Any,
  preferred_element_type: Any,
  reversed_kernel: bool = False,
  **geometry: Any,
) -> tf.Tensor:
  """lhs f32[b,h,w,i], rhs f32[kh,kw,i,o] -> f32[b,h',w',o], in the layouts of `dimension_numbers`.

  `reversed_kernel`, set by the idiom conv_gradient, reverses the spatial dimensions of rhs.
  """
  conv = _conv((*ctx.avals_in, ctx.aval_out), dimension_numbers, **geometry)
  if any(
    isinstance(d, int) and d == 0 for aval in (*ctx.avals_in, ctx.aval_out) for d in aval.shape
  ):
    # TF 2.21: Conv2D refuses empty filters and images
    return tf.zeros(ctx.shape(ctx.aval_out.shape), ctx.dtype_out)

  nonempty = _with_results(conv)

  def convolve(lhs: tf.Tensor, rhs: tf.Tensor) -> tf.Tensor:
    if nonempty is conv:
      return _laid_out(ctx, conv, lhs, rhs, dimension_numbers, reversed_kernel)
    if nonempty.batch is not conv.batch:
      at = dimension_numbers.lhs_spec[0]
      lhs = tf.pad(
        lhs,
        [[0, ctx.dim(nonempty.batch - conv.batch) if d == at else 0] for d in range(conv.rank + 2)],
      )
      # TF 2.21: Grappler fuses Pad and Conv2D into an op that pads no batch
      lhs = tf.ensure_shape(lhs, lhs.shape)
    result = _laid_out(ctx, nonempty, lhs, rhs, dimension_numbers, reversed_kernel)
    return tf.slice(result, [0] * (conv.rank + 2), ctx.shape(ctx.aval_out.shape))

  product_dtype = multiplied_in(*(aval.dtype for aval in (*ctx.avals_in, ctx.aval_out)))
  lhs, rhs = multiplicands(ctx, [lhs, rhs], product_dtype)
  if lhs.dtype.is_complex:  # TF 2.21: no kernel of any convolution takes complex numbers
    (a, b), (c, d) = ((tf.math.real(x), tf.math.imag(x)) for x in (lhs, rhs))
    product = tf.complex(convolve(a, c) - convolve(b, d), convolve(a, d) + convolve(b, c))
  else:
    product = convolve(*(cast(x, _computed_in(x.dtype)) for x in (lhs, rhs)))
  return product_as_result(ctx, product, product_dtype)


def _conv(
  avals: Sequence[Any],
  specs: Any,
  *,
  window_strides: Sequence[int],
  padding: Sequence[Any],
  lhs_dilation: Sequence[int],
  rhs_dilation: Sequence[int],
  feature_group_count: int,
  batch_group_count: int,
) -> Conv:
  """The sizes of a convolution of these operands and this result, whatever their layouts."""
  (batch, features, *image), (outputs, _, *kernel), (_, _, *out) = (
    [aval.shape[d] for d in spec] for aval, spec in zip(avals, specs, strict=True)
  )
  return Conv(
    batch,
    tuple(image),
    features,
    tuple(kernel),
    outputs,
    tuple(out),
    tuple(window_strides),
    tuple(map(tuple, padding)),
    tuple(lhs_dilation),
    tuple(rhs_dilation),
    feature_group_count,
    batch_group_count,
  )


def _with_results(conv: Conv) -> Conv:
  """Padded until there is a result, if only the graph can decide whether there is one.

  TF 2.21: without it, oneDNN's Conv2D returns its operand, of any shape, or fails.
  """
  sizes = zip(
    conv.image,
    conv.kernel,
    conv.strides,
    conv.padding,
    conv.lhs_dilation,
    conv.rhs_dilation,
    conv.out,
    strict=True,
  )
  axes = [Axis(conv.batch, 1, 1, (0, 0), 1, 1, conv.batch), *(Axis(*axis) for axis in sizes)]
  nonempty = [axis.with_a_window for axis in axes]
  if all(a is b for a, b in zip(axes, nonempty, strict=True)):
    return conv
  batch, *spatial = nonempty
  return replace(
    conv,
    batch=batch.out,
    padding=tuple(axis.padding for axis in spatial),
    out=tuple(axis.out for axis in spatial),
  )


def _computed_in(dtype: tf.DType) -> tf.DType:
  """The dtype that holds the sums. TF 2.21: Conv2D takes floats and int32; integers that wrap agree
  in their low bits."""
  if dtype.is_integer:
    return tf.int64 if dtype.size == 8 else tf.int32
  return dtype if dtype.size > 1 else tf.float32


def _laid_out(
  ctx: RuleContext, conv: Conv, lhs: tf.Tensor, rhs: tf.Tensor, specs: Any, reversed_kernel: bool
) -> tf.Tensor:
  """The convolution in TensorFlow's layouts. One dimension is two, the first of size 1."""
  if conv.rank == 1 and lhs.dtype != tf.int64:
    conv = replace(
      conv,
      image=(1, *conv.image),
      kernel=(1, *conv.kernel),
      out=(1, *conv.out),
      strides=(1, *conv.strides),
      padding=((0, 0), *conv.padding),
      lhs_dilation=(1, *conv.lhs_dilation),
      rhs_dilation=(1, *conv.rhs_dilation),
    )
    lhs, rhs = tf.expand_dims(lhs, specs[0][2]), tf.expand_dims(rhs, specs[1][2])
    return tf.squeeze(
      _laid_out(ctx, conv, lhs, rhs, [_with_height(spec) for spec in specs], reversed_kernel),
      specs[2][2],
    )
  lhs_spec, rhs_spec, out_spec = specs
  if reversed_kernel:
    if conv.rank in (2, 3) and conv.batch_groups == 1:
      image, kernel = (
        transposed(lhs, _axes(lhs_spec, "bsf")),
        transposed(rhs, _axes(rhs_spec, "sbf")),
      )
      if (out := input_gradient(ctx, conv, image, lambda: kernel)) is not None:
        return _from(out, _axes(out_spec, "bsf"))
    rhs = flipped_kernel(rhs, rhs_spec[2:])
  # In the gradient of a kernel, JAX takes the batch, which leads in memory, for the features that
  # are summed over.
  if lhs_spec[1] == rhs_spec[1] == 0 and is_filter_gradient(conv):
    image, cotangent = (
      transposed(lhs, _axes(lhs_spec, "fsb")),
      transposed(rhs, _axes(rhs_spec, "fsb")),
    )
    if (kernel := filter_gradient(ctx, conv, image, cotangent)) is not None:
      return _from(kernel, _axes(out_spec, "sbf"))
  out = _convolved(
    ctx, conv, transposed(lhs, _axes(lhs_spec, "bsf")), transposed(rhs, _axes(rhs_spec, "sfb"))
  )
  return _from(out, _axes(out_spec, "bsf"))


def _with_height(spec: Sequence[int]) -> list[int]:
  batch, features, width = (d + (d >= spec[2]) for d in spec)
  return [batch, features, spec[2], width]


def _axes(spec: Sequence[int], order: str) -> list[int]:
  """The axes of a spec, in JAX's order (b)atch or outputs, (f)eatures, (s)patial, in the given
  order."""
  parts = {"b": spec[:1], "f": spec[1:2], "s": spec[2:]}
  return [axis for part in order for axis in parts[part]]


def _from(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
  """The inverse of `transposed`."""
  return transposed(x, [axes.index(d) for d in range(len(axes))])


def _convolved(ctx: RuleContext, conv: Conv, lhs: tf.Tensor, rhs: tf.Tensor) -> tf.Tensor:
  """lhs f32[batch,*image,features], rhs f32[*kernel,features/groups,outputs] ->
  f32[batch,*out,outputs]."""
  if conv.batch_groups != 1:
    conv, lhs = without_batch_groups(ctx, conv, lhs)
  if conv.rank == 0:
    return _grouped_matmul(ctx, conv, lhs, rhs)
  # TF 2.21: no convolution of int64, and on CPU no Conv3D with groups or dilation.
  plain = conv.rank == 2 or (
    conv.rank == 3 and conv.groups == 1 and set(conv.rhs_dilation) == {1} and lhs.dtype.is_floating
  )
  return (
    plain_conv(ctx, conv, lhs, rhs)
    if plain and lhs.dtype != tf.int64
    else _by_taps(ctx, conv, lhs, rhs)
  )


def _by_taps(ctx: RuleContext, conv: Conv, lhs: tf.Tensor, rhs: tf.Tensor) -> tf.Tensor:
  """A convolution with one dimension less: what the first dimension of the kernel meets becomes
  features."""
  if not isinstance(conv.kernel[0], int) and isinstance(conv.groups, int) and conv.groups > 1:
    group = replace(
      conv, features=conv.features // conv.groups, outputs=conv.outputs // conv.groups, groups=1
    )
    parts = zip(tf.split(lhs, conv.groups, -1), tf.split(rhs, conv.groups, -1), strict=True)
    return tf.concat([_convolved(ctx, group, x, kernel) for x, kernel in parts], -1)
  if not isinstance(conv.kernel[0], int):
    ctx.refuse(
      "the first dimension of the kernel is symbolic, and TensorFlow has no such convolution",
      "give the kernel a fixed size, or lower natively",
    )
  dtype = lhs.dtype.as_numpy_dtype
  avals = [
    jax.ShapeDtypeStruct((conv.batch, *conv.image, conv.features), dtype),
    jax.ShapeDtypeStruct((*conv.kernel, conv.features // conv.groups, conv.outputs), dtype),
  ]
  return ctx.lower_fun(functools.partial(_unrolled, conv), lhs, rhs, avals=avals)


def _unrolled(conv: Conv, lhs: Any, rhs: Any) -> Any:
  (size, *kernel), (out, *_), (lo, hi), rank = conv.kernel, conv.out, conv.padding[0], conv.rank - 1
  stride, dilation = conv.strides[0], conv.rhs_dilation[0]
  unpadded = (0, 0, 0)
  lhs = lax.pad(
    lhs,
    jnp.zeros((), lhs.dtype),
    (unpadded, (lo, hi, conv.lhs_dilation[0] - 1), *[unpadded] * (rank + 1)),
  )
  lhs = lhs.reshape((*lhs.shape[:-1], conv.groups, -1))
  taps = [
    lax.slice_in_dim(lhs, i * dilation, i * dilation + (out - 1) * stride + 1, stride, axis=1)
    for i in range(size)
  ]
  lhs = lax.reshape(jnp.stack(taps, -2), (conv.batch * out, *conv.image[1:], size * conv.features))
  rhs = lax.reshape(jnp.moveaxis(rhs, 0, -3), (*kernel, size * rhs.shape[-2], conv.outputs))
  spatial = range(1, rank + 1)
  specs = lax.ConvDimensionNumbers(
    (0, rank + 1, *spatial), (rank + 1, rank, *range(rank)), (0, rank + 1, *spatial)
  )
  result = lax.conv_general_dilated(
    lhs,
    rhs,
    conv.strides[1:],
    conv.padding[1:],
    conv.lhs_dilation[1:],
    conv.rhs_dilation[1:],
    specs,
    feature_group_count=conv.groups,
  )
  return lax.reshape(result, (conv.batch, *conv.out, conv.outputs))


def _grouped_matmul(ctx: RuleContext, conv: Conv, lhs: tf.Tensor, rhs: tf.Tensor) -> tf.Tensor:
  """lhs f32[b,g*i], rhs f32[i,g*o] -> f32[b,g*o]."""
  if conv.groups == 1:
    return tf.matmul(lhs, rhs)
  lhs = ctx.reshape(lhs, (conv.batch, conv.groups, conv.features // conv.groups))
  rhs = ctx.reshape(rhs, (conv.features // conv.groups, conv.groups, conv.outputs // conv.groups))
  out = tf.matmul(tf.transpose(lhs, [1, 0, 2]), tf.transpose(rhs, [1, 0, 2]))
  return ctx.reshape(tf.transpose(out, [1, 0, 2]), (conv.batch, conv.outputs))
