"""Data movement without indices: reshape, broadcast, transpose, concatenate, pad, iota and
similar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf
from jax import lax
from jax.core import max_dim

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW
from jax2tf.lowering._common import cast, is_known
from jax2tf.lowering._kernels import stacked
from jax2tf.lowering._movement import (
  arranged,
  as_rank3,
  broadcast,
  carried,
  carrier_of,
  converted,
  filled,
  is_zero,
  keeps_order,
  resized,
  reversed_along,
  sliced,
  split,
  tiled,
  transposed,
  unstacked,
)
from jax2tf.registry import lowers


@lowers(P.reshape_p, lacks=NARROW)
def _reshape(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  new_sizes: Sequence[Any],
  dimensions: Sequence[int] | None,
) -> tf.Tensor:
  """operand f32[a,b] -> f32[*new_sizes], in the order of `dimensions` when that is given."""
  if dimensions is not None:
    operand = transposed(operand, dimensions)
  elif tuple(new_sizes) == ctx.avals_in[0].shape:
    return operand
  return arranged(ctx, lambda x: ctx.reshape(x, new_sizes), operand)


@lowers(P.broadcast_in_dim_p, lacks=NARROW)
def _broadcast_in_dim(
  ctx: RuleContext, operand: tf.Tensor, *, shape: Sequence[Any], broadcast_dimensions: Sequence[int]
) -> tf.Tensor:
  """operand f32[a,1], broadcast_dimensions (0,2) -> f32[a,n,b]: sizes 1 and new dimensions are
  repeated."""
  sizes = ctx.avals_in[0].shape
  if not sizes:
    return filled(ctx, operand, shape) if shape else operand
  aligned = [1] * len(shape)
  for size, axis in zip(sizes, broadcast_dimensions, strict=True):
    aligned[axis] = size
  if len(aligned) != len(sizes):
    operand = arranged(ctx, lambda x: ctx.reshape(x, aligned), operand)
  return broadcast(ctx, operand, aligned, shape)


@lowers(_jax_compat.broadcast_to_p, lacks=NARROW)
def _broadcast_to(ctx: RuleContext, operand: tf.Tensor, *, shape: Sequence[Any]) -> tf.Tensor:
  """operand f32[1,n] -> f32[*shape], as NumPy broadcasts."""
  sizes = ctx.avals_in[0].shape
  aligned = (1,) * (len(shape) - len(sizes)) + tuple(sizes)
  return broadcast(ctx, ctx.reshape(operand, aligned), aligned, shape)


@lowers(P.transpose_p, lacks=NARROW)
def _transpose(ctx: RuleContext, operand: tf.Tensor, *, permutation: Sequence[int]) -> tf.Tensor:
  """operand f32[a,b], permutation (1,0) -> f32[b,a]."""
  sizes = ctx.avals_in[0].shape
  if keeps_order(sizes, permutation):
    target = [sizes[axis] for axis in permutation]
    return arranged(ctx, lambda x: resized(ctx, x, sizes, target), operand)
  return transposed(operand, permutation)


@lowers(P.squeeze_p, lacks=NARROW)
def _squeeze(ctx: RuleContext, operand: tf.Tensor, *, dimensions: Sequence[int]) -> tf.Tensor:
  """operand f32[a,1,b], dimensions (1,) -> f32[a,b]."""
  return arranged(ctx, lambda x: tf.squeeze(x, dimensions), operand) if dimensions else operand


@lowers(P.concatenate_p, lacks=NARROW)
def _concatenate(ctx: RuleContext, *operands: tf.Tensor, dimension: int) -> tf.Tensor:
  """operands f32[a,n], f32[b,n], dimension 0 -> f32[a+b,n]."""
  if len(operands) == 1:
    return operands[0]
  return arranged(ctx, lambda *parts: tf.concat(parts, dimension), *operands)


@lowers(P.rev_p, lacks=NARROW)
def _rev(ctx: RuleContext, operand: tf.Tensor, *, dimensions: Sequence[int]) -> tf.Tensor:
  """operand f32[a,b] -> f32[a,b], backwards along `dimensions`."""
  sizes = ctx.avals_in[0].shape
  if len(sizes) <= 8:
    return reversed_along(ctx, operand, dimensions) if dimensions else operand
  # TF 2.21: Reverse takes at most 8 dimensions. One dimension at a time needs three.
  for axis in dimensions:
    operand = reversed_along(ctx, as_rank3(ctx, operand, sizes, axis), [1])
  return ctx.reshape(operand, sizes)


@lowers(lax.split_p, lacks=NARROW)
def _split(
  ctx: RuleContext, operand: tf.Tensor, *, sizes: Sequence[Any], axis: int
) -> list[tf.Tensor]:
  """operand f32[a+b,n], sizes (a,b), axis 0 -> f32[a,n], f32[b,n]."""
  if len(sizes) < 2:
    return [operand] * len(sizes)
  return split(ctx, operand, ctx.avals_in[0].shape, sizes, axis)


@lowers(_jax_compat.optional_primitive("stack_p", lax), lacks=NARROW)
def _stack(ctx: RuleContext, *operands: tf.Tensor, axis: int) -> tf.Tensor:
  """operands f32[n], f32[n], axis 0 -> f32[2,n]."""
  return arranged(ctx, lambda *rows: stacked(rows, axis), *operands)


@lowers(_jax_compat.optional_primitive("unstack_p", lax), lacks=NARROW)
def _unstack(ctx: RuleContext, operand: tf.Tensor, *, axis: int) -> list[tf.Tensor]:
  """operand f32[2,n], axis 0 -> f32[n], f32[n]."""
  return unstacked(ctx, operand, len(ctx.avals_out), axis) if ctx.avals_out else []


@lowers(_jax_compat.optional_primitive("tile_p", lax), lacks=NARROW)
def _tile(ctx: RuleContext, operand: tf.Tensor, *, reps: Sequence[Any]) -> tf.Tensor:
  """operand f32[a,b], reps (2,3) -> f32[2*a,3*b]."""
  return tiled(ctx, operand, ctx.shape(reps))


@lowers(P.iota_p, lacks=NARROW)
def _iota(ctx: RuleContext, *, dtype: Any, shape: Sequence[Any], dimension: int) -> tf.Tensor:
  """-> i32[*shape], counting along `dimension`."""
  counts = cast(tf.range(ctx.dim(shape[dimension])), ctx.dtype_out)
  aligned = [size if axis == dimension else 1 for axis, size in enumerate(shape)]
  return counts if len(shape) == 1 else broadcast(ctx, ctx.reshape(counts, aligned), aligned, shape)


@lowers(_jax_compat.empty_p)
def _empty(ctx: RuleContext, *, shape: Sequence[Any], dtype: Any) -> tf.Tensor:
  """-> f32[*shape], zeros as on JAX's CPU."""
  return tf.zeros(ctx.shape(shape), ctx.dtype_out)


