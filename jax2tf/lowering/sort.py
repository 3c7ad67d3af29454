"""Sorting: every order of JAX's is an order of integers, which TopKV2 sorts stably, the greatest
first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW
from jax2tf.lowering._common import cast, float_bits, key_kind, ordinals, scalar, sign_bit, where
from jax2tf.lowering._kernels import negative, subtract
from jax2tf.lowering._movement import gathered
from jax2tf.registry import lowers

# TF 2.21: no TopKV2 of bool on CPU, none of uint16 in XLA.
_SORTED_AS = {tf.bool: tf.int8, tf.uint16: tf.int32}


@lowers(P.top_k_p, lacks=NARROW)
def _top_k(
  ctx: RuleContext, operand: tf.Tensor, *, k: Any, axis: int | None = None, is_stable: bool = True
) -> list[tf.Tensor]:
  """operand f32[b,n] -> f32[b,k], i32[b,k]; equals in their order, NaN > inf > ... > 0.0 > -0.0 >
  ... > -inf > -NaN."""
  rank = len(ctx.avals_in[0].shape)
  axis = rank - 1 if axis is None else axis % rank
  results = top_k_last(ctx, _swapped(operand, axis, rank), ctx.dim(k), rank)
  return [_swapped(x, axis, rank) for x in results]


def top_k_last(
  ctx: RuleContext, operand: tf.Tensor, k: int | tf.Tensor, rank: int
) -> tuple[tf.Tensor, tf.Tensor]:
  """The `k` greatest along the last axis and their positions."""
  wide = cast(operand, _SORTED_AS.get(operand.dtype, operand.dtype))
  # XLA's own order of floats is JAX's; of f32 it has a kernel, where it sorts the whole array of
  # integers.
  if not wide.dtype.is_floating or _tf_compat.is_compiled_by_xla():
    values, indices = tf.math.top_k(wide, k)
    return cast(values, operand.dtype), indices
  # TF 2.21: TopKV2 on CPU does not order NaN, and treats both zeros as equal.
  indices = tf.math.top_k(ordinals(wide, key_kind(ctx)), k).indices
  return _along_last(ctx, operand, indices, rank), indices


@lowers(P.approx_top_k_p, lacks=NARROW)
def _approx_top_k(
  ctx: RuleContext,
  operand: tf.Tensor,
  *,
  k: Any,
  reduction_dimension: int,
  recall_target: float,
  is_max_k: bool,
  reduction_input_size_override: int,
  aggregate_to_topk: bool,
) -> list[tf.Tensor]:
  """operand f32[b,n] -> f32[b,k], i32[b,k]: the exact ones, as JAX gives on CPU; more than k if
  these are not aggregated."""
  rank = len(ctx.avals_in[0].shape)
  axis = reduction_dimension % rank
  size = ctx.dim(ctx.avals_out[0].shape[axis])
  operand = _swapped(operand, axis, rank)
  if is_max_k:
    values, indices = top_k_last(ctx, operand, size, rank)
  else:
    indices = tf.math.top_k(_descending_keys(ctx, operand)[0], size).indices
    values = _along_last(ctx, operand, indices, rank)
  return [_swapped(values, axis, rank), _swapped(indices, axis, rank)]


@lowers(P.sort_p, lacks=NARROW)
def _sort(
  ctx: RuleContext, *operands: tf.Tensor, dimension: int, is_stable: bool, num_keys: int
) -> list[tf.Tensor]:
  """operands f32[b,n] ..., the first `num_keys` of them keys -> the same, sorted stably; NaN last,
  -0.0 equal to 0.0.

  Complex numbers go by their real and then by their imaginary part.
  """
  rank = len(ctx.avals_in[0].shape)
  operands = tuple(_swapped(x, dimension, rank) for x in operands)
  size = ctx.dim(ctx.avals_in[0].shape[dimension])
  keys = [key for operand in operands[:num_keys] for key in _descending_keys(ctx, operand)]
  if (
    len(operands) == 1
    and keys[0].dtype == (wide := _SORTED_AS.get(operands[0].dtype, operands[0].dtype))
    and wide.is_integer
  ):
    results = [cast(tf.bitwise.invert(tf.math.top_k(keys[0], size).values), operands[0].dtype)]
  else:
    order = _order(ctx, keys, size, rank)
    results = [_along_last(ctx, x, order, rank) for x in operands]
  return [_swapped(x, dimension, rank) for x in results]


def _descending_keys(ctx: RuleContext, operand: tf.Tensor) -> list[tf.Tensor]:
  """Integers whose descending order is the ascending order of `operand`, the most significant
  first."""
  if operand.dtype.is_complex:
    parts = tf.math.real(operand), tf.math.imag(operand)
    return [key for part in parts for key in _descending_keys(ctx, part)]
  operand = cast(operand, _SORTED_AS.get(operand.dtype, operand.dtype))
  if not operand.dtype.is_floating:
    return [tf.bitwise.invert(operand)]
  bits = float_bits(operand, key_kind(ctx))
  if bits.dtype.min:
    # bits are sign and magnitude, so both zeros become 0
    descending = where(bits < 0, bits ^ bits.dtype.min, negative(bits))
  else:
    sign = sign_bit(bits)  # which both zeros become
    descending = where(bits < sign, subtract(sign, bits), bits)
  return [where(tf.not_equal(operand, operand), scalar(bits.dtype.min, bits), descending)]


def _order(
  ctx: RuleContext, keys: Sequence[tf.Tensor], size: int | tf.Tensor, rank: int
) -> tf.Tensor:
  """i32[b,n], the positions of the sorted elements: stable sorts by each key, the least significant
  first."""
  order = tf.math.top_k(keys[-1], size).indices
  for key in keys[-2::-1]:
    next_order = tf.math.top_k(_along_last(ctx, key, order, rank), size).indices
    order = _along_last(ctx, order, next_order, rank)
  return order


def _along_last(ctx: RuleContext, x: tf.Tensor, indices: tf.Tensor, rank: int) -> tf.Tensor:
  """x f32[b,n], indices i32[b,k] -> f32[b,k]."""
  return gathered(ctx, x, indices, rank - 1, rank - 1)


def _swapped(x: tf.Tensor, axis: int, rank: int) -> tf.Tensor:
  """`x` with `axis` in the place of the last axis and the other way round."""
  permutation = list(range(rank))
  permutation[axis], permutation[-1] = permutation[-1], permutation[axis]
  return x if axis == rank - 1 else tf.transpose(x, permutation)
