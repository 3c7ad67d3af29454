"""Replacements for ops that tf2onnx or ONNX Runtime lacks, or computes differently, by TensorFlow
ops that both compute correctly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import convolutions, integers, masks, registry, replay
from ..export.registry import replaces, replaces_each
from ..export.replay import Replacement
from . import bits, extremes, selects, special, sums

_SMALL = (tf.int8, tf.int16, tf.uint8, tf.uint16)
_Wider = Mapping[tf.DType, tf.DType]

# A cast to a narrower integer keeps the lower bits, in ONNX and TensorFlow. So sums and products
# may wrap in the wider dtype.
_PRODUCTS: dict[tf.DType, tf.DType] = dict.fromkeys(_SMALL, tf.int32) | {
  tf.uint32: tf.int64,
  tf.uint64: tf.int64,
}
_ORDERED: _Wider = {tf.int16: tf.int32, tf.uint16: tf.int32, tf.uint32: tf.int64}
_CARRIED: dict[tf.DType, tf.DType] = {tf.int16: tf.int32, tf.uint16: tf.int32, tf.uint64: tf.int64}
_PADDED: _Wider = _PRODUCTS | {tf.bool: tf.int32, tf.float16: tf.float32}

# ONNX Runtime 1.31 has no CPU kernel of these ops for these dtypes.
_WIDENED: dict[str, _Wider] = {
  **dict.fromkeys(("Cumsum", "Cumprod", "Einsum"), _PRODUCTS),
  **dict.fromkeys(("ArgMax", "ArgMin", "TopKV2"), _ORDERED),
  "UnsortedSegmentProd": {tf.float16: tf.float32},
  "Range": {
    tf.uint8: tf.int32,
    tf.int8: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
    tf.float16: tf.float32,
  },
  "SelectV2": {tf.bool: tf.uint8, tf.uint32: tf.int64}
  | _CARRIED,  # of uint32 from ONNX Runtime 1.31 on
  **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _PADDED),
}


def _recast(op: Any, wide: tf.DType, narrow: tf.DType, *operands: tf.Tensor) -> list[tf.Tensor]:
  """The same op on operands cast to a wider dtype."""
  inputs = [tf.cast(x, wide) if x.dtype == narrow else x for x in operands]
  # If Select selects bools, its condition must still be a bool.
  if op.type == "SelectV2":
    inputs[0] = operands[0]
  results = replay.again(op, inputs, {narrow: wide})
  return [tf.cast(y, x.dtype) for x, y in zip(op.outputs, results, strict=True)]


def same(op: Any, *operands: tf.Tensor) -> list[tf.Tensor]:
  """The op unchanged."""
  return replay.again(op, operands)


def _widened(wider: _Wider, op: Any, *operands: tf.Tensor) -> list[tf.Tensor]:
  narrow = op.get_attr(next(name for name in ("T", "Tidx", "dtype") if name in op.node_def.attr))
  return _recast(op, wider[narrow], narrow, *operands) if narrow in wider else same(op, *operands)


def _only_for(dtypes: tuple[tf.DType, ...], replacement: Replacement) -> Replacement:
  """Uses the replacement for these dtypes of the first operand, and the op itself for others."""

  def chosen(op: Any, *operands: tf.Tensor) -> list[tf.Tensor]:
    return list((replacement if operands[0].dtype in dtypes else same)(op, *operands))

  return chosen


_F64 = (tf.float64,)
_COMPARED = (tf.int16, tf.uint16, tf.uint32, tf.int64, tf.uint64)
_UNROLLED = 16  # terms of a sum, or factors of a product


@replaces("Fill", on="onnx", because="tf2onnx 1.17: of constant values only")
def _fill(op: Any, dims: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
  """tf2onnx takes constant values only."""
  del op
  return [tf.broadcast_to(value, dims)]


_COPIES = 16  # of a last axis, of which ONNX Runtime 1.32 joins copies faster


@replaces("BroadcastTo", on="onnx", because="ONNX Runtime 1.32: repeats single elements slowly")
def _broadcast(op: Any, x: tf.Tensor, shape: tf.Tensor) -> list[tf.Tensor]:
  """[..., 1] -> [..., n] of a few n: a Concat takes a tenth of the time of Expand."""
  before, after = (y.shape.as_list() if y.shape.rank else [] for y in (x, op.outputs[0]))
  few = len(before) == len(after) > 1 and before[-1] == 1 and 1 < (after[-1] or 0) <= _COPIES
  if not few or x.shape.num_elements() == 1:
    return same(op, x, shape)
  copies = tf.concat([x] * after[-1], -1)
  are_equal = None not in before and before[:-1] == after[:-1]
  return [copies if are_equal else tf.broadcast_to(copies, shape)]


@replaces("Reshape", on="onnx", because="ONNX: a size of 0 is that of the operand")
def _reshape(op: Any, x: tf.Tensor, shape: tf.Tensor) -> list[tf.Tensor]:
  """Makes an empty tensor if a size is a constant 0: ONNX's Reshape reads 0 as the size of the
  operand."""
  known = op.outputs[0].shape
  if known.rank is None or 0 not in known.as_list():
    return same(op, x, shape)
  return [
    tf.zeros(known, x.dtype)
    if known.is_fully_defined()
    else tf.broadcast_to(tf.zeros([], x.dtype), shape)
  ]


@replaces(
  "ScatterNd",
  on="onnx",
  because="tf2onnx 1.17: one of the updates of a place stays, and not their sum",
)
def _scatter_nd(
  op: Any, indices: tf.Tensor, updates: tf.Tensor, shape: tf.Tensor
) -> list[tf.Tensor]:
  """Adds updates at equal indices; tf2onnx keeps one of them."""
  return _scattered(
    "TensorScatterAdd", op, tf.broadcast_to(tf.constant(0, updates.dtype), shape), indices, updates
  )


@replaces(
  "TensorScatterUpdate",
  "TensorScatterAdd",
  "TensorScatterSub",
  "TensorScatterMax",
  "TensorScatterMin",
  on="onnx",
  because="ONNX: -1 is the last row; ONNX Runtime 1.31: fails of other rows outside, combines no "
  "float16, loses NaN",
)
def _scatter(op: Any, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> list[tf.Tensor]:
  """Subtraction adds 0 - updates, because ONNX Runtime has no Neg of unsigned integers."""
  if op.type == "TensorScatterSub":
    return _scattered("TensorScatterAdd", op, x, indices, tf.constant(0, x.dtype) - updates)
  (result,) = _scattered(op.type, op, x, indices, updates)
  if x.dtype.is_floating and op.type in ("TensorScatterMax", "TensorScatterMin"):
    # ONNX Runtime loses NaN; the lowering rule handles a NaN in the updates
    result = tf.where(tf.not_equal(x, x), x, result)
  return [result]


def _scattered(
  kind: str, op: Any, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor
) -> list[tf.Tensor]:
  """Out-of-bounds rows go to an extra row, which is cut off: ONNX reads -1 as the last row, ONNX
  Runtime fails at others."""
  shape, dtype = tf.shape(x, indices.dtype), x.dtype
  ignored = op.get_attr("bad_indices_policy") == b"IGNORE"
  if ignored:
    depth = indices.shape[-1]
    inside = (indices >= tf.constant(0, indices.dtype)) & (indices < shape[:depth])
    spare = tf.concat([shape[:1], tf.zeros([depth - 1], indices.dtype)], 0)
    indices = tf.where(tf.reduce_all(inside, -1, keepdims=True), indices, spare)
    x = tf.concat([x, tf.zeros(tf.concat([tf.constant([1], shape.dtype), shape[1:]], 0), dtype)], 0)
  wide = tf.float32 if dtype == tf.float16 else dtype  # ONNX Runtime cannot combine float16
  result = getattr(tf.raw_ops, kind)(
    tensor=tf.cast(x, wide), indices=indices, updates=tf.cast(updates, wide)
  )
  return [tf.cast(result[: shape[0]] if ignored else result, dtype)]


@replaces(
  "MatrixBandPart",
  on="onnx",
  because="tf2onnx 1.17: a product with a mask, which makes NaN of infinities",
)
def _band(op: Any, x: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor) -> list[tf.Tensor]:
  """Selects by a mask; tf2onnx multiplies by one, which makes NaN of infinities."""
  del op
  mask = masks.band(x, lower, upper, tf.int64)
  return [_where(mask, x, tf.zeros_like(x))]


def _where(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  wide = _WIDENED["SelectV2"].get(x.dtype, x.dtype)
  return tf.cast(tf.where(condition, tf.cast(x, wide), tf.cast(y, wide)), x.dtype)


@replaces("MatrixSetDiagV3", on="onnx", because="tf2onnx 1.17: a loop that ONNX's checker refuses")
def _set_diagonal(op: Any, x: tf.Tensor, diagonal: tf.Tensor, k: tf.Tensor) -> list[tf.Tensor]:
  """Selects by a mask; ONNX's checker refuses tf2onnx's loop."""
  shift = tf.get_static_value(k)
  if shift is None or np.any(shift):
    return same(op, x, diagonal, k)
  sizes = tf.shape(x, tf.int64)
  rows, columns = tf.expand_dims(tf.range(sizes[-2]), 1), tf.expand_dims(tf.range(sizes[-1]), 0)
  positions = tf.minimum(
    tf.range(sizes[-1]), tf.minimum(sizes[-2], sizes[-1]) - tf.constant(1, tf.int64)
  )
  return [
    _where(tf.equal(rows, columns), tf.expand_dims(tf.gather(diagonal, positions, axis=-1), -2), x)
  ]


@replaces(
  "Sum",
  on="onnx",
  because="ONNX Runtime 1.31: adds integers in float64; 1.32: adds few short rows slowly",
)
def _sum(op: Any, x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
  """Adds the halves of the words separately: ONNX Runtime adds integers in float64, and
  saturates."""
  reduce = functools.partial(tf.reduce_sum, axis=axes, keepdims=op.get_attr("keep_dims"))
  if not x.dtype.is_integer:
    return sums.of_rows(op, x, axes)
  if (count := sums.of_flags(x, reduce)) is not None:
    return [count]
  wide = tf.cast(x, tf.int64)
  known = tf.get_static_value(axes)
  if (
    known is not None
    and known.size == 1
    and 0 < (size := x.shape[axis := int(known.item())] or 0) <= _UNROLLED
  ):
    total = functools.reduce(tf.add, tf.split(wide, size, axis))
    return [tf.cast(total if op.get_attr("keep_dims") else tf.squeeze(total, axis), x.dtype)]
  if x.dtype.size < 8:
    # As exact, and a quarter of the time of int64.
    return [tf.cast(tf.cast(reduce(tf.cast(x, tf.float64)), tf.int64), x.dtype)]
  low = reduce(wide & tf.constant(2**32 - 1, tf.int64))
  (upper,) = bits.right_shift(op, wide, tf.constant(32, tf.int64))
  return [tf.cast(low + reduce(upper) * tf.constant(2**32, tf.int64), x.dtype)]


@replaces("Prod", on="onnx", because="ONNX Runtime 1.31: multiplies integers in float64")
def _product(op: Any, x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
  """The last element of the prefix products; for the reason see `_sum`."""
  if not x.dtype.is_integer:
    return same(op, x, axes)
  result = tf.cast(x, _PRODUCTS.get(x.dtype, x.dtype))
  reduced = sorted(int(axis) % x.shape.rank for axis in np.atleast_1d(tf.get_static_value(axes)))
  for axis in reduced:
    if 0 < (size := result.shape[axis] or 0) <= _UNROLLED:
      result = functools.reduce(tf.multiply, tf.split(result, size, axis))
    else:
      padding = [[int(i == axis), 0] for i in range(x.shape.rank)]  # an empty product is 1
      result = tf.math.cumprod(
        tf.pad(result, padding, constant_values=tf.constant(1, result.dtype)), axis
      )
      result = tf.gather(result, [tf.shape(result)[axis] - 1], axis=axis)
  return [tf.cast(result if op.get_attr("keep_dims") else tf.squeeze(result, reduced), x.dtype)]


@replaces(
  "Max",
  "Min",
  on="onnx",
  because="ONNX Runtime 1.31: loses NaN, and compares 64-bit integers wrongly",
)
def _extreme(op: Any, x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
  """Keeps NaN, which ONNX Runtime loses. The identity of a wider dtype does not fit the narrower
  one."""
  if x.dtype.is_floating:
    return extremes.reduced(op, x, axes)
  if x.dtype.size == 8:
    return [_extreme_of_words(op, x, axes)]
  wide = tf.cast(x, tf.int64 if x.dtype == tf.uint32 else tf.int32)
  shift = tf.constant(2**31 if x.dtype == tf.uint32 else 0, wide.dtype)
  result = _reduced(op, tf.cast(wide - shift, tf.int32), axes, op.get_attr("keep_dims"))
  if x.dtype.size < 4:
    limit, bound = (_larger, x.dtype.min) if op.type == "Max" else (_smaller, x.dtype.max)
    result = limit(result, tf.constant(bound, tf.int32))
  return [tf.cast(tf.cast(result, wide.dtype) + shift, x.dtype)]


def _extreme_of_words(op: Any, x: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
  """The extreme of 64-bit integers, by their upper and then their lower halves: ONNX Runtime
  compares them wrongly."""
  flip = tf.constant(-(2**63) if x.dtype == tf.uint64 else 0, tf.int64)
  middle, width = tf.constant(2**31, tf.int64), tf.constant(32, tf.int64)
  wide = tf.cast(x, tf.int64) ^ flip
  upper = tf.cast(bits.right_shift(op, wide, width)[0], tf.int32)
  lower = tf.cast((wide & tf.constant(2**32 - 1, tf.int64)) - middle, tf.int32)
  best = _reduced(op, upper, axes, keepdims=True)
  worst = tf.constant(tf.int32.min if op.type == "Max" else tf.int32.max, tf.int32)
  lower = tf.where(tf.equal(upper, best), lower, worst)
  keepdims = op.get_attr("keep_dims")
  low = tf.cast(_reduced(op, lower, axes, keepdims), tf.int64) + middle
  high = tf.cast(_reduced(op, upper, axes, keepdims), tf.int64)
  return tf.cast((high * tf.constant(2**32, tf.int64) + low) ^ flip, x.dtype)


def _reduced(op: Any, x: tf.Tensor, axes: tf.Tensor, keepdims: bool) -> tf.Tensor:
  return (tf.reduce_max if op.type == "Max" else tf.reduce_min)(x, axes, keepdims=keepdims)


def _larger(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return _where(x < y, y, x)


def _smaller(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return _where(x < y, x, y)


@replaces(
  "Sign",
  on="onnx",
  because="ONNX Runtime 1.31: takes the sign of int64 from its lower half, and makes 0 of a NaN "
  "of float16",
)
def _sign(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """ONNX Runtime reads the sign of int64 from its lower half, and returns 0 for a float16 NaN."""
  if x.dtype == tf.float16:
    return [tf.cast(tf.sign(tf.cast(x, tf.float32)), x.dtype)]
  if x.dtype != tf.int64:
    return same(op, x)
  zero = tf.constant(0, x.dtype)
  return [tf.cast(x > zero, x.dtype) - tf.cast(x < zero, x.dtype)]


@replaces("Pow", on="onnx", because="ONNX Runtime 1.31: raises integers in float64")
def _power(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """Integer powers by repeated squaring; ONNX Runtime computes them in float64."""
  if not x.dtype.is_integer:
    return same(op, x, y)
  zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
  base, exponent = (tf.broadcast_to(tf.cast(z, tf.int64), tf.shape(x + y)) for z in (x, y))

  def step(result: tf.Tensor, base: tf.Tensor, exponent: tf.Tensor) -> tuple[tf.Tensor, ...]:
    odd = tf.equal(exponent & one, one)
    return tf.where(odd, result * base, result), base * base, bits.right_shift(op, exponent, one)[0]

  result, *_ = tf.while_loop(
    lambda _, __, rest: tf.reduce_any(rest > zero), step, (tf.ones_like(base), base, exponent)
  )
  return [tf.cast(result, x.dtype)]


@replaces(
  "MatMul",
  "BatchMatMulV2",
  "BatchMatMulV3",
  on="onnx",
  because="tf2onnx 1.17: transposes no integers; ONNX Runtime 1.31: multiplies no narrow ones",
)
@integers.of_8_bits(integers.product)
def _matmul(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """Transposes the operands first: tf2onnx refuses to transpose integers."""
  wide = {**dict.fromkeys(_SMALL, tf.int32)}.get(x.dtype, x.dtype)
  first, second = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
  x, y = tf.cast(x, wide), tf.cast(y, wide)
  x = tf.linalg.matrix_transpose(x) if op.get_attr(first) else x
  y = tf.linalg.matrix_transpose(y) if op.get_attr(second) else y
  return [tf.cast(tf.matmul(x, y), op.outputs[0].dtype)]


def _unsigned_top(op: Any, x: tf.Tensor, k: tf.Tensor) -> list[tf.Tensor]:
  """TopK of u64[...] as signed integers: flipping the upper bit keeps the order."""
  flip = tf.constant(-(2**63), tf.int64)
  values, indices = tf.math.top_k(
    tf.cast(x, tf.int64) ^ flip, k, sorted=True, index_type=op.outputs[1].dtype
  )
  return [tf.cast(values ^ flip, x.dtype), indices]


def _unsigned_argument(op: Any, x: tf.Tensor, axis: tf.Tensor) -> list[tf.Tensor]:
  """ArgMax and ArgMin of u64[...]; see `_unsigned_top`."""
  flipped = tf.cast(x, tf.int64) ^ tf.constant(-(2**63), tf.int64)
  return [
    (tf.argmax if op.type == "ArgMax" else tf.argmin)(
      flipped, axis, output_type=op.outputs[0].dtype
    )
  ]


@integers.of_8_bits(integers.convolution)
def _convolution(op: Any, image: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
  """tf2onnx counts groups by the sizes that TensorFlow infers, which infers none behind a Pad by
  numbers that are no constants. A Reshape says them again."""
  sizes = image.shape.as_list() if image.shape.rank else [None]
  is_grouped = None not in (sizes[-1], kernel.shape[-2]) and sizes[-1] != kernel.shape[-2]
  if is_grouped and (op.inputs[0].shape[-1] is None or _is_padded_by_sizes(image)):
    image = tf.reshape(image, tf.stack(replay.sizes_of(image)))
  return convolutions.convolution(op, image, kernel)


def _is_padded_by_sizes(image: tf.Tensor) -> bool:
  producer = image.op
  while producer.type == "Identity":
    producer = producer.inputs[0].op
  is_pad = producer.type in ("Pad", "PadV2", "MirrorPad")
  return is_pad and tf.get_static_value(producer.inputs[1]) is None


@replaces("IsInf", on="onnx", because="ONNX 18: of float32 and float64 only")
def _is_inf(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  del op
  return [tf.equal(tf.abs(x), tf.constant(float("inf"), x.dtype))]


def _select(op: Any, condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  if (known := selects.chosen(op, condition, x, y)) is not None:
    return [tf.identity(known)]
  if (guarded := extremes.selected(op, y)) is not None:
    return [guarded]
  simple = selects.without_branches(condition, x, y)
  return [simple] if simple is not None else _widened(_WIDENED["SelectV2"], op, condition, x, y)


@replaces("NotEqual", on="onnx", because="ONNX: what tf2onnx makes of it takes two nodes, or three")
def _unequal(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """x itself if y bool[] is False, as where JAX counts what is true."""
  is_flags = x.dtype == tf.bool and y.shape.rank == 0 and selects.known(y) is False
  return [tf.identity(x)] if is_flags else same(op, x, y)


def _or_unsigned(unsigned: Replacement, op: str) -> Callable[..., Any]:
  ordinary = functools.partial(_widened, _WIDENED[op])
  return lambda node, *operands: (unsigned if operands[0].dtype == tf.uint64 else ordinary)(
    node, *operands
  )


_replaces_each = functools.partial(replaces_each, on="onnx")
_replaces_each(
  {op: functools.partial(_widened, wider) for op, wider in _WIDENED.items()}
  | {"SelectV2": _select}
  | {"TopKV2": _or_unsigned(_unsigned_top, "TopKV2")}
  | {op: _or_unsigned(_unsigned_argument, op) for op in ("ArgMax", "ArgMin")},
  because="ONNX Runtime 1.31: no kernel for some narrow or unsigned dtypes",
)
_replaces_each(
  {
    "Maximum": _only_for(_COMPARED, lambda op, x, y: [_larger(x, y)]),
    "Minimum": _only_for(_COMPARED, lambda op, x, y: [_smaller(x, y)]),
  },
  because="ONNX Runtime 1.31: compares the lower halves of 64-bit integers as if they had signs, "
  "and uint32 likewise",
)
_replaces_each(
  {
    "Expm1": special.expm1,
    "Log1p": special.log1p,
    "Erfc": special.erfc,
    "Erfinv": special.erfinv,
    "Lgamma": special.lgamma,
    "Digamma": special.digamma,
  },
  because="tf2onnx 1.17: no handler",
)
_replaces_each(
  {
    op: _only_for(_F64, function)
    for op, function in {"Erf": special.erf, "Tan": special.tan}.items()
  },
  because="ONNX Runtime 1.31: no kernel for float64",
)
_replaces_each(
  {"Sinh": special.sinh, "Cosh": special.cosh},
  because="ONNX Runtime 1.31: no kernel for float64, and a slow one",
)
_replaces_each(
  dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), convolutions.input_gradient),
  because="tf2onnx 1.17: splits explicit padding into halves, and pads with negative numbers "
  "where windows do not fill the image",
)
_replaces_each(
  {
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution),
    "DepthwiseConv2dNative": convolutions.depthwise_convolution,
  },
  because="tf2onnx 1.17: refuses an unknown number of groups, or takes it for 1; "
  "ONNX Runtime 1.32: no kernel of int32",
)
_replaces_each(
  {
    **dict.fromkeys(
      ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), convolutions.filter_gradient
    ),
    "MaxPoolGrad": convolutions.max_pool_gradient,
    "DepthwiseConv2dNativeBackpropFilter": convolutions.depthwise_filter_gradient,
    "DepthwiseConv2dNativeBackpropInput": convolutions.depthwise_input_gradient,
  },
  because="tf2onnx 1.17: no handler",
)
_replaces_each(
  {"Cast": lambda op, x: [tf.cast(x, op.outputs[0].dtype)]},
  because="the operand may be held in another dtype: see `bfloat16`",
)

TABLE = registry.TABLES["onnx"]
