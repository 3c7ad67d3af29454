"""Symbolic dimensions inside jaxprs: as values, as sizes, and the assertions about them."""

from __future__ import annotations

import string
from typing import Any

import tensorflow as tf

from jax2tf import _jax_dimensions, _tf_compat
from jax2tf.context import RuleContext
from jax2tf.registry import lowers


@lowers(_jax_dimensions.dim_as_value_p)
def _dim_as_value(ctx: RuleContext, *, dim: Any) -> tf.Tensor:
  """-> i32[] (i64[] with x64), the value of a symbolic dimension."""
  return tf.cast(ctx.dim(dim), ctx.dtype_out)


@lowers(_jax_dimensions.dimension_size_p)
def _dimension_size(ctx: RuleContext, operand: tf.Tensor, *, dimension: int) -> tf.Tensor:
  """operand f32[..., n, ...] -> i32[], n."""
  return tf.cast(ctx.dim(ctx.avals_in[0].shape[dimension]), ctx.dtype_out)


@lowers(_jax_dimensions.shape_assertion_p)
def _shape_assertion(ctx: RuleContext, ok: tf.Tensor, *inputs: tf.Tensor, error_message: str) -> list[tf.Tensor]:
  """ok bool[], the numbers for the message -> nothing; raises InvalidArgumentError when the graph runs, or when XLA compiles it."""
  parts = [(words, index) for words, index, *_ in string.Formatter().parse(error_message)]
  data: list[Any] = []
  for words, index in parts:
    data += [words] if index is None else [words, inputs[int(index)]]
  with tf.control_dependencies([tf.debugging.Assert(ok, data, summarize=8)]):
    ctx.notes.assertions.append(_tf_compat.fails_under_xla(ok, "".join(words for words, _ in parts)))
  return []