@lowers(P.empty2_p)
def _empty2(ctx: RuleContext, *, dtype: Any, memory_space: Any) -> tf.Tensor:
  """-> f32[], a zero."""
  return tf.zeros([], ctx.dtype_out)


@lowers(P.pad_p, lacks=NARROW)
def _pad(
  ctx: RuleContext,
  operand: tf.Tensor,
  padding_value: tf.Tensor,
  *,
  padding_config: Sequence[tuple[Any, Any, int]],
) -> tf.Tensor:
  """operand f32[n], padding_value f32[], (low, high, interior) per dimension -> f32[low + n +
  (n-1)*interior + high].

  Negative `low` and `high` cut, after the interior padding.
  """
  sizes, out_sizes = ctx.avals_in[0].shape, ctx.aval_out.shape
  interiors = [interior for _, _, interior in padding_config]
  if any(interiors):
    operand, sizes = _with_interiors(ctx, operand, padding_value, sizes, interiors)
  begin = [max_dim(-low, 0) for low, _, _ in padding_config]
  lows = [max_dim(low, 0) for low, _, _ in padding_config]
  # What is missing at the end; negative where `high`, or the last element's interior padding, is
  # cut.
  missing = [
    out + cut - low - size
    for out, cut, low, size in zip(out_sizes, begin, lows, sizes, strict=True)
  ]
  highs = [max_dim(high, 0) for high in missing]
  operand = _padded(ctx, operand, padding_value, sizes, lows, highs)
  if all(is_zero(b) for b in begin) and highs == missing:
    return operand
  padded = [low + size + high for low, size, high in zip(lows, sizes, highs, strict=True)]
  return sliced(ctx, operand, padded, begin, out_sizes)


