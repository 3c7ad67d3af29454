"""Symbolic dimensions inside jaxprs: as values, as sizes, and the assertions about them."""

from __future__ import annotations

import string
from typing import Any

import tensorflow as tf

from jax2tf._jax_compat import shape_poly
from jax2tf.context import RuleContext
from jax2tf.graph_context import asserted
from jax2tf.registry import lowers


@lowers(shape_poly.dim_as_value_p)
def _dim_as_value(ctx: RuleContext, *, dim: Any) -> tf.Tensor:
  """-> i32[] (i64[] with x64), the value of a symbolic dimension; an error when the graph runs if
  it does not fit."""
  dtype = ctx.dtype_out
  if dtype == tf.int32 and (wrapping := ctx.dimensions.wrapping_value(dim)):
    return _checked(dim, *wrapping)
  value = ctx.dimensions.wide_value(dim)
  if isinstance(value, int):
    if value > dtype.max:
      ctx.refuse(
        f"the size {dim} = {value} does not fit into {dtype.name}",
        "set jax_enable_x64, or compute in floating point",
      )
    return tf.constant(value, dtype)
  if value.dtype.size <= dtype.size:
    return tf.cast(value, dtype)
  narrow = tf.cast(value, dtype)
  return _checked(dim, narrow, tf.equal(tf.cast(narrow, value.dtype), value), value)


def _checked(dim: Any, value: tf.Tensor, fits: tf.Tensor, shown: tf.Tensor) -> tf.Tensor:
  """The value of a dimension, or an error when the graph runs, which shows the number."""
  message = f"a size, {dim}, does not fit into {value.dtype.name}; enable jax_enable_x64"
  checked = asserted(fits, [message, shown], message)
  # The size is 0: XLA drops a control dependency of what it folds. TF.js 4.22 (wasm) has random
  # numbers for the sum of no elements.
  return value + tf.size(checked.outputs[0], value.dtype)


@lowers(shape_poly.dimension_size_p)
def _dimension_size(ctx: RuleContext, operand: tf.Tensor, *, dimension: int) -> tf.Tensor:
  """operand f32[..., n, ...] -> i32[], n."""
  return tf.cast(ctx.dim(ctx.avals_in[0].shape[dimension]), ctx.dtype_out)


@lowers(shape_poly.shape_assertion_p)
def _shape_assertion(
  ctx: RuleContext, ok: tf.Tensor, *inputs: tf.Tensor, error_message: str
) -> list[tf.Tensor]:
  """ok bool[], the numbers for the message -> nothing; raises InvalidArgumentError when the graph
  runs, or when XLA compiles it."""
  parts = [(words, index) for words, index, *_ in string.Formatter().parse(error_message)]
  data: list[Any] = []
  for words, index in parts:
    data += [words] if index is None else [words, inputs[int(index)]]
  message = "".join(words for words, _ in parts)
  ctx.graph.assertions.append(asserted(ok, data, message, summarize=8))
  return []
