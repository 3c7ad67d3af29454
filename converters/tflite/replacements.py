"""Replacements for ops that LiteRT's builtin kernels lack, or compute differently."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import angles, convolutions, integers, registry
from ..export.registry import replaces, replaces_each
from ..export.replay import Replacement, again, dynamic_sides, sizes_of, with_shape
from . import bits, division, lists, narrow, scatters, special  # noqa: F401  (which register their own)
from .rule import WIDER, of_operands, widened


@replaces(
  "Maximum",
  "Minimum",
  on="tflite",
  because="LiteRT 2.3: loses NaN; TensorFlow 2.21's converter: makes Relu6 of integers, without a "
  "kernel",
)
@functools.partial(widened, ordered=True)
def _larger(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  return [_extreme(op.type, x, y)]


def _extreme(kind: str, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Maximum and Minimum, which lose a NaN. With a constant number the op stays, because XNNPACK
  then clamps: relu, clip."""
  # TF 2.21: of max(min(x, 6), 0) the converter makes Relu6, which has no kernel for integers; not
  # with a constant first.
  x, y = (y, x) if x.dtype.is_integer and _is_constant(y) else (x, y)
  result = getattr(tf.raw_ops, kind)(x=x, y=y)
  for operand in (x, y) if x.dtype.is_floating and not (_is_number(x) or _is_number(y)) else ():
    result = tf.where(tf.math.is_nan(operand), operand, result)
  return result


@replaces("Relu", "Relu6", on="tflite", because="LiteRT 2.3: no kernel for integers")
@widened
def _rectified(op: tf.Operation, x: tf.Tensor) -> Sequence[tf.Tensor]:
  if not x.dtype.is_integer:
    return again(op, (x,), WIDER)
  positive = _extreme("Maximum", x, tf.constant(0, x.dtype))
  return [
    _extreme("Minimum", positive, tf.constant(6, x.dtype)) if op.type == "Relu6" else positive
  ]


def _is_number(x: tf.Tensor) -> bool:
  return x.shape.num_elements() == 1 and tf.get_static_value(x) is not None


@replaces("ClipByValue", on="tflite", because="TensorFlow 2.21's converter: no kernel")
@functools.partial(widened, ordered=True)
def _clipped(
  op: tf.Operation, x: tf.Tensor, low: tf.Tensor, high: tf.Tensor
) -> Sequence[tf.Tensor]:
  del op
  return [_extreme("Maximum", _extreme("Minimum", x, high), low)]


@replaces("Max", "Min", on="tflite", because="LiteRT 2.3: loses NaN")
@functools.partial(widened, ordered=True)
def _largest(op: tf.Operation, x: tf.Tensor, axes: tf.Tensor) -> Sequence[tf.Tensor]:
  """Max and Min, which lose a NaN."""
  [result] = again(op, (x, axes), WIDER)
  if not x.dtype.is_floating:
    return [result]
  lost = tf.reduce_any(tf.math.is_nan(x), axes, op.get_attr("keep_dims"))
  return [tf.where(lost, tf.constant(np.nan, x.dtype), result)]