def _with_interiors(
  ctx: RuleContext,
  operand: tf.Tensor,
  value: tf.Tensor,
  sizes: Sequence[Any],
  interiors: Sequence[int],
) -> tuple[tf.Tensor, list[Any]]:
  """Each element followed by its padding, the last one too: f32[n] -> f32[n*(1+interior)], and the
  sizes."""
  columns = [
    column
    for n, interior in zip(sizes, interiors, strict=True)
    for column in ([(n, 0), (1, interior)] if interior else [(n, 0)])
  ]
  split = [size for size, _ in columns]
  operand = _padded(
    ctx, ctx.reshape(operand, split), value, split, [0] * len(split), [pad for _, pad in columns]
  )
  sizes = [n * (1 + interior) for n, interior in zip(sizes, interiors, strict=True)]
  return ctx.reshape(operand, sizes), sizes


def _padded(
  ctx: RuleContext,
  operand: tf.Tensor,
  value: tf.Tensor,
  sizes: Sequence[Any],
  lows: Sequence[Any],
  highs: Sequence[Any],
) -> tf.Tensor:
  """The operand with `lows` and `highs` padding values around it."""
  axes = [
    axis for axis, pads in enumerate(zip(lows, highs, strict=True)) if not all(map(is_zero, pads))
  ]
  if not axes:
    return operand
  if len(sizes) <= 6:
    paddings = tf.reshape(
      ctx.shape([pad for pads in zip(lows, highs, strict=True) for pad in pads]), [-1, 2]
    )
    # TF 2.21: Grappler fuses Pad with the Conv3D after it, ignores the padding in the shape of the
    # result, and so infers sizes of 1 and removes transposes; it does not fuse PadV2.
    constant = value if len(sizes) == 5 else _padding_constant(value)
    return _padded_with(ctx, operand, paddings, constant)
  sizes = list(sizes)
  for axis in axes:  # TF 2.21: Pad on CPU takes at most 6 dimensions
    operand = ctx.reshape(
      operand, [math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])]
    )
    sizes[axis] += lows[axis] + highs[axis]
    paddings = [[0, 0], [ctx.dim(lows[axis]), ctx.dim(highs[axis])], [0, 0]]
    operand = _padded_with(ctx, operand, paddings, _padding_constant(value))
  return ctx.reshape(operand, sizes)


def _padded_with(ctx: RuleContext, operand: tf.Tensor, paddings: Any, constant: Any) -> tf.Tensor:
  if not isinstance(constant, tf.Tensor):
    return carried(ctx, lambda x: tf.pad(x, paddings), operand)
  with ctx.destination.sizes():  # where PadV2 reads it
    if ctx.destination.on_gpu and is_known(lambda value: True, constant):
      constant = tf.constant(tf.get_static_value(constant), constant.dtype)
    constant = converted(constant, carrier_of(ctx, constant.dtype))
  return carried(ctx, lambda x: tf.pad(x, paddings, "CONSTANT", constant), operand)


def _padding_constant(value: tf.Tensor) -> Any:
  """0 for a known zero other than -0.0: tf.pad then emits the op that every runtime has. Otherwise
  the value."""
  return 0 if is_known(lambda known: not any(known.tobytes()), value) else value
