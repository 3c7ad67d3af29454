"""The rules of `xla_ops`, one an op.

Their inputs and attributes are those of tensorflow/compiler/tf2xla/ops/xla_ops.cc.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jax2tf.stablehlo.graph import Block, Op, Value

from . import scalars, wire
from .xla_ops import Operation, rule


@rule("XlaDot", "XlaDotV2")
def _dot(node: Operation) -> list[Value]:
  left_type, right_type, out = _types_of_product(node)
  left, right = node.data(0, left_type), node.data(1, right_type)
  numbers = wire.dot_dimensions(node.node.attr["dimension_numbers"].s)
  batching = zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True)
  contracting = zip(
    numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True
  )
  for axis, other in (*batching, *contracting):
    node.same(left, axis, right, other)
  attributes = {"dot_dimension_numbers": numbers, "precision_config": _precision(node)}
  return [node.op("dot_general", [left, right], out, node.result(), attributes)]


@rule("XlaConv", "XlaConvV2")
def _convolution(node: Operation) -> list[Value]:
  left_type, right_type, out = _types_of_product(node)
  value, kernel = node.data(0, left_type), node.data(1, right_type)
  strides, left, right, [groups] = (node.numbers(index) for index in (2, 4, 5, 6))
  numbers = wire.convolution_dimensions(node.node.attr["dimension_numbers"].s)
  feature, of_kernel = numbers.input_feature_dimension, numbers.kernel_input_feature_dimension
  node.needs_check = True  # of oneDNN's Conv2D after a Pad, the result has the size of the image
  if groups == 1:
    node.same(value, feature, kernel, of_kernel)
  elif not isinstance(node.words(value)[feature], int):
    node.refuse("it has groups of features, whose number is not in the graph")
  attributes = {
    "dimension_numbers": numbers,
    "window_strides": strides,
    "lhs_dilation": left,
    "rhs_dilation": right,
    "feature_group_count": groups,
    "batch_group_count": node.node.attr["batch_group_count"].i or 1,
    "precision_config": _precision(node),
  }
  operands = [value, kernel, node.sizes(3)]
  return [node.op("dynamic_conv", operands, out, node.result(), attributes)]


def _types_of_product(node: Operation) -> tuple[Any, Any, Any]:
  if "T" in node.node.attr:
    return (node.dtype("T"),) * 3
  return node.dtype("LhsT"), node.dtype("RhsT"), node.dtype("preferred_element_type")


def _precision(node: Operation) -> list[str]:
  return wire.precisions(node.node.attr["precision_config"].s)


@rule("XlaPad")
def _pad(node: Operation) -> list[Value]:
  dtype = node.dtype("T")
  operands = [node.data(0, dtype), node.scalar(1, dtype), *map(node.sizes, (2, 3, 4))]
  return [node.op("dynamic_pad", operands, dtype, node.result())]


@rule("XlaGather")
def _gather(node: Operation) -> list[Value]:
  dtype = node.dtype("T")
  value, indices = node.data(0, dtype), node.data(1, node.dtype("Tindices"))
  numbers = wire.gather_dimensions(node.node.attr["dimension_numbers"].s)
  pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
  for axis, other in pairs:
    node.same(value, axis, indices, other)
  attributes = {
    "dimension_numbers": numbers,
    "indices_are_sorted": node.node.attr["indices_are_sorted"].b,
  }
  operands = [value, indices, node.sizes(2)]
  node.at_most(node.lengths(2), node.words(value))
  return [node.op("dynamic_gather", operands, dtype, node.result(), attributes)]


@rule("XlaScatter")
def _scatter(node: Operation) -> list[Value]:
  dtype = node.dtype("T")
  value, indices = node.data(0, dtype), node.data(1, node.dtype("Tindices"))
  updates = node.data(2, dtype)
  numbers = wire.scatter_dimensions(node.node.attr["dimension_numbers"].s)
  rank = len(node.words(indices))
  batch = [axis for axis in range(rank) if axis != numbers.index_vector_dim]
  scattered = [k for k in range(len(node.words(updates))) if k not in numbers.update_window_dims]
  for axis, other in zip(batch, scattered, strict=True):
    node.same(indices, axis, updates, other)
  pairs = zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
  for axis, other in pairs:
    node.same(value, axis, indices, other)
  inserted = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
  windowed = [axis for axis in range(len(node.words(value))) if axis not in inserted]
  window = [node.words(updates)[axis] for axis in numbers.update_window_dims]
  node.at_most(window, [node.words(value)[axis] for axis in windowed])
  attributes = {
    "scatter_dimension_numbers": numbers,
    "indices_are_sorted": node.node.attr["indices_are_sorted"].b,
  }
  region = node.region("update_computation")
  operands = [value, indices, updates]
  return [node.op("scatter", operands, dtype, node.result(), attributes, [region])]


@rule("XlaDynamicSlice")
def _dynamic_slice(node: Operation) -> list[Value]:
  dtype, integers = node.dtype("T"), node.dtype("Tindices")
  value, lengths = node.data(0, dtype), node.sizes(2)
  known, rank = node.lengths(2), len(node.words(value))
  node.at_most(known, node.words(value), is_checked=True)
  if all(isinstance(each, int) for each in known):
    attributes = {"slice_sizes": known}
    operands = [value, *_entries(node, node.scalar(1, integers), rank, integers)]
    return [node.op("dynamic_slice", operands, dtype, node.result(), attributes)]
  start = node.data(1, integers)  # data, because a real_dynamic_slice of numbers does not move them
  lengths = node.op("convert", [lengths], integers, (rank,))
  limit = node.op("add", [start, lengths], integers, (rank,))
  ones = node.literal(np.ones(rank, integers))
  return [node.op("real_dynamic_slice", [value, start, limit, ones], dtype, node.result())]


@rule("XlaDynamicUpdateSlice")
def _dynamic_update_slice(node: Operation) -> list[Value]:
  dtype, integers = node.dtype("T"), node.dtype("Tindices")
  value, update, start = node.data(0, dtype), node.data(1, dtype), node.scalar(2, integers)
  rank = len(node.words(value))
  node.at_most(node.words(update), node.words(value))
  operands = [value, update, *_entries(node, start, rank, integers)]
  return [node.op("dynamic_update_slice", operands, dtype, node.result())]


def _entries(node: Operation, vector: Value, count: int, dtype: Any) -> list[Value]:
  """The entries of a vector, as scalars."""
  entries = []
  for axis in range(count):
    bounds = {"start_indices": [axis], "limit_indices": [axis + 1], "strides": [1]}
    entry = node.op("slice", [vector], dtype, (1,), bounds)
    entries.append(node.op("reshape", [entry], dtype, ()))
  return entries


@rule("XlaReduce", "XlaVariadicReduce", "XlaVariadicReduceV2")
def _reduce(node: Operation) -> list[Value]:
  count = len(node.inputs) // 2
  dtypes = node.dtypes("T") or [node.dtype("T")] * count
  dimensions = list(node.node.attr["dimensions_to_reduce"].list.i)
  arrays: list[Value] = []
  for index, dtype in enumerate(dtypes):
    arrays.append(_array(node, index, dtype, arrays[0] if arrays else None))
  node.same_shape([array for array in arrays if array.owner is None])
  initial = [node.scalar(count + index, dtype) for index, dtype in enumerate(dtypes)]
  results = [(dtype, node.result(index)) for index, dtype in enumerate(dtypes)]
  attributes = {"dimensions": dimensions}
  return node.ops("reduce", [*arrays, *initial], results, attributes, [node.region("reducer")])


def _array(node: Operation, index: int, dtype: Any, first: Value | None) -> Value:
  """An input; one that counts, such as that of an argmax, as the op that does so."""
  dimension = node.iota_dimension(index) if first is not None else None
  if first is None or dimension is None:
    return node.data(index, dtype)
  return node.iota(first, dtype, dimension)


@rule("XlaReduceWindow")
def _reduce_window(node: Operation) -> list[Value]:
  dtype = node.dtype("T")
  operands = [node.data(0, dtype), node.scalar(1, dtype), *map(node.sizes, range(2, 7))]
  attributes = {
    "call_target_name": "stablehlo.dynamic_reduce_window",
    "called_computations": [node.callee(node.region("computation"))],
  }
  return [node.op("custom_call", operands, dtype, node.result(), attributes)]


@rule("XlaSelectAndScatter")
def _select_and_scatter(node: Operation) -> list[Value]:
  dtype = node.dtype("T")
  value, source, initial = node.data(0, dtype), node.data(4, dtype), node.scalar(5, dtype)
  window, strides, padding = (node.numbers(index) for index in (1, 2, 3))
  pairs = np.array(padding).reshape(-1, 2)
  for axis, (size, stride, around) in enumerate(zip(window, strides, pairs, strict=True)):
    if size == stride == 1 and not around.any():
      node.same(value, axis, source, axis)
    elif not isinstance(node.words(value)[axis], int):
      node.refuse("the size of an axis that its window moves along is not in the graph")
  attributes = {"window_dimensions": window, "window_strides": strides, "padding": pairs}
  blocks = [node.region("select"), node.region("scatter")]
  operands = [value, source, initial]
  return [node.op("select_and_scatter", operands, dtype, node.result(), attributes, blocks)]


@rule("XlaVariadicSort")
def _variadic_sort(node: Operation) -> list[Value]:
  dtypes = node.dtypes("T")
  [dimension] = node.numbers(len(dtypes))
  return _sorted(node, dtypes, dimension, node.node.attr["is_stable"].b, node.region("comparator"))


@rule("XlaSort")
def _sort(node: Operation) -> list[Value]:
  dtypes = [node.dtype("T")]
  return _sorted(node, dtypes, len(node.result()) - 1, False, _by_first(dtypes))


@rule("XlaKeyValueSort")
def _key_value_sort(node: Operation) -> list[Value]:
  dtypes = [node.dtype("K"), node.dtype("V")]
  return _sorted(node, dtypes, len(node.result()) - 1, False, _by_first(dtypes))


def _sorted(
  node: Operation, dtypes: list[Any], dimension: int, is_stable: bool, comparator: Block
) -> list[Value]:
  operands = [node.data(index, dtype) for index, dtype in enumerate(dtypes)]
  node.same_shape(operands)
  # The outputs of XlaKeyValueSort are two groups of one each, of equal shapes.
  results = [(dtype, node.result()) for dtype in dtypes]
  attributes = {"dimension": dimension, "is_stable": is_stable}
  return node.ops("sort", operands, results, attributes, [comparator])


def _by_first(dtypes: list[Any]) -> Block:
  """The comparator by the first operand."""
  kinds = [scalars.scalar(dtype) for dtype in dtypes for _ in range(2)]
  region = Block([Value(kind, kind.text, None, index) for index, kind in enumerate(kinds)])
  kind = scalars.scalar(bool)
  less = Op("stablehlo", "compare", region.arguments[:2], [], {}, [], "XlaSort")
  less.attributes |= {"comparison_direction": "LT", "compare_type": "TOTALORDER"}
  less.results = [Value(kind, kind.text, less)]
  region.ops, region.results = [less], less.results
  return region


@rule("XlaRngBitGenerator")
def _rng_bit_generator(node: Operation) -> list[Value]:
  [number] = node.numbers(0)
  # tf.random.Algorithm, whose AUTO_SELECT XLA takes as its own default.
  names = {1: "PHILOX", 2: "THREE_FRY", 3: "DEFAULT"}
  attributes = {
    "call_target_name": "stablehlo.dynamic_rng_bit_generator",
    "rng_algorithm": names.get(number) or node.refuse(f"its algorithm is {number}"),
  }
  state, dtype = node.data(1, np.uint64), node.dtype("dtype")
  lengths = node.sizes(2)
  rank = math.prod(lengths.shape)  # type: ignore[arg-type]
  results = [(np.uint64, node.shape_of(state)), (dtype, (None,) * rank)]
  return node.ops("custom_call", [state, lengths], results, attributes)


@rule("XlaOptimizationBarrier")
def _optimization_barrier(node: Operation) -> list[Value]:
  dtypes = node.dtypes("T")
  operands = [node.data(index, dtype) for index, dtype in enumerate(dtypes)]
  results = [(dtype, node.shape_of(each)) for dtype, each in zip(dtypes, operands, strict=True)]
  return node.ops("optimization_barrier", operands, results)


@rule("XlaReducePrecision")
def _reduce_precision(node: Operation) -> list[Value]:
  dtype = node.dtype("T")
  attributes = {name: node.node.attr[name].i for name in ("exponent_bits", "mantissa_bits")}
  value = node.data(0, dtype)
  return [node.op("reduce_precision", [value], dtype, node.shape_of(value), attributes)]
