"""Reductions, of whole dimensions and of windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf.stablehlo import regions
from jax2tf.stablehlo.graph import Block, Op
from jax2tf.stablehlo.rules import CUSTOM_CALLS, Evaluation, rule
from jax2tf.stablehlo.shapes import static_sizes, window_padding
from jax2tf.stablehlo.sizes import array

_OF_WINDOWS = (lax.add, lax.max, lax.min, lax.mul)


@rule("reduce")
def _reduce(evaluation: Evaluation, op: Op, *operands: Any) -> Any:
  count = len(operands) // 2
  values, initial = operands[:count], operands[count:]
  dimensions = tuple(map(int, op.attributes["dimensions"]))
  block = op.blocks[0]
  if count == 1:
    known = regions.combination(block, values[0].dtype)
    if known is not None and known is not regions.second:
      start = regions.identity(known, values[0].dtype)
      return _with_initial(known, lax.reduce(values[0], start, known, dimensions), initial[0])
  if count == 2 and len(dimensions) == 1:
    found = _extreme(op, values, initial, dimensions[0])
    if found is not None:
      return found
  body = _body(evaluation, block, count)
  if count == 1:
    return lax.reduce(jnp.asarray(values[0]), initial[0], body, dimensions)
  return lax.reduce(tuple(map(jnp.asarray, values)), tuple(initial), body, dimensions)


def _body(evaluation: Evaluation, block: Block, count: int) -> Callable[..., Any]:
  """A region as a computation of `lax.reduce`: of two scalars, or of two tuples."""
  bound = evaluation.bound(block)
  if count == 1:
    return lambda left, right: bound(left, right)[0]
  return lambda left, right: tuple(bound(*left, *right))


def _with_initial(function: Callable[..., Any], value: Any, initial: Any) -> Any:
  """The function of the initial value too, unless it would change nothing."""
  if isinstance(initial, np.ndarray) and _same_bits(
    initial, regions.identity(function, value.dtype)
  ):
    return value
  return function(value, lax.broadcast(initial, value.shape))


def _same_bits(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
  return left.dtype == right.dtype and left.tobytes() == right.tobytes()


def _extreme(op: Op, values: Any, initial: Any, dimension: int) -> list[Any] | None:
  """The reduction as an argmax or argmin, which has a derivative and a lowering of its own."""
  name = regions.extreme_index(op.blocks[0], [value.dtype for value in values])
  source = op.operands[1].owner
  if name is None or source is None or source.name not in ("iota", "dynamic_iota"):
    return None
  worst = regions.identity(lax.max if name == "argmax" else lax.min, values[0].dtype)
  starts_at_worst = isinstance(initial[0], np.ndarray) and _same_bits(initial[0], worst)
  starts_at_zero = isinstance(initial[1], np.ndarray) and not initial[1].any()
  if source.attributes["iota_dimension"] != dimension or not (starts_at_worst and starts_at_zero):
    return None
  index = getattr(lax, name)(values[0], dimension, values[1].dtype)
  if not op.results[0].uses:
    return [jnp.zeros(index.shape, values[0].dtype), index]
  best = jnp.take_along_axis(values[0], lax.expand_dims(index, [dimension]), dimension)
  return [lax.squeeze(best, [dimension]), index]


def _windowed(
  evaluation: Evaluation, block: Block, values: Any, initial: Any, settings: tuple[Any, ...]
) -> Any:
  if len(values) == 1:
    known = regions.combination(block, values[0].dtype)
    if known in _OF_WINDOWS:
      start = regions.identity(known, values[0].dtype)
      reduced = lax.reduce_window(values[0], start, known, *settings)
      return _with_initial(known, reduced, initial[0])
  body = _body(evaluation, block, len(values))
  if len(values) == 1:
    return lax.reduce_window(jnp.asarray(values[0]), initial[0], body, *settings)
  return lax.reduce_window(tuple(map(jnp.asarray, values)), tuple(initial), body, *settings)


@rule("reduce_window")
def _reduce_window(evaluation: Evaluation, op: Op, *operands: Any) -> Any:
  count = len(operands) // 2
  rank = operands[0].ndim
  ones = [1] * rank
  settings = (
    tuple(op.attributes["window_dimensions"]),
    tuple(op.get("window_strides", ones)),
    window_padding(op, rank),
    tuple(op.get("base_dilations", ones)),
    tuple(op.get("window_dilations", ones)),
  )
  return _windowed(evaluation, op.blocks[0], operands[:count], operands[count:], settings)


@rule("stablehlo.dynamic_reduce_window", table=CUSTOM_CALLS, values=True)
def _dynamic_reduce_window(evaluation: Evaluation, op: Op, *operands: Any) -> Any:
  count = (len(operands) - 5) // 2
  window, strides, base, dilations, padding = map(static_sizes, operands[2 * count :])
  pairs = [tuple(pair) for pair in np.array(padding, object).reshape(-1, 2)]
  block = evaluation.block_of(op.attributes["called_computations"][0])
  settings = window, strides, pairs, base, dilations
  arrays = [array(operand) for operand in operands[: 2 * count]]
  return _windowed(evaluation, block, arrays[:count], arrays[count:], settings)


@rule("select_and_scatter")
def _select_and_scatter(
  evaluation: Evaluation, op: Op, value: Any, source: Any, initial: Any
) -> Any:
  rank = value.ndim
  settings = (
    tuple(op.attributes["window_dimensions"]),
    tuple(op.get("window_strides", [1] * rank)),
    window_padding(op, rank),
  )
  selected = regions.expressions(op.blocks[0])[0]
  sums = regions.combination(op.blocks[1], value.dtype) is lax.add
  both = regions.argument(0), regions.argument(1)
  for function, direction in ((lax.max, "GE"), (lax.min, "LE")):
    is_pooling = selected == regions.compare(direction, *both) and sums
    if is_pooling and jnp.issubdtype(value.dtype, jnp.floating):
      return _with_initial(lax.add, _pooled_back(function, value, source, settings), initial)
  return _selected(evaluation, op, value, source, initial, settings)


def _pooled_back(function: Any, value: Any, source: Any, settings: Any) -> Any:
  """The derivative of a max or min pooling, which JAX writes as this op."""

  def pooled(operand: Any) -> Any:
    return lax.reduce_window(
      operand, regions.identity(function, operand.dtype), function, *settings
    )

  return jax.vjp(pooled, jnp.asarray(value))[1](source)[0]


def _selected(
  evaluation: Evaluation, op: Op, value: Any, source: Any, initial: Any, settings: Any
) -> Any:
  """Any select_and_scatter: the place of the selected element of each window by a reduction of
  pairs, then a scatter in the order of the windows."""
  select, combine = (evaluation.bound(block) for block in op.blocks)
  places = jnp.arange(math.prod(value.shape), dtype=np.int32).reshape(value.shape)

  def body(left: Any, right: Any) -> Any:
    is_left = (right[1] < 0) | ((left[1] >= 0) & select(left[0], right[0])[0])
    return tuple(jnp.where(is_left, a, b) for a, b in zip(left, right, strict=True))

  start = np.zeros((), value.dtype), np.array(-1, np.int32)
  _, chosen = lax.reduce_window((jnp.asarray(value), places), start, body, *settings)
  flat = jnp.full((value.size,), initial, value.dtype)
  known = regions.combination(op.blocks[1], value.dtype)
  targets, updates = chosen.reshape(-1), jnp.asarray(source).reshape(-1)
  if known is lax.add and value.dtype != bool:
    # Of a padded window with no element inside, nothing is selected.
    wrapped = jnp.where(targets < 0, value.size, targets)
    return flat.at[wrapped].add(updates, mode="drop").reshape(value.shape)

  def step(flat: Any, pair: Any) -> Any:
    target, update = pair
    new = combine(flat[target], update)[0]
    return jnp.where(target < 0, flat, flat.at[target].set(new)), None

  return lax.scan(step, flat, (targets, updates))[0].reshape(value.shape)


@rule("map")
def _map(evaluation: Evaluation, op: Op, *values: Any) -> Any:
  function = evaluation.bound(op.blocks[0])
  for _ in range(values[0].ndim):
    function = jax.vmap(function)
  return function(*map(jnp.asarray, values))
