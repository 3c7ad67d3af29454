"""dot_general as one MatMul or BatchMatMul, with the fewest transposes and reshapes around it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf import _jax_compat
from jax2tf._jax_compat.shape_poly import dimension_bounds
from jax2tf.context import RuleContext
from jax2tf.dtypes import HALF, tf_dtype
from jax2tf.lowering._common import cast
from jax2tf.lowering._movement import is_one, is_zero, keeps_order, resized
from jax2tf.lowering._products import multiplicands, multiplied_in, product_as_result
from jax2tf.registry import lowers

# TF 2.21 has MatMul kernels on CPU for these; other types are computed in one that holds them.
_DIRECT = frozenset({tf.float32, tf.float64, tf.complex64, tf.complex128, tf.int32, tf.int64})


@lowers(P.dot_general_p)
def _dot_general(
  ctx: RuleContext,
  lhs: tf.Tensor,
  rhs: tf.Tensor,
  *,
  dimension_numbers: Any,
  precision: Any,
  preferred_element_type: Any,
) -> tf.Tensor:
  """lhs f32[batch, m, k], rhs f32[batch, k, n] in any order of dimensions -> f32[batch, m, n]."""
  lhs_aval, rhs_aval = ctx.avals_in
  product_dtype = _product_dtype(ctx, precision)
  (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
  summed = [lhs_aval.shape[i] for i in lhs_contract]
  if any(map(is_zero, (*summed, *ctx.aval_out.shape))):
    return tf.zeros(ctx.shape(ctx.aval_out.shape), ctx.dtype_out)
  sums = _accumulator(ctx, tf_dtype(product_dtype))
  lhs, rhs = (cast(x, sums) for x in multiplicands(ctx, [lhs, rhs], product_dtype))
  if not lhs_contract:
    product = _outer(ctx, lhs, rhs, lhs_batch, rhs_batch)
  else:
    # Contracting dimensions in the order of whichever side has them adjacent, so that at least one
    # side needs no transpose.
    order = sorted(range(len(lhs_contract)), key=lambda i: lhs_contract[i])
    x = _Side(lhs, lhs_aval.shape, lhs_batch, [lhs_contract[i] for i in order])
    y = _Side(rhs, rhs_aval.shape, rhs_batch, [rhs_contract[i] for i in order])
    a, transpose_a = x.matrix(ctx, contract_last=True)
    b, transpose_b = y.matrix(ctx, contract_last=False)
    product = tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if any(dimension_bounds(d)[0] < 1 for d in (*summed, *(rhs_aval.shape[i] for i in y.free))):
      # TF 2.21: oneDNN's product with a bias ends the process for an empty rhs. An EnsureShape
      # keeps Grappler from fusing the two.
      product = tf.ensure_shape(product, product.shape)
    if len(x.free) != 1 or len(y.free) != 1:
      sizes = [*(x.shape[i] for i in x.batch), _product(x.shape, x.free), _product(y.shape, y.free)]
      product = resized(ctx, product, sizes, ctx.aval_out.shape)
  return product_as_result(ctx, product, product_dtype)


class _Side:
  """One operand, with its dimensions by kind: batch, free, contracted."""

  def __init__(
    self, operand: tf.Tensor, shape: Sequence[Any], batch: Sequence[int], contract: Sequence[int]
  ):
    self.operand = operand
    self.shape = shape
    self.batch = list(batch)
    self.contract = list(contract)
    self.free = [i for i in range(len(shape)) if i not in (*batch, *contract)]

  def matrix(self, ctx: RuleContext, contract_last: bool) -> tuple[tf.Tensor, bool]:
    """(operand as [batch..., rows, columns], whether rows and columns are the wrong way round)."""
    rows, columns = (self.free, self.contract) if contract_last else (self.contract, self.free)
    if swap := self._swapped(rows, columns):
      rows, columns = columns, rows
    order, operand, sizes = [*self.batch, *rows, *columns], self.operand, self.shape
    if not keeps_order(sizes, order):
      operand, sizes = tf.transpose(operand, order), [sizes[i] for i in order]
    target = [
      *(self.shape[i] for i in self.batch),
      _product(self.shape, rows),
      _product(self.shape, columns),
    ]
    return operand if list(sizes) == target else resized(ctx, operand, sizes, target), swap

  def _swapped(self, rows: Sequence[int], columns: Sequence[int]) -> bool:
    """Whether [batch..., columns, rows] takes less moving than [batch..., rows, columns]."""
    # A complex operand is moved: BatchMatMul would conjugate it.
    if self.operand.dtype.is_complex or not rows or not columns:
      return False
    plain, transposed = [*self.batch, *rows, *columns], [*self.batch, *columns, *rows]
    for costs_nothing in (
      lambda order: order == sorted(order),
      lambda order: keeps_order(self.shape, order),
    ):
      if costs_nothing(plain) or costs_nothing(transposed):
        return not costs_nothing(plain)
    # A transpose that leaves the last dimension in place moves whole rows.
    last = max(i for i in plain if not is_one(self.shape[i]))
    return transposed[-1] == last


def _product(shape: Sequence[Any], dims: Sequence[int]) -> Any:
  size: Any = 1
  for i in dims:
    size = size * shape[i]
  return size


def _outer(
  ctx: RuleContext,
  lhs: tf.Tensor,
  rhs: tf.Tensor,
  lhs_batch: Sequence[int],
  rhs_batch: Sequence[int],
) -> tf.Tensor:
  """No contraction: a product of every free dimension of one with every one of the other."""
  x = _Side(lhs, ctx.avals_in[0].shape, lhs_batch, [])
  y = _Side(rhs, ctx.avals_in[1].shape, rhs_batch, [])
  a, b = (
    s.operand
    if [*s.batch, *s.free] == list(range(len(s.shape)))
    else tf.transpose(s.operand, [*s.batch, *s.free])
    for s in (x, y)
  )
  if x.free and y.free:
    b = ctx.reshape(
      b, [*(y.shape[i] for i in y.batch), *[1] * len(x.free), *(y.shape[i] for i in y.free)]
    )
  if y.free:
    a = ctx.reshape(
      a, [*(x.shape[i] for i in x.batch), *(x.shape[i] for i in x.free), *[1] * len(y.free)]
    )
  elif x.free:
    b = ctx.reshape(b, [*(y.shape[i] for i in y.batch), *[1] * len(x.free)])
  return tf.multiply(a, b)


def _accumulator(ctx: RuleContext, dtype: tf.DType) -> tf.DType:
  """The type to multiply and add in. Integers wrap, so any wide enough signed type gives the bits
  of the result's."""
  # Kernels of GPUs add bf16 and f16 in f32 and round once, at the end, as JAX's own there.
  if dtype in _DIRECT or (dtype in HALF and ctx.destination.only_on_gpus):
    return dtype
  if dtype == tf.bool:
    return tf.int32
  if dtype.is_integer:
    return tf.int64 if dtype.size > 4 else tf.int32
  # bf16, f16 and float8: products are exact in f32, and XLA on CPU rounds once, at the end.
  return tf.float32


