"""Ops that move elements, and those that take sizes as operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import Evaluation, RefusedError, rule
from jax2tf.stablehlo.sizes import array, dynamic_dimension, sizes


def static_sizes(value: Any) -> tuple[Any, ...]:
  """A vector as sizes.

  Raises:
    RefusedError: it depends on data.
  """
  found = sizes(value)
  if found is None:
    raise RefusedError(
      "its result has a size that depends on data, which no array of JAX has",
      "export the function with sizes that depend on the shapes of arguments alone",
    )
  return found


@rule("get_dimension_size", values=True)
def _get_dimension_size(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return dynamic_dimension(value, op.attributes["dimension"])


@rule("broadcast_in_dim")
def _broadcast_in_dim(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.broadcast_in_dim(
    value, op.results[0].shape, tuple(op.attributes["broadcast_dimensions"])
  )


@rule("dynamic_broadcast_in_dim", values=True)
def _dynamic_broadcast_in_dim(evaluation: Evaluation, op: Op, value: Any, shape: Any) -> Any:
  dimensions = tuple(op.attributes["broadcast_dimensions"])
  return lax.broadcast_in_dim(array(value), static_sizes(shape), dimensions)


@rule("broadcast")
def _broadcast(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.broadcast(value, tuple(op.attributes["broadcast_sizes"]))


@rule("iota")
def _iota(evaluation: Evaluation, op: Op) -> Any:
  result = op.results[0]
  return lax.broadcasted_iota(result.dtype, result.shape, op.attributes["iota_dimension"])


@rule("dynamic_iota", values=True)
def _dynamic_iota(evaluation: Evaluation, op: Op, shape: Any) -> Any:
  dimension = op.attributes["iota_dimension"]
  return lax.broadcasted_iota(op.results[0].dtype, static_sizes(shape), dimension)


@rule("reshape")
def _reshape(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.reshape(value, op.results[0].shape)


@rule("dynamic_reshape", values=True)
def _dynamic_reshape(evaluation: Evaluation, op: Op, value: Any, shape: Any) -> Any:
  return lax.reshape(array(value), static_sizes(shape))


@rule("transpose")
def _transpose(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.transpose(value, tuple(op.attributes["permutation"]))


@rule("reverse")
def _reverse(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.rev(value, tuple(op.attributes["dimensions"]))


@rule("concatenate")
def _concatenate(evaluation: Evaluation, op: Op, *values: Any) -> Any:
  return lax.concatenate(values, op.attributes["dimension"])


@rule("pad")
def _pad(evaluation: Evaluation, op: Op, value: Any, filling: Any) -> Any:
  names = ("edge_padding_low", "edge_padding_high", "interior_padding")
  amounts = zip(*(op.attributes[name] for name in names), strict=True)
  return lax.pad(
    value, filling, [(int(low), int(high), int(inner)) for low, high, inner in amounts]
  )


@rule("dynamic_pad", values=True)
def _dynamic_pad(evaluation: Evaluation, op: Op, value: Any, filling: Any, *amounts: Any) -> Any:
  by_axis = zip(*map(static_sizes, amounts), strict=True)
  return lax.pad(array(value), array(filling), list(by_axis))


@rule("slice")
def _slice(evaluation: Evaluation, op: Op, value: Any) -> Any:
  names = ("start_indices", "limit_indices", "strides")
  return lax.slice(value, *(op.attributes[name] for name in names))


@rule("real_dynamic_slice", values=True)
def _real_dynamic_slice(
  evaluation: Evaluation, op: Op, value: Any, start: Any, limit: Any, stride: Any
) -> Any:
  starts, limits = sizes(start), sizes(limit)
  if starts is not None and limits is not None:
    return lax.slice(array(value), starts, limits, static_sizes(stride))
  lengths = _lengths(evaluation, op)
  if lengths is None or set(static_sizes(stride)) != {1}:
    static_sizes(limit if starts is not None else start)  # raises
  start, value = array(start), array(value)
  return dynamic_slice(value, [start[axis] for axis in range(value.ndim)], lengths)


def _lengths(evaluation: Evaluation, op: Op) -> tuple[Any, ...] | None:
  """The sizes of a slice whose limit is its start plus them, as JAX writes one of symbolic size."""
  start, limit = op.operands[1:3]
  source = limit.owner
  if source is None or source.name != "add" or start not in source.operands:
    return None
  length = next((each for each in source.operands if each is not start), None)
  return None if length is None else sizes(evaluation.value(length))


def dynamic_slice(value: Any, starts: Any, lengths: Any) -> Any:
  """StableHLO moves a negative start to 0; `lax.dynamic_slice` counts it from the end unless it is
  told."""
  return lax.dynamic_slice(value, starts, lengths, allow_negative_indices=False)


@rule("dynamic_slice")
def _dynamic_slice(evaluation: Evaluation, op: Op, value: Any, *starts: Any) -> Any:
  return dynamic_slice(value, starts, op.attributes["slice_sizes"]) if starts else value


@rule("dynamic_update_slice")
def _dynamic_update_slice(
  evaluation: Evaluation, op: Op, value: Any, update: Any, *starts: Any
) -> Any:
  if not starts:
    return update
  return lax.dynamic_update_slice(value, update, starts, allow_negative_indices=False)


@rule("optimization_barrier")
def _optimization_barrier(evaluation: Evaluation, op: Op, *values: Any) -> Any:
  return list(lax.optimization_barrier(values))


@rule("reshard", "sharding_constraint", dialect="sdy", values=True)
def _sharding(evaluation: Evaluation, op: Op, value: Any) -> Any:
  """It says on which devices the value is; here there is one."""
  return [value]


@rule("create_token", "after_all", values=True)
def _token(evaluation: Evaluation, op: Op, *tokens: Any) -> Any:
  return [None]


@rule("tuple", values=True)
def _tuple(evaluation: Evaluation, op: Op, *values: Any) -> Any:
  return [tuple(values)]


@rule("get_tuple_element", values=True)
def _get_tuple_element(evaluation: Evaluation, op: Op, values: Any) -> Any:
  return [values[op.attributes["index"]]]


def window_padding(op: Op, rank: int) -> list[tuple[int, int]]:
  """The padding of a window, none by default."""
  padding = op.get("padding")
  if padding is None:
    return [(0, 0)] * rank
  return [(int(low), int(high)) for low, high in np.asarray(padding).reshape(-1, 2)]
