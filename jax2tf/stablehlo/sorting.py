"""Sorts, and the largest elements.

StableHLO leaves the place of NaN open where a comparator compares floats by FLOAT, for then it
orders nothing; here they come last, as in JAX.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax2tf.stablehlo import regions
from jax2tf.stablehlo.elementwise import total_order
from jax2tf.stablehlo.graph import Block, Op
from jax2tf.stablehlo.rules import COMPOSITES, CUSTOM_CALLS, Evaluation, Refusal, rule
from jax2tf.stablehlo.shapes import static_sizes
from jax2tf.stablehlo.sizes import array


@rule("sort")
def _sort(evaluation: Evaluation, op: Op, *operands: Any) -> list[Any]:
  arrays = [jnp.asarray(operand) for operand in operands]
  dimension = op.get("dimension", -1) % arrays[0].ndim
  is_stable, block = bool(op.get("is_stable", False)), op.blocks[0]
  keys = regions.sort_keys(block)
  if keys is None:
    return _by_rank(evaluation, block, arrays, dimension)
  if _is_plain(keys, arrays):
    sorted_arrays = lax.sort(tuple(arrays), dimension, is_stable, num_keys=len(keys))
    return list(sorted_arrays)
  columns = [_column(evaluation, block, key, arrays) for key in keys]
  return list(
    lax.sort((*columns, *arrays), dimension, is_stable, num_keys=len(columns))[len(columns) :]
  )


def _is_plain(keys: list[regions.SortKey], arrays: list[Any]) -> bool:
  """Whether the keys are the first operands in JAX's own order."""
  if [key.operand for key in keys] != list(range(len(keys))):
    return False
  return not any(key.is_descending or _tells_apart(key) for key in keys)


def _tells_apart(key: regions.SortKey) -> bool:
  """Whether NaNs of other bits, or the two zeros, are different; they are one each in JAX."""
  return key.is_total and not key.is_canonical


def _column(evaluation: Evaluation, block: Block, key: regions.SortKey, arrays: list[Any]) -> Any:
  """An array that JAX sorts as the comparator does."""
  if key.operand is not None and not key.is_canonical:
    column = arrays[key.operand]
  else:
    column = _computed(evaluation, block, key, arrays)
  if key.is_total:
    column = total_order(column)
  if not key.is_descending:
    return column
  is_inexact = jnp.issubdtype(column.dtype, jnp.inexact)
  return lax.neg(column) if is_inexact else lax.bitwise_not(column)


def _computed(evaluation: Evaluation, block: Block, key: regions.SortKey, arrays: list[Any]) -> Any:
  """The key of each element."""
  function = evaluation.bound(Block(block.arguments, block.ops, [key.value]))
  both = [array for array in arrays for _ in range(2)]
  flat = jax.vmap(function)(*(array.reshape(-1) for array in both))[0]
  return flat.reshape(arrays[0].shape)


def _by_rank(evaluation: Evaluation, block: Block, arrays: list[Any], dimension: int) -> list[Any]:
  """A stable sort by any comparator: comparing all pairs gives each element its place."""
  arrays = [jnp.moveaxis(each, dimension, -1) for each in arrays]
  length = arrays[0].shape[-1]
  less = evaluation.bound(block)

  def is_before(left: Any, right: Any) -> Any:
    return less(*(each for pair in zip(left, right, strict=True) for each in pair))[0]

  def places(*row: Any) -> Any:
    by_right = jax.vmap(is_before, in_axes=(None, 0))
    before = jax.vmap(by_right, in_axes=(0, None))(row, row)
    earlier = jnp.arange(length)[:, None] < jnp.arange(length)[None, :]
    return jnp.sum(before | (~before.T & earlier), axis=0)

  shape = arrays[0].shape
  rows = [each.reshape(-1, length) for each in arrays]
  order = jnp.argsort(jax.vmap(places)(*rows), axis=-1)
  taken = [jnp.take_along_axis(each, order, -1).reshape(shape) for each in rows]
  return [jnp.moveaxis(each, -1, dimension) for each in taken]


@rule("top_k", dialect="chlo")
def _top_k(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.top_k(value, op.attributes["k"])


@rule("chlo.top_k", table=COMPOSITES)
def _top_k_of_composite(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.top_k(value, op.attributes["composite_attributes"]["k"])


def _check_largest(op: Op) -> Refusal | None:
  if op.get("mhlo.attributes", {}).get("largest", True):
    return None
  return Refusal("it gives the smallest elements", "export lax.top_k of the negated array")


@rule("mhlo.topk", "TopK", table=CUSTOM_CALLS, check=_check_largest)
def _top_k_of_call(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.top_k(value, op.attributes["mhlo.attributes"]["k"])


@rule("stablehlo.dynamic_top_k", table=CUSTOM_CALLS, values=True)
def _dynamic_top_k(evaluation: Evaluation, op: Op, value: Any, count: Any) -> Any:
  return lax.top_k(array(value), static_sizes(count)[0])