def _product_dtype(ctx: RuleContext, precision: Any) -> Any:
  """The dtype of the product before its conversion to that of the result, which a named algorithm
  may say.

  TensorFlow is at least as precise as the plain precisions require.
  """
  lhs, rhs, out = (aval.dtype for aval in (*ctx.avals_in, ctx.aval_out))
  refused = (
    f"Unsupported precision in dot_general: {precision}",
    "use jax.lax.Precision, or lower natively",
  )
  if isinstance(precision, lax.DotAlgorithm):
    ctx.refuse(*refused)
  if (
    isinstance(precision, lax.DotAlgorithmPreset)
    and precision is not lax.DotAlgorithmPreset.DEFAULT
  ):
    sides = (lhs, precision.supported_lhs_types), (rhs, precision.supported_rhs_types)
    if any(types is not None and dtype not in _dtypes(types) for dtype, types in sides):
      ctx.refuse(*refused)
    results = precision.supported_output_types(lhs, rhs)
    if results is not None and out not in _dtypes(results):
      return np.dtype(results[0])
  return multiplied_in(lhs, rhs, out)


def _dtypes(types: Sequence[Any]) -> list[Any]:
  return [np.dtype(t) for t in types]


@lowers(_jax_compat.ragged_dot_general_p)
def _ragged_dot_general(ctx: RuleContext, *operands: tf.Tensor, **params: Any) -> tf.Tensor:
  """lhs f32[m,k], rhs f32[g,k,n], group_sizes i32[g] -> f32[m,n]: JAX's own reference, a masked dot
  per group."""
  return ctx.lower_fun(functools.partial(_jax_compat.ragged_dot_general_impl, **params), *operands)


@lowers(_jax_compat.scaled_dot_p)
def _scaled_dot(ctx: RuleContext, *operands: tf.Tensor, **params: Any) -> tf.Tensor:
  """lhs, rhs in blocks with scales -> their product: JAX's own reference."""
  return ctx.lower_fun(functools.partial(_jax_compat.scaled_dot_impl, **params), *operands)
