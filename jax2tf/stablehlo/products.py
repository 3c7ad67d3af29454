"""Products and convolutions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import Evaluation, Refusal, rule
from jax2tf.stablehlo.shapes import static_sizes, window_padding
from jax2tf.stablehlo.sizes import array


def _precision(op: Op) -> Any:
  words = op.get("precision_config") or []
  return tuple(getattr(lax.Precision, word) for word in words) if len(words) == 2 else None


def _check_algorithm(op: Op) -> Refusal | None:
  algorithm = op.get("algorithm")
  if algorithm is None:
    return None
  return Refusal(
    f"its result depends on an algorithm that the graph lowering does not have ({algorithm})",
    "export the function with another precision=",
  )


@rule("dot_general", check=_check_algorithm)
def _dot_general(evaluation: Evaluation, op: Op, left: Any, right: Any) -> Any:
  numbers = op.attributes["dot_dimension_numbers"]
  contracting = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
  batching = numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions
  return lax.dot_general(
    left,
    right,
    (contracting, batching),
    precision=_precision(op),
    preferred_element_type=op.results[0].dtype,
  )


@rule("dot")
def _dot(evaluation: Evaluation, op: Op, left: Any, right: Any) -> Any:
  return lax.dot_general(
    left,
    right,
    (((left.ndim - 1,), (0,)), ((), ())),
    precision=_precision(op),
    preferred_element_type=op.results[0].dtype,
  )


@rule("einsum", "unary_einsum")
def _einsum(evaluation: Evaluation, op: Op, *operands: Any) -> Any:
  return jnp.einsum(op.attributes["einsum_config"], *operands)


@rule("convolution")
def _convolution(evaluation: Evaluation, op: Op, value: Any, kernel: Any) -> Any:
  return _convolved(op, value, kernel, window_padding(op, value.ndim - 2))


@rule("dynamic_conv", values=True)
def _dynamic_conv(evaluation: Evaluation, op: Op, value: Any, kernel: Any, padding: Any) -> Any:
  pairs = np.array(static_sizes(padding), object).reshape(-1, 2)
  return _convolved(op, array(value), array(kernel), [tuple(pair) for pair in pairs])


def _convolved(op: Op, value: Any, kernel: Any, padding: Any) -> Any:
  numbers = op.attributes["dimension_numbers"]
  reversal = op.get("window_reversal") or []
  flipped = [
    axis
    for axis, is_reversed in zip(numbers.kernel_spatial_dimensions, reversal, strict=False)
    if is_reversed
  ]
  if flipped:
    kernel = lax.rev(kernel, flipped)
  ones = [1] * len(numbers.input_spatial_dimensions)
  return lax.conv_general_dilated(
    value,
    kernel,
    op.get("window_strides", ones),
    padding,
    op.get("lhs_dilation", ones),
    op.get("rhs_dilation", ones),
    _dimension_numbers(numbers),
    feature_group_count=op.get("feature_group_count", 1),
    batch_group_count=op.get("batch_group_count", 1),
    precision=_precision(op),
    preferred_element_type=op.results[0].dtype,
  )


def _dimension_numbers(numbers: Any) -> Any:
  return lax.ConvDimensionNumbers(
    (
      numbers.input_batch_dimension,
      numbers.input_feature_dimension,
      *numbers.input_spatial_dimensions,
    ),
    (
      numbers.kernel_output_feature_dimension,
      numbers.kernel_input_feature_dimension,
      *numbers.kernel_spatial_dimensions,
    ),
    (
      numbers.output_batch_dimension,
      numbers.output_feature_dimension,
      *numbers.output_spatial_dimensions,
    ),
  )


@rule("batch_norm_inference")
def _batch_norm_inference(
  evaluation: Evaluation, op: Op, value: Any, scale: Any, offset: Any, mean: Any, variance: Any
) -> Any:
  def broadcast(vector: Any) -> Any:
    return lax.broadcast_in_dim(vector, value.shape, (op.attributes["feature_index"],))

  epsilon = np.array(op.attributes["epsilon"], value.dtype)
  deviation = lax.sqrt(lax.add(broadcast(variance), jnp.full(value.shape, epsilon)))
  normal = lax.div(lax.sub(value, broadcast(mean)), deviation)
  return lax.add(lax.mul(normal, broadcast(scale)), broadcast(offset))
