"""Gathers and scatters.

A gather of StableHLO moves an index outside of the array to its edge, `lax.gather`'s mode CLIP; a
scatter leaves out an update that does not fit, mode FILL_OR_DROP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf.stablehlo import regions
from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import Evaluation, rule
from jax2tf.stablehlo.shapes import static_sizes
from jax2tf.stablehlo.sizes import array


def _with_last_vector(indices: Any, axis: int) -> Any:
  """The indices with the dimension of the index vector last, where JAX has it."""
  if axis == indices.ndim:
    return lax.expand_dims(indices, [axis])
  return indices if axis == indices.ndim - 1 else jnp.moveaxis(indices, axis, -1)


def _without(axis: int, dimensions: Any) -> tuple[int, ...]:
  """Dimensions of the indices as numbered without that of the index vector."""
  return tuple(each - (each > axis) for each in dimensions)


def _gathered(op: Op, value: Any, indices: Any, slice_sizes: Any) -> Any:
  numbers = op.attributes["dimension_numbers"]
  axis = numbers.index_vector_dim
  dimension_numbers = lax.GatherDimensionNumbers(
    offset_dims=numbers.offset_dims,
    collapsed_slice_dims=numbers.collapsed_slice_dims,
    start_index_map=numbers.start_index_map,
    operand_batching_dims=numbers.operand_batching_dims,
    start_indices_batching_dims=_without(axis, numbers.start_indices_batching_dims),
  )
  return lax.gather(
    value,
    _with_last_vector(indices, axis),
    dimension_numbers,
    tuple(slice_sizes),
    indices_are_sorted=bool(op.get("indices_are_sorted", False)),
    mode=lax.GatherScatterMode.CLIP,
  )


@rule("gather")
def _gather(evaluation: Evaluation, op: Op, value: Any, indices: Any) -> Any:
  return _gathered(op, value, indices, op.attributes["slice_sizes"])


@rule("dynamic_gather", values=True)
def _dynamic_gather(
  evaluation: Evaluation, op: Op, value: Any, indices: Any, slice_sizes: Any
) -> Any:
  return _gathered(op, array(value), array(indices), static_sizes(slice_sizes))


@rule("torch_index_select")
def _torch_index_select(evaluation: Evaluation, op: Op, value: Any, index: Any) -> Any:
  dimension, batch = op.attributes["dim"], op.get("batch_dims", 0)
  take = _take_along(dimension - batch)
  for _ in range(batch):
    take = jax.vmap(take)
  return take(value, index)


def _take_along(axis: int) -> Callable[[Any, Any], Any]:
  return lambda value, index: jnp.take(value, index, axis=axis, mode="clip")


_SCATTERS = {
  lax.add: lax.scatter_add,
  lax.mul: lax.scatter_mul,
  lax.max: lax.scatter_max,
  lax.min: lax.scatter_min,
  regions.second: lax.scatter,
}


@rule("scatter")
def _scatter(evaluation: Evaluation, op: Op, *operands: Any) -> Any:
  count = (len(operands) - 1) // 2
  values, indices, updates = operands[:count], operands[count], operands[count + 1 :]
  numbers = op.attributes["scatter_dimension_numbers"]
  axis = numbers.index_vector_dim
  dimension_numbers = lax.ScatterDimensionNumbers(
    update_window_dims=numbers.update_window_dims,
    inserted_window_dims=numbers.inserted_window_dims,
    scatter_dims_to_operand_dims=numbers.scattered_dims_to_operand_dims,
    operand_batching_dims=numbers.input_batching_dims,
    scatter_indices_batching_dims=_without(axis, numbers.scatter_indices_batching_dims),
  )
  indices = _with_last_vector(indices, axis)
  settings = {
    "indices_are_sorted": bool(op.get("indices_are_sorted", False)),
    "unique_indices": bool(op.get("unique_indices", False)),
    "mode": lax.GatherScatterMode.FILL_OR_DROP,
  }
  known = regions.combination(op.blocks[0], values[0].dtype) if count == 1 else None
  if known in _SCATTERS:
    return _by_lax(_SCATTERS[known], values[0], indices, updates[0], dimension_numbers, settings)
  return in_turn(evaluation, op, values, indices, updates, dimension_numbers)


def _by_lax(
  scatter: Any, value: Any, indices: Any, update: Any, numbers: Any, settings: dict[str, Any]
) -> Any:
  dtype = value.dtype
  if dtype.kind == "b" and scatter is not lax.scatter:  # JAX has no sums or extremes of booleans
    value, update = value.astype(np.uint8), update.astype(np.uint8)
  return scatter(jnp.asarray(value), indices, update, numbers, **settings).astype(dtype)


def in_turn(
  evaluation: Evaluation, op: Op, values: Any, indices: Any, updates: Any, numbers: Any
) -> list[Any]:
  """A scatter with a computation of its own, or of several arrays: one window after another."""
  batch = indices.shape[:-1]
  axes = [d for d in range(updates[0].ndim) if d not in numbers.update_window_dims]
  rows = jnp.asarray(indices).reshape(-1, indices.shape[-1])  # read by a traced number
  windows = []
  for update in updates:
    moved = jnp.moveaxis(jnp.asarray(update), axes, list(range(len(axes))))
    windows.append(moved.reshape(rows.shape[0], *moved.shape[len(batch) :]))
  compute = jax.vmap(evaluation.bound(op.blocks[0]))
  places = _positions(values[0], numbers, batch, windows[0].shape[1:])

  def step(carried: Any, number: Any) -> Any:
    flat_indices, is_inside = places(rows[number], number)
    olds = [jnp.take(each, flat_indices.reshape(-1), mode="clip") for each in carried]
    news = compute(*olds, *(window[number].reshape(-1) for window in windows))
    target = jnp.where(is_inside, flat_indices.reshape(-1), carried[0].size)
    return [
      each.at[target].set(new, mode="drop") for each, new in zip(carried, news, strict=True)
    ], None

  flat = [jnp.asarray(value).reshape(-1) for value in values]
  results, _ = lax.scan(step, flat, jnp.arange(rows.shape[0]))
  return [result.reshape(value.shape) for result, value in zip(results, values, strict=True)]


def _positions(value: Any, numbers: Any, batch: Any, window: Any) -> Callable[..., Any]:
  """A function from an index vector and its number to the places of its window in the flat array,
  and whether the whole window is inside of it."""
  collapsed = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
  kept = [axis for axis in range(value.ndim) if axis not in collapsed]
  batches = dict(
    zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
  )
  starts_of = {axis: place for place, axis in enumerate(numbers.scatter_dims_to_operand_dims)}
  sizes_of = dict(zip(kept, window, strict=True))

  def places(vector: Any, number: Any) -> Any:
    of_batch = jnp.unravel_index(number, batch) if batch else ()
    place, is_inside = jnp.zeros(window, np.int64 if jax.config.jax_enable_x64 else np.int32), True
    for axis in range(value.ndim):
      start: Any = 0
      if axis in batches:
        start = of_batch[batches[axis]]
      elif axis in starts_of:
        start = vector[starts_of[axis]].astype(place.dtype)
      length = sizes_of.get(axis, 1)
      is_inside = is_inside & (start >= 0) & (start <= value.shape[axis] - length)
      offset: Any = 0
      if axis in sizes_of:
        offset = lax.broadcasted_iota(place.dtype, window, kept.index(axis))
      place = place * value.shape[axis] + start + offset
    return place, is_inside

  return places