@replaces("Cumprod", on="tflite", because="LiteRT 2.3: no kernel")
@widened
def _cumprod(op: tf.Operation, x: tf.Tensor, axis: tf.Tensor) -> Sequence[tf.Tensor]:
  """A prefix product in steps of distance 1, 2, 4 ... (D. Hillis and G. Steele, Data Parallel
  Algorithms, 1986)."""
  if op.get_attr("exclusive"):
    return again(op, (x, axis), WIDER)
  dimension = int(tf.get_static_value(axis)) % x.shape.rank
  order = [dimension, *(i for i in range(x.shape.rank) if i != dimension)]
  y = tf.transpose(x, order)
  y = tf.reverse(y, [0]) if op.get_attr("reverse") else y
  size, shape = tf.shape(y)[0], y.shape

  def turn(distance: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    product = y[distance:] * y[: size - distance]
    return distance * 2, with_shape(tf.concat([y[:distance], product], 0), shape)

  _, y = tf.while_loop(
    lambda distance, _: distance < size,
    turn,
    (tf.constant(1), y),
    shape_invariants=(tf.TensorShape([]), shape),
  )
  y = tf.reverse(y, [0]) if op.get_attr("reverse") else y
  return [tf.transpose(y, np.argsort(order))]


@replaces(
  "MatMul",
  "BatchMatMulV2",
  on="tflite",
  because="LiteRT 2.3: no kernel for integers, nor for a vector whose Reshape the converter drops; "
  "of 5 dimensions at most",
)
@widened
@integers.of_8_bits(integers.product)
def _matmul(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """[..., i, k], [..., k, j] -> [..., i, j], a sum of products where LiteRT has no kernel."""
  if x.dtype.is_floating and not _is_from_vector(op):
    is_deep = x.shape.rank is not None and x.shape.rank > _OF_MATMUL
    if is_deep and x.shape[:-2] == y.shape[:-2]:
      return [_in_one_batch(op, x, y)]
    return again(op, (x, y), WIDER)
  first, second = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
  x = tf.linalg.matrix_transpose(x) if op.get_attr(first) else x
  y = tf.linalg.matrix_transpose(y) if op.get_attr(second) else y
  return [tf.reduce_sum(tf.expand_dims(x, -1) * tf.expand_dims(y, -3), -2)]


# Dimensions of LiteRT's BatchMatMul.
_OF_MATMUL = 5


def _in_one_batch(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """A product whose operands have the same batch dimensions, with these in one."""
  batch = sizes_of(x)[:-2]
  flat = [tf.reshape(z, tf.stack([-1, *sizes_of(z)[-2:]])) for z in (x, y)]
  [product] = again(op, flat, WIDER)
  whole = tf.reshape(product, tf.stack([*batch, *sizes_of(product)[-2:]]))
  return with_shape(whole, op.outputs[0].shape)


@replaces(
  "RealDiv",
  on="tflite",
  because="TensorFlow 2.21's converter: has x / constant for constant / x behind a transposition",
)
@widened
def _divided_float(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """Replaces the division that ends a softmax by Softmax: in int8, exp and its sum lose too many
  digits."""
  if _ends_softmax(op, x):
    return [tf.nn.softmax(x.op.inputs[1].op.inputs[0])]
  return (
    [special.divided(x, y)]
    if _is_constant(x) and y.dtype == tf.float32
    else again(op, (x, y), WIDER)
  )


@replaces(
  "Rsqrt",
  "Sqrt",
  on="tflite",
  because="LiteRT 2.3: XNNPACK's kernels have NaN for rsqrt(0), and are wrong from 2**126 on",
)
@widened
def _root(op: tf.Operation, x: tf.Tensor) -> Sequence[tf.Tensor]:
  """Keeps the op for variance + epsilon, which is never 0: a division would have a divisor of 0 in
  int8 if the variance is small. A variance of 2**126 overflows in its sum of squares."""
  if _is_above_zero(op.inputs[0]):
    return again(op, (x,), WIDER)
  return [(special.sqrt if op.type == "Sqrt" else special.rsqrt)(x)]


@replaces(
  "Sub",
  on="tflite",
  because="TensorFlow 2.21's converter: has x - constant for constant - x behind a transposition",
)
@widened
def _subtracted_from(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  return [special.subtracted(x, y)] if _is_constant(x) else again(op, (x, y), WIDER)


def _is_constant(x: tf.Tensor) -> bool:
  """Whether the converter can fold the tensor."""
  seen, todo = set[str](), [x.op]
  while todo:
    op = todo.pop()
    if op.name not in seen:
      seen.add(op.name)
      todo.extend(y.op for y in op.inputs)
      if not op.inputs and op.type != "Const":
        return False
  return True


@replaces(
  "GatherV2",
  on="tflite",
  because="TensorFlow 2.21's converter: takes the Cast behind it, to a dtype without a kernel",
)
@widened
def _gathered(
  op: tf.Operation, x: tf.Tensor, indices: tf.Tensor, axis: tf.Tensor
) -> Sequence[tf.Tensor]:
  return again(op, (lists.apart(x), indices, axis), WIDER)


@replaces(
  "BroadcastTo",
  on="tflite",
  because="TensorFlow 2.21's converter: takes the Cast behind it, to a dtype without a kernel",
)
@widened
def _broadcast(op: tf.Operation, x: tf.Tensor, shape: tf.Tensor) -> Sequence[tf.Tensor]:
  if x.op.type != "Cast":
    return again(op, (x, shape), WIDER)
  # For the reason in `apart`, whose Reshape the converter removes here.
  return [
    tf.squeeze(y, 0)
    for y in again(op, (x[None], tf.concat([tf.constant([1], shape.dtype), shape], 0)), WIDER)
  ]


@replaces("Atan2", on="tflite", because="LiteRT 2.3: does not broadcast")
@widened
@of_operands
def _atan2(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """LiteRT's kernel does not broadcast."""
  if y.shape.is_fully_defined() and x.shape.is_fully_defined():
    shape: Any = tf.broadcast_static_shape(y.shape, x.shape)
  else:
    shape = tf.broadcast_dynamic_shape(tf.shape(y), tf.shape(x))
  return tf.atan2(*(z if y.shape == x.shape else tf.broadcast_to(z, shape) for z in (y, x)))


def _ends_softmax(op: tf.Operation, x: tf.Tensor) -> bool:
  """Whether the op is e / sum(e) over the last axis, e = exp(z - max(z)), and `x` is the new e of
  `special.exp`."""
  e, total = op.inputs[0].op, _unshaped(op.inputs[1]).op
  if (
    e.type != "Exp"
    or total.type != "Sum"
    or total.inputs[0] is not op.inputs[0]
    or e.inputs[0].op.type != "Sub"
  ):
    return False
  z, shift = e.inputs[0].op.inputs
  most = _unshaped(shift).op
  # the operand -inf is for an empty row
  most = most.inputs[0].op if most.type == "Maximum" else most
  if most.type != "Max" or most.inputs[0] is not z:
    return False
  axes = [tf.get_static_value(reduction.inputs[1]) for reduction in (total, most)]
  last = (-1,) if x.shape.rank is None else (-1, x.shape.rank - 1)
  of_rows = all(a is not None and a.size == 1 and a.item() in last for a in axes)
  return of_rows and x.op.type == "SelectV2" and x.op.inputs[1].op.type == "Sub"


def _unshaped(x: tf.Tensor) -> tf.Tensor:
  while x.op.type in (
    "Reshape",
    "ExpandDims",
    "BroadcastTo",
    "Identity",
    "StopGradient",
    "PreventGradient",
  ):
    x = x.op.inputs[0]
  return x


def _is_above_zero(x: tf.Tensor) -> bool:
  """Whether the tensor is a positive constant plus a sum, or mean, of squares."""
  total = _unshaped(x).op
  if total.type not in ("Add", "AddV2"):
    return False
  numbers = [tf.get_static_value(y) for y in total.inputs]
  return any(
    n is not None and bool(np.all(n > 0)) and _is_of_squares(y)
    for n, y in zip(numbers, reversed(total.inputs), strict=True)
  )


def _is_of_squares(x: tf.Tensor) -> bool:
  while (op := _unshaped(x).op).type in ("Sum", "Mean", "RealDiv", "Mul"):
    if op.type in ("RealDiv", "Mul") and not (
      (n := tf.get_static_value(op.inputs[1])) is not None and np.all(n > 0)
    ):
      return False
    x = op.inputs[0]
  return op.type in ("Square", "SquaredDifference")


def _is_from_vector(op: tf.Operation) -> bool:
  """Whether an operand is a reshaped vector: the converter drops the Reshape, and then refuses the
  rank."""
  producers = [x.op for x in op.inputs]
  known = any(tf.get_static_value(x) is not None for x in op.inputs)
  return (
    op.type == "MatMul"
    and not known
    and any(y.type == "Reshape" and y.inputs[0].shape.rank == 1 for y in producers)
  )


@replaces("Pad", "PadV2", on="tflite", because="LiteRT 2.3: of 4 dimensions at most")
@widened
def _padded(
  op: tf.Operation, x: tf.Tensor, paddings: tf.Tensor, *value: tf.Tensor
) -> Sequence[tf.Tensor]:
  """Pads tensors above rank 4 axis by axis, as [before, axis, after]."""
  if (sides := dynamic_sides(paddings)) is not None and len(sides) == x.shape.rank:
    return [
      with_shape(
        _appended(x, sides, value[0] if value else tf.zeros([], x.dtype)), op.outputs[0].shape
      )
    ]
  producer = paddings.op  # the lowering rule reshapes a constant
  known = tf.get_static_value(producer.inputs[0] if producer.type == "Reshape" else paddings)
  if known is None or known.size <= 2 * 4:
    return again(op, (x, paddings, *value), WIDER)
  for axis, sides in enumerate(known.reshape(-1, 2).tolist()):
    if any(sides):
      shape = tf.shape(x)
      flat = tf.reshape(
        x, tf.stack([tf.reduce_prod(shape[:axis]), shape[axis], tf.reduce_prod(shape[axis + 1 :])])
      )
      flat = tf.pad(flat, [[0, 0], sides, [0, 0]], constant_values=value[0] if value else 0)
      x = tf.reshape(flat, tf.concat([shape[:axis], tf.shape(flat)[1:2], shape[axis + 1 :]], 0))
  return [with_shape(x, op.outputs[0].shape)]


def _appended(
  x: tf.Tensor, sides: Sequence[tuple[tf.Tensor, tf.Tensor]], value: tf.Tensor
) -> tf.Tensor:
  """Pads one axis at a time by concatenation. TF 2.21's converter forgets all sizes of a Pad by
  numbers that are no constants."""
  for axis, (before, after) in enumerate(sides):
    sizes = sizes_of(x)

    def filled(count: tf.Tensor, sizes: list[Any] = sizes, axis: int = axis) -> list[tf.Tensor]:
      known = tf.get_static_value(count)
      return (
        []
        if known == 0
        else [
          tf.fill(tf.stack([*sizes[:axis], tf.cast(count, tf.int32), *sizes[axis + 1 :]]), value)
        ]
      )

    parts = [*filled(before), x, *filled(after)]
    x = tf.concat(parts, axis) if len(parts) > 1 else x
  return x


@replaces("ReverseV2", on="tflite", because="LiteRT 2.3: of neighbouring axes only")
@widened
def _reversed(op: tf.Operation, x: tf.Tensor, axes: tf.Tensor) -> Sequence[tf.Tensor]:
  """Reverses one axis at a time: LiteRT's kernel takes only adjacent axes."""
  if (known := tf.get_static_value(axes)) is None:
    return again(op, (x, axes), WIDER)
  for axis in known.tolist():
    x = tf.reverse(x, [axis])
  return [x]


@replaces(
  "Squeeze",
  on="tflite",
  because="LiteRT 2.3: of 8 dimensions at most, and the converter joins neighbours",
)
@widened
def _squeezed(op: tf.Operation, x: tf.Tensor) -> Sequence[tf.Tensor]:
  """Replaces Squeeze: its kernel takes 8 dimensions, and the converter merges neighbouring ops into
  a higher rank."""
  shape, rank = op.outputs[0].shape, x.shape.rank
  if shape.rank is None or rank is None:
    return again(op, (x,), WIDER)
  if sum(size is None for size in shape) < 2:
    return [tf.reshape(x, [-1 if size is None else size for size in shape])]
  gone = {
    axis % rank
    for axis in op.get_attr("squeeze_dims") or np.flatnonzero(np.equal(x.shape.as_list(), 1))
  }
  if rank <= 5:  # as StridedSlice takes
    return [x[tuple(0 if axis in gone else slice(None) for axis in range(rank))]]
  return [
    with_shape(
      tf.reshape(x, tf.gather(tf.shape(x), [axis for axis in range(rank) if axis not in gone])),
      shape,
    )
  ]


_MATH: Mapping[str, Callable[..., Any]] = {
  "Acos": special.acos,
  "Acosh": special.acosh,
  "Asin": special.asin,
  "Asinh": special.asinh,
  "Atan": special.atan,
  "Atanh": special.atanh,
  "Cosh": special.cosh,
  "Erf": special.erf,
  "Cos": angles.cos,
  "Erfc": special.erfc,
  "Sin": angles.sin,
  "Exp": special.exp,
  "Expm1": special.expm1,
  "Log": special.log,
  "IsInf": special.is_inf,
  "Log1p": special.log1p,
  "NextAfter": special.next_after,
  "Sigmoid": special.sigmoid,
  "Sinh": special.sinh,
  "Softplus": special.softplus,
  "Tan": angles.tan,
  "Xlogy": special.xlogy,
}
# Ops that only need a wider dtype.
_WIDENED = re.findall(
  r"\w+",
  """
  Abs Add AddN AddV2 AvgPool BatchToSpaceND Ceil ConcatV2 Cumsum
  DivNoNan Einsum Elu Equal ExpandDims Fill Floor GatherNd IsFinite IsNan LeakyRelu LogSoftmax
  MatrixBandPart MatrixDiagV3 MatrixSetDiagV3 MaxPool Mean Mul Neg NotEqual OneHot
  OnesLike Pack Pow Prod Range Reciprocal Rint Roll Round SegmentSum Select SelectV2 Selu Sign Slice
  Softmax SpaceToBatchND SplitV Square SquaredDifference StridedSlice Sum Tanh Tile Transpose Unpack
  UnsortedSegmentProd UnsortedSegmentSum
  ZerosLike
  """,
)
_ORDERED = re.findall(
  r"\w+",
  "Less LessEqual Greater GreaterEqual ArgMax ArgMin TopKV2 UnsortedSegmentMax UnsortedSegmentMin",
)
# The converter fuses some formulas with these into GELU. The exporter tries them unchanged first,
# and then with replacements.
FUSED = ("Erf", "Erfc")

_convolution = integers.of_8_bits(integers.convolution)(convolutions.convolution)
_replaces_each = functools.partial(replaces_each, on="tflite")
_replaces_each(
  lists.replacements(again, WIDER),
  because="TensorFlow 2.21's converter: needs rows of a static size, and copies all of them at "
  "each write",
)
_replaces_each(
  dict.fromkeys(
    ("Conv2DBackpropInput", "Conv3DBackpropInputV2"), widened(convolutions.input_gradient)
  ),
  because="LiteRT 2.3: no explicit padding, nor narrow dtypes",
)
_replaces_each(
  {
    **dict.fromkeys(("Conv2D", "Conv3D"), widened(_convolution)),
    "DepthwiseConv2dNative": widened(convolutions.depthwise_convolution),
  },
  because="LiteRT 2.3: no kernel for an unknown number of features, nor for some narrow dtypes",
)
_replaces_each(
  {
    **dict.fromkeys(
      ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), widened(convolutions.filter_gradient)
    ),
    "MaxPoolGrad": widened(convolutions.max_pool_gradient),
    "DepthwiseConv2dNativeBackpropFilter": widened(convolutions.depthwise_filter_gradient),
    "DepthwiseConv2dNativeBackpropInput": widened(convolutions.depthwise_input_gradient),
  },
  because="LiteRT 2.3: no kernel",
)
_replaces_each(
  {name: widened() for name in _WIDENED}, because="LiteRT 2.3: no kernel for some narrow dtypes"
)
_replaces_each(
  {name: widened(also=[tf.bool]) for name in ("MirrorPad", "Split")},
  because="LiteRT 2.3: no kernel for some narrow dtypes and bool",
)
_replaces_each(
  {name: widened(ordered=True) for name in _ORDERED},
  because="LiteRT 2.3: no kernel for some narrow dtypes, and none that has the order of uint32",
)
_replaces_each(
  {name: widened(of_operands(function)) for name, function in _MATH.items()},
  because="LiteRT 2.3: no kernel, or one that loses digits, NaN or infinities",
)
_replaces_each(
  {
    "BitwiseAnd": widened(bits.bitwise(bits.conjunction)),
    "BitwiseOr": widened(bits.disjunction),
    "BitwiseXor": widened(bits.bitwise(tf.bitwise.bitwise_xor)),
    "Invert": widened(bits.bitwise(bits.inverted)),
    "LeftShift": widened(bits.left_shift),
    "RightShift": widened(bits.right_shift),
    "PopulationCount": widened(bits.population_count),
  },
  because="LiteRT 2.3: of the bitwise ops it has BitwiseXor and RightShift of 32 bits",
)

TABLE: Mapping[str, Replacement] = registry.TABLES["tflite"]
