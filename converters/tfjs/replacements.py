"""Replacements for ops that TF.js 4.22 lacks on some backend, or computes differently there.

The table has every op of a graph, because dtypes change too (`dtypes`). An op is copied, composed
of other ops, or marked as refused; the exporter then lists all refused ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..export import angles, lists, registry, replay
from ..export.expansion import EXPANSIONS
from ..export.registry import MOVES, replaces, replaces_each
from ..export.replay import Replacement, with_shape
from ..export.scopes import own_name
from . import dtypes as ints
from . import floats, indexing
from .names import RUNS, SUPPORTED
from .rule import TOO_WIDE, guarded, held, is_wide, one, refused, same, strange


def _lacking(op: tf.Operation, *_: Any) -> list[tf.Tensor]:
  return refused(op, "")


@guarded
def _moved(op: tf.Operation, *operands: Any) -> Sequence[Any]:
  return same(op, *operands)


@guarded
def _of_plain_dtypes(op: tf.Operation, *operands: Any) -> Sequence[Any]:
  narrow = [
    x.dtype
    for x in op.inputs
    if x.dtype.is_integer
    and x.dtype != tf.int32
    and not (x.dtype in ints.WIDE and ints.is_exact(x))
  ]
  return refused(op, f"{op.type} of {narrow[0].name}") if narrow else same(op, *operands)


def _modular(op: tf.Operation, *operands: tf.Tensor) -> tf.Tensor:
  """For ops whose low bits are right whatever the upper bits of the operands are: wraps the
  result."""
  return (
    ints.wrapped(same(op, *operands)[0], op.outputs[0].dtype)
    if op.outputs[0].dtype.is_integer
    else same(op, *operands)[0]
  )


def _sum_of(op: tf.Operation, *terms: tf.Tensor) -> tf.Tensor:
  total, dtype = functools.reduce(tf.add, terms), op.outputs[0].dtype
  return ints.wrapped(total, dtype) if dtype.is_integer else total


def _product(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  dtype = op.outputs[0].dtype
  if not dtype.is_integer or all(map(ints.is_size, op.inputs)):
    return tf.multiply(x, y)
  return ints.wrapped(ints.multiply(x, y, dtype), dtype)


def _ordered(result_too: bool) -> Replacement:
  """An op that compares. It takes uint32 with a flipped sign bit."""

  @guarded
  def replacement(op: tf.Operation, *operands: tf.Tensor) -> Sequence[Any]:
    dtype = op.inputs[0].dtype
    if is_wide(op):
      return refused(op, TOO_WIDE)
    turned = [
      ints.in_order(x, dtype) if y.dtype == dtype else x
      for x, y in zip(operands, op.inputs, strict=True)
    ]
    first_result, *others = same(op, *turned)
    return [ints.in_order(first_result, dtype) if result_too else first_result, *others]

  return replacement


@guarded
def _range(op: tf.Operation, *operands: tf.Tensor) -> Sequence[Any]:
  dtype = op.outputs[0].dtype
  if dtype == tf.uint32:
    return refused(op, f"{op.type} of {dtype.name}")
  return (
    refused(op, TOO_WIDE)
    if dtype in ints.WIDE and not ints.is_exact(op.outputs[0])
    else same(op, *operands)
  )


def _extreme(of_floats: Callable[..., tf.Tensor]) -> Replacement:
  on_integers = _ordered(True)
  return lambda op, *operands: (
    [of_floats(*operands)] if held(op.inputs[0].dtype).is_floating else on_integers(op, *operands)
  )


def _minimum(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[Any]:
  if ints.is_bounded_index(op):
    return [ints.bounded_index(x, y)]
  return _extreme(floats.minimum)(op, x, y)


def _reduction(empty: float, modular: bool) -> Replacement:
  """A reduction of no elements returns `empty`; the wasm kernels return uninitialised memory."""
  on_integers: Replacement = one(_modular) if modular else _ordered(True)

  @guarded
  def replacement(op: tf.Operation, x: tf.Tensor, axes: tf.Tensor) -> Sequence[Any]:
    shape = op.inputs[0].shape
    if shape.rank and 0 in shape.as_list() and op.outputs[0].shape.is_fully_defined():
      dtype = op.outputs[0].dtype
      value = max(min(empty, dtype.max), dtype.min) if dtype.is_integer else empty
      return (
        [tf.fill(op.outputs[0].shape, tf.constant(value, dtype))]
        if dtype in (tf.float32, tf.int32)
        else refused(op, "of nothing")
      )
    return on_integers(op, x, axes) if op.inputs[0].dtype.is_integer else same(op, x, axes)

  return replacement


def _matrix_product(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[Any]:
  """MatMul for floats; a sum of products for integers, which the wasm kernel lacks."""
  shape = op.outputs[0].shape
  if op.inputs[0].shape[-2 if _turned(op, 0) else -1] == 0 and shape.is_fully_defined():
    return [tf.zeros(shape, held(op.outputs[0].dtype))]
  if held(op.inputs[0].dtype).is_floating:
    return same(op, x, y)
  last_two = [*range(x.shape.rank - 2), x.shape.rank - 1, x.shape.rank - 2]
  x = tf.transpose(x, last_two) if _turned(op, 0) else x
  y = y if _turned(op, 1) else tf.transpose(y, last_two)
  dtype = op.outputs[0].dtype
  products = ints.multiply(tf.expand_dims(x, -2), tf.expand_dims(y, -3), dtype)
  return [ints.wrapped(tf.reduce_sum(products, -1), dtype)]


def _turned(op: tf.Operation, i: int) -> bool:
  return op.get_attr(
    f"{'transpose' if op.type == 'MatMul' else 'adj'}_{'ab'[i] if op.type == 'MatMul' else 'xy'[i]}"
  )


def _division(part: Callable[..., tf.Tensor], of_floats: Callable[..., tf.Tensor]) -> Replacement:
  @guarded
  def replacement(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[Any]:
    dtype = op.inputs[0].dtype
    if dtype.is_floating:
      return [of_floats(x, y)]
    return refused(op, TOO_WIDE) if is_wide(op) else [ints.wrapped(part(x, y, dtype), dtype)]

  return replacement


def _truncate_div(x: tf.Tensor, y: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  quotient, rest = ints.divide(x, y, dtype)
  return tf.where(_short(x, y, rest), quotient + 1, quotient) if dtype.min else quotient


def _truncate_mod(x: tf.Tensor, y: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  rest = ints.divide(x, y, dtype)[1]
  return tf.where(_short(x, y, rest), rest - y, rest) if dtype.min else rest


def _short(x: tf.Tensor, y: tf.Tensor, rest: tf.Tensor) -> tf.Tensor:
  """Where truncation towards zero and rounding down differ, by one."""
  return tf.logical_and(tf.not_equal(rest, 0), tf.not_equal(x < 0, y < 0))


def _constant(op: tf.Operation) -> list[tf.Tensor]:
  # the message of an assertion, which is dropped; other string ops are refused
  if op.outputs[0].dtype == tf.string:
    return [tf.zeros([], tf.int32)]
  value = tf.get_static_value(op.outputs[0])
  if (dtype := strange(op)) is not None:
    return refused(op, f"{op.type} of {dtype.name}")
  return [tf.constant(value.astype(held(op.outputs[0].dtype).as_numpy_dtype), name=own_name(op))]


@guarded
def _cast(op: tf.Operation, x: tf.Tensor) -> Sequence[Any]:
  """Casts between held dtypes. The wasm kernel casts 2 to a bool of value 2."""
  source, dtype = op.inputs[0].dtype, op.outputs[0].dtype
  if dtype == tf.bool:
    return [x if source == tf.bool else tf.not_equal(x, tf.zeros([], x.dtype))]
  if source == tf.bool:
    return [tf.cast(x, held(dtype))]
  if source.is_integer and dtype.is_integer:
    fits = source not in ints.WIDE and source.min >= dtype.min and source.max <= dtype.max
    return [x if fits else ints.wrapped(x, dtype)]
  if source.is_integer:
    return refused(op, TOO_WIDE) if is_wide(op) else [ints.to_float(x, source)]
  if dtype.is_integer:
    if dtype in ints.WIDE:
      return refused(op, TOO_WIDE)
    whole = tf.cast(tf.where(x < 2.0**31, x, x - 2.0**32) if dtype == tf.uint32 else x, tf.int32)
    return [ints.wrapped(whole, dtype)]
  return [x]


@guarded
def _bitcast(op: tf.Operation, x: tf.Tensor) -> Sequence[Any]:
  source, dtype = op.inputs[0].dtype, op.outputs[0].dtype
  if source.size == dtype.size and source.is_integer and dtype.is_integer:
    return [ints.wrapped(x, dtype)]
  if source == tf.uint32 and dtype == tf.uint64 and ints.are_words_enough(op):
    return [x]
  if source == tf.float32 and dtype in (tf.int32, tf.uint32):
    return [ints.bits_of_float(x)]
  if dtype == tf.float32 and source in (tf.int32, tf.uint32):
    return [ints.float_of_bits(x)]
  return refused(op, f"the bits of {source.name} as {dtype.name}")


def _invert(op: tf.Operation, x: tf.Tensor) -> tf.Tensor:
  return ints.wrapped(-1 - x, op.outputs[0].dtype)


def _left_shift(op: tf.Operation, x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  return ints.wrapped(ints.shift_left(x, count), op.outputs[0].dtype)


@guarded
def _right_shift(op: tf.Operation, x: tf.Tensor, count: tf.Tensor) -> Sequence[Any]:
  dtype = op.inputs[0].dtype
  if is_wide(op):
    return refused(op, TOO_WIDE)
  return [ints.shift_right(x, tf.minimum(count, 31), dtype == tf.uint32)]


def _convolution(op: tf.Operation, *operands: tf.Tensor) -> Sequence[Any]:
  if not all(
    held(x.dtype).is_floating
    for x in op.inputs
    if x.dtype != tf.int32 or op.type != "Conv2DBackpropInput"
  ):
    return refused(op, "a convolution of integers")
  if max(op.get_attr("strides")) > 1 and max(op.get_attr("dilations")) > 1:
    return refused(op, "strides and dilations at once")
  x, kernel = operands[:2]
  depth = x.shape[-1]
  if op.type not in ("Conv2D", "Conv3D") or depth == kernel.shape[-2]:
    return same(op, *operands)
  if depth is None or kernel.shape[-2] is None:
    return refused(op, "groups of a number that is not known")
  groups = depth // kernel.shape[-2]  # TF.js has none
  pairs = zip(tf.split(x, groups, -1), tf.split(kernel, groups, -1), strict=True)
  return [tf.concat([same(op, *pair)[0] for pair in pairs], -1)]


@replaces("MaxPool3D", on="tfjs", because="TF.js 4.22: wasm takes 2**-126 for the least number")
@guarded
def _max_pool(op: tf.Operation, x: tf.Tensor) -> Sequence[Any]:
  """x f32[n,d,h,w,c] -> f32[n,d',h',w',c], first along h and w, then along d."""
  window, strides, padding = (
    op.get_attr("ksize"),
    op.get_attr("strides"),
    op.get_attr("padding").decode(),
  )
  if op.get_attr("data_format") != b"NDHWC":
    return refused(op, "channels that are not last")
  n, d, _, _, c = tf.unstack(tf.shape(x))
  planes = tf.nn.max_pool2d(
    tf.reshape(x, tf.concat([[n * d], tf.shape(x)[2:]], 0)), window[2:4], strides[2:4], padding
  )
  _, h, w, _ = tf.unstack(tf.shape(planes))
  columns = tf.nn.max_pool2d(
    tf.reshape(planes, [n, d, h * w, c]), [window[1], 1], [strides[1], 1], padding
  )
  return [with_shape(tf.reshape(columns, [n, -1, h, w, c]), op.outputs[0].shape)]


def _clip(op: tf.Operation, x: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
  if held(op.inputs[0].dtype).is_floating:
    return floats.minimum(floats.maximum(x, low), high)
  return tf.minimum(tf.maximum(x, low), high)


def _on_floats(
  function: Callable[..., tf.Tensor], on_integers: Callable[..., tf.Tensor] | None = None
) -> Replacement:
  """Applies to floats. Integers use `on_integers`, or keep the op: wasm's Abs and Neg compute them
  in float32."""

  @guarded
  def replacement(op: tf.Operation, *operands: tf.Tensor) -> Sequence[Any]:
    if held(op.inputs[0].dtype).is_floating:
      return [function(*operands)]
    return (
      [ints.wrapped(on_integers(*operands), op.outputs[0].dtype)]
      if on_integers
      else _of_plain_dtypes(op, *operands)
    )

  return replacement


@guarded
def _sign(op: tf.Operation, x: tf.Tensor) -> Sequence[Any]:
  if held(op.inputs[0].dtype).is_floating:
    return [floats.sign(x)]
  return refused(op, TOO_WIDE) if is_wide(op) else same(op, x)


_replaces_each = functools.partial(replaces_each, on="tfjs")
_replaces_each(
  {"Const": _constant, "Cast": _cast},
  because="TF.js 4.22: has float32, int32 and bool; wasm makes 2 of a bool from 2",
)
_replaces_each(
  dict.fromkeys(("Add", "AddV2", "Sub", "Cumsum"), one(_modular))
  | {"AddN": one(_sum_of), "Mul": one(_product), "Square": one(lambda op, x: _product(op, x, x))}
  | {
    "Sum": _reduction(0, True),
    "Prod": _reduction(1, True),
    "Max": _reduction(-math.inf, False),
    "Min": _reduction(math.inf, False),
  }
  | dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2"), guarded(_matrix_product)),
  because="TF.js 4.22: does not wrap integers as their dtypes do, multiplies them in float64, and "
  "wasm reduces nothing to anything",
)
_replaces_each(
  dict.fromkeys(
    ("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual", "ArgMax", "ArgMin"),
    _ordered(False),
  )
  | {"TopKV2": _ordered(True), "Range": _range},
  because="TF.js 4.22: has no uint32, and numbers of 64 bits only where they fit in 32",
)
_replaces_each(
  {
    "Maximum": guarded(_extreme(floats.maximum)),
    "Minimum": guarded(_minimum),
    "ClipByValue": one(_clip),
  }
  | {"Relu6": one(lambda op, x: _clip(op, x, tf.constant(0, x.dtype), tf.constant(6, x.dtype)))},
  because="TF.js 4.22: wasm takes the number where one operand is NaN",
)
_replaces_each(
  {
    "Abs": _on_floats(tf.abs, lambda x: tf.where(x < 0, 0 - x, x)),
    "Neg": _on_floats(tf.negative, lambda x: 0 - x),
    "FloorDiv": _division(lambda *of: ints.divide(*of)[0], lambda x, y: tf.floor(x / y)),
    "FloorMod": _division(lambda *of: ints.divide(*of)[1], tf.math.floormod),
    "TruncateDiv": _division(_truncate_div, lambda x, y: x / y),
    "TruncateMod": _division(_truncate_mod, floats.truncate_mod),
  },
  because="TF.js 4.22: wasm computes integers in float32, and stops at a remainder of zero",
)
_replaces_each(
  {
    "Bitcast": _bitcast,
    "BitwiseAnd": one(lambda op, x, y: ints.bitwise_and(x, y)),
    "BitwiseOr": one(lambda op, x, y: ints.bitwise_or(x, y)),
    "BitwiseXor": one(lambda op, x, y: ints.exclusive_or(x, y)),
    "Invert": one(_invert),
    "LeftShift": one(_left_shift),
    "RightShift": _right_shift,
  },
  because="TF.js 4.22: no backend has it in a graph model",
)
_replaces_each(
  {
    "ScatterNd": one(indexing.summed_rows),
    "TensorScatterAdd": indexing.scatter(tf.add),
    "TensorScatterSub": indexing.scatter(tf.subtract),
    "TensorScatterUpdate": one(indexing.scattered_rows),
  },
  because="TF.js 4.22: cpu stops at a row outside and writes into the operand, wasm writes past "
  "the tensor",
)
_replaces_each(
  {
    "MatrixSetDiagV3": indexing.diagonal(indexing.with_diagonal),
    "MatrixDiagV3": indexing.diagonal(indexing.diagonal_matrix),
  },
  because="TF.js 4.22: no such op",
)
_replaces_each(
  dict.fromkeys(
    ("Conv2D", "DepthwiseConv2dNative", "Conv3D", "Conv2DBackpropInput"), guarded(_convolution)
  ),
  because="TF.js 4.22: no groups",
)
_replaces_each(
  {"GatherV2": indexing.gather},
  because="TF.js 4.22: with batch dimensions wasm reads other rows, or beyond its memory",
)
_replaces_each(
  {
    "ReverseV2": indexing.moved_as_int32,
    "StridedSlice": indexing.moved_as_int32,
    "SelectV2": indexing.select,
  },
  because="TF.js 4.22: wasm takes a bool for four bytes",
)
_replaces_each(
  {
    "TensorListReserve": indexing.reserved_list,
    "TensorListFromTensor": lambda op, x, element_shape: [x],
    "TensorListSetItem": indexing.with_list_item,
    "TensorListGetItem": lists.item_of,
    "TensorListStack": lists.stacked,
    "TensorListLength": lists.length,
  },
  because="TF.js 4.22: in a loop it disposes of the elements that it has just set",
)
_replaces_each({"Sign": _sign}, because="TF.js 4.22: makes 0 of NaN")
_replaces_each(
  {"Log1p": _on_floats(floats.log1p)},
  because="TF.js 4.22: wasm computes log(1 + x), which has no digit left for small x",
)
_replaces_each(
  {"Pow": _on_floats(floats.power)},
  because="TF.js 4.22: 1 to the power NaN is NaN, as JavaScript has it",
)
_replaces_each(
  {"Cos": _on_floats(angles.cos), "Sin": _on_floats(angles.sin), "Tan": _on_floats(angles.tan)},
  because="TF.js 4.22: wasm loses digits of angles from 1e4 on",
)
_replaces_each(
  {
    "Erfc": _on_floats(floats.erfc),
    "Erfinv": _on_floats(floats.erfinv),
    "Lgamma": _on_floats(floats.lgamma),
  },
  because="TF.js 4.22: no such op",
)


def _batch_norm(
  op: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any
) -> Sequence[Any]:
  """Inference over the last axis, the only form that the fused idioms emit."""
  if op.get_attr("is_training") or op.get_attr("data_format") != b"NHWC":
    return _lacking(op, x, scale, offset, mean, variance)
  factor = scale * tf.math.rsqrt(variance + op.get_attr("epsilon"))
  return [
    x * factor + (offset - mean * factor),
    mean,
    variance,
    mean,
    variance,
    tf.zeros_like(mean),
  ]


_replaces_each(
  {"FusedBatchNormV3": _batch_norm},
  because="TF.js 4.22: not among the ops that its converter lists",
)


class Table(Mapping[str, Replacement]):
  """Replaces every type of op except calls, loops, branches, identities and what is expanded."""

  def __init__(self, own: Mapping[str, Replacement]):
    self._own = own

  def __contains__(self, op_type: object) -> bool:
    is_known = op_type in SUPPORTED or op_type in self._own
    is_expanded = op_type in EXPANSIONS and not is_known
    return not is_expanded and op_type not in replay.REPLAYED

  def __getitem__(self, op_type: str) -> Replacement:
    if op_type in self._own:
      return self._own[op_type]
    return _moved if op_type in MOVES else _of_plain_dtypes if op_type in RUNS else _lacking

  def __iter__(self) -> Iterator[str]:
    return iter(sorted(SUPPORTED | self._own.keys()))

  def __len__(self) -> int:
    return len(SUPPORTED | self._own.keys())


TABLE = Table(registry.TABLES["tfjs"])
# TF.js 4.22: its own erf is wrong by at most 1.5e-7, which is the rounding of GELU.
_ERFC = _on_floats(lambda x: 1.0 - tf.math.erf(x))
FUSED_TABLE = Table({**registry.TABLES["tfjs"], "Erfc": _ERFC})
