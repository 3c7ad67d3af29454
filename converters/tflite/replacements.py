"""What takes the place of the ops that LiteRT's builtin kernels lack, or get wrong: the table is at the end.

LiteRT computes in float32, int32 and bool; of the other dtypes it has some kernels here and there, and for all but uint64 a Cast.
So an op of a narrow dtype is computed in a wide one and cast back, which gives what TensorFlow's own kernel gives: it computes
float16 and bfloat16 in float32 as well, and integers wrap. A uint32 is computed as the int32 of the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import angles
from ..export.replay import Replacement, again, is_zeros, with_shape
from ..export.scatters import Rows, drops
from . import bits, lists, special

_WIDER = {
  tf.int8: tf.int32,
  tf.int16: tf.int32,
  tf.uint8: tf.int32,
  tf.uint16: tf.int32,
  tf.uint32: tf.int32,
  tf.float16: tf.float32,
  tf.bfloat16: tf.float32,
}
_SIGN = -(2**31)


def _widened(inner: Replacement | None = None, *, ordered: bool = False, also: Sequence[tf.DType] = ()) -> Replacement:
  """A replacement that computes narrow dtypes in wide ones, by `inner` or by the op itself.

  Args:
    ordered: whether the op asks which number is larger; then the bits of a uint32 are moved to where int32 has their order.
    also: further dtypes that the op lacks, which become int32.
  """
  wider = {**_WIDER, **dict.fromkeys(also, tf.int32)}

  def wide(x: tf.Tensor) -> tf.Tensor:
    if x.dtype not in wider:
      return x
    y = tf.cast(x, wider[x.dtype])
    return _flipped(y) if ordered and x.dtype == tf.uint32 else y

  def narrow(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(_flipped(x) if ordered and dtype == tf.uint32 else x, dtype)

  def replacement(op: tf.Operation, *operands: Any) -> Sequence[Any]:
    if not any(x.dtype in wider for x in (*op.inputs, *op.outputs)):
      return inner(op, *operands) if inner else again(op, operands)
    given = [wide(x) for x in operands]
    results = inner(op, *given) if inner else again(op, given, wider)
    return [narrow(x, y.dtype) if y.dtype in wider else x for x, y in zip(results, op.outputs, strict=True)]

  return replacement


def _flipped(x: tf.Tensor) -> tf.Tensor:
  """The int32 whose order is that of the uint32 of the same bits."""
  return tf.bitwise.bitwise_xor(x, tf.constant(_SIGN, tf.int32))


def _of(function: Callable[..., tf.Tensor]) -> Replacement:
  """A replacement by a function of the operands alone; 64-bit and complex dtypes keep the op, for the converter to refuse it."""
  return lambda op, *operands: again(op, operands) if operands[0].dtype.size >= 8 else [function(*operands)]


def _divided(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """int32 x / y towards zero. LiteRT's kernel saturates -2**31 / -1, where TensorFlow's wraps."""
  minus = tf.equal(y, tf.constant(-1, tf.int32))
  return tf.where(minus, -x, tf.truncatediv(x, tf.where(minus, tf.constant(1, tf.int32), y)))


def _unsigned_divided(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """The bits of a uint32 quotient (H. Warren, Hacker's Delight, 9-3): half of x divided, doubled, and set right by at most one."""
  one = tf.constant(1, tf.int32)
  large = y < tf.constant(0, tf.int32)
  divisor = tf.where(large, one, y)
  half = tf.truncatediv(bits.logical_shift(x, one), divisor)
  quotient = half + half
  rest = x - quotient * divisor
  quotient += tf.cast(_flipped(rest) >= _flipped(divisor), tf.int32)
  return tf.where(large, tf.cast(_flipped(x) >= _flipped(y), tf.int32), quotient)


def _truncate_div(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  if op.inputs[0].dtype == tf.uint32:
    return [_unsigned_divided(x, y)]
  return [_divided(x, y)] if x.dtype == tf.int32 else again(op, (x, y))


def _truncate_mod(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  if op.inputs[0].dtype == tf.uint32:
    return [x - _unsigned_divided(x, y) * y]
  if x.dtype.is_floating:
    return [special.remainder(x, y)]
  return [x - _divided(x, y) * y] if x.dtype == tf.int32 else again(op, (x, y))


def _floor_div(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """LiteRT's kernel refuses a float divisor of 0."""
  if op.inputs[0].dtype == tf.uint32:
    return [_unsigned_divided(x, y)]
  return [tf.floor(x / y)] if x.dtype.is_floating else again(op, (x, y), _WIDER)


def _floor_mod(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """LiteRT's kernel ends the process for -2**31 mod -1 (SIGFPE)."""
  if op.inputs[0].dtype == tf.uint32:
    return [x - _unsigned_divided(x, y) * y]
  if not x.dtype.is_floating:
    y = tf.where(tf.equal(y, tf.constant(-1, y.dtype)), tf.constant(1, y.dtype), y)
  return again(op, (x, y), _WIDER)


def _larger(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """Maximum and Minimum, which lose a NaN. A number that is known is none, and XNNPACK clamps by it: relu, clip."""
  [found] = again(op, (x, y), _WIDER)
  for operand in (x, y) if x.dtype.is_floating and not (_is_number(x) or _is_number(y)) else ():
    found = tf.where(tf.math.is_nan(operand), operand, found)
  return [found]


def _is_number(x: tf.Tensor) -> bool:
  return x.shape.num_elements() == 1 and tf.get_static_value(x) is not None


def _largest(op: tf.Operation, x: tf.Tensor, axes: tf.Tensor) -> Sequence[tf.Tensor]:
  """Max and Min, which lose a NaN."""
  [found] = again(op, (x, axes), _WIDER)
  if not x.dtype.is_floating:
    return [found]
  lost = tf.reduce_any(tf.math.is_nan(x), axes, op.get_attr("keep_dims"))
  return [tf.where(lost, tf.constant(np.nan, x.dtype), found)]


def _cumprod(op: tf.Operation, x: tf.Tensor, axis: tf.Tensor) -> Sequence[tf.Tensor]:
  """Products with the neighbour at distance 1, 2, 4 ... (D. Hillis and G. Steele, Data Parallel Algorithms, 1986)."""
  if op.get_attr("exclusive"):
    return again(op, (x, axis), _WIDER)
  place = int(tf.get_static_value(axis)) % x.shape.rank
  order = [place, *(i for i in range(x.shape.rank) if i != place)]
  y = tf.transpose(x, order)
  y = tf.reverse(y, [0]) if op.get_attr("reverse") else y
  size, shape = tf.shape(y)[0], y.shape

  def turn(distance: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    product = y[distance:] * y[: size - distance]
    return distance * 2, with_shape(tf.concat([y[:distance], product], 0), shape)

  _, y = tf.while_loop(lambda distance, _: distance < size, turn, (tf.constant(1), y), shape_invariants=(tf.TensorShape([]), shape))
  y = tf.reverse(y, [0]) if op.get_attr("reverse") else y
  return [tf.transpose(y, np.argsort(order))]


def _scatter(op: tf.Operation, *operands: tf.Tensor) -> Sequence[tf.Tensor]:
  """ScatterNd and its kin. LiteRT stops at a row outside."""
  indices, updates, shape = operands if op.type == "ScatterNd" else (*operands[1:], tf.shape(operands[0]))
  if is_sum := op.type == "ScatterNd" or (op.type == "TensorScatterAdd" and is_zeros(op.inputs[0])):
    operands = indices, updates, shape
  if op.type in _SCATTERS and not drops(op, indices):
    return [_SCATTERS["ScatterNd" if is_sum else op.type](*operands)]
  rows = Rows.of(indices, lists.apart(updates), shape)
  if is_sum:
    found = tf.scatter_nd(rows.vectors, rows.updates, rows.extended_shape)
  elif op.type == "TensorScatterUpdate":
    found = _last_of_each(operands[0], rows)
  elif op.type in _SCATTERS:
    found = _SCATTERS[op.type](rows.extended(operands[0]), rows.vectors, rows.updates)
  else:
    return [_extreme(op, operands[0], rows)]
  return [with_shape(rows.cut(found), op.outputs[0].shape)]


def _last_of_each(x: tf.Tensor, rows: Rows) -> tf.Tensor:
  """Rows replaced by the last update of each. The converter would add the updates of one row, and subtract it as often."""
  last = tf.math.unsorted_segment_max(tf.range(tf.shape(rows.numbers)[0]), rows.numbers, rows.places + 1)[: rows.places]
  updated = tf.reshape(last >= 0, tf.concat([[rows.places], tf.ones_like(rows.inner)], 0))
  return tf.where(updated, tf.gather(rows.updates, tf.maximum(last, 0)), rows.of_tensor(x))


def _extreme(op: tf.Operation, x: tf.Tensor, rows: Rows) -> tf.Tensor:
  """TensorScatterMax and -Min, by segments of all places; one without updates has the least (largest) number there."""
  largest = op.type == "TensorScatterMax"
  segment = tf.math.unsorted_segment_max if largest else tf.math.unsorted_segment_min
  found = rows.cut(segment(rows.updates, rows.numbers, rows.places + 1))
  none = tf.constant(x.dtype.min if largest else x.dtype.max, x.dtype)
  return tf.where(tf.equal(found, none), x, tf.maximum(x, found) if largest else tf.minimum(x, found))


def _integer_matmul(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """[..., i, k], [..., k, j] -> [..., i, j], where LiteRT has no kernel as a sum of products."""
  if x.dtype.is_floating and not _is_from_vector(op):
    return again(op, (x, y), _WIDER)
  first, second = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
  x = tf.linalg.matrix_transpose(x) if op.get_attr(first) else x
  y = tf.linalg.matrix_transpose(y) if op.get_attr(second) else y
  return [tf.reduce_sum(x[..., :, :, None] * y[..., None, :, :], -2)]


def _divided_float(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """The division that ends a softmax is all of it: LiteRT has a kernel, while exp and its sum lose their digits in int8."""
  if _ends_softmax(op, x):
    return [tf.nn.softmax(x.op.inputs[1].op.inputs[0])]
  return [special.divided(x, y)] if _is_constant(x) and y.dtype == tf.float32 else again(op, (x, y), _WIDER)


def _subtracted_from(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  return [special.subtracted(x, y)] if _is_constant(x) else again(op, (x, y), _WIDER)


def _is_constant(x: tf.Tensor) -> bool:
  """Whether the converter may fold it."""
  seen, todo = set[str](), [x.op]
  while todo:
    op = todo.pop()
    if op.name not in seen:
      seen.add(op.name)
      todo.extend(y.op for y in op.inputs)
      if not op.inputs and op.type != "Const":
        return False
  return True


def _gathered(op: tf.Operation, x: tf.Tensor, indices: tf.Tensor, axis: tf.Tensor) -> Sequence[tf.Tensor]:
  return again(op, (lists.apart(x), indices, axis), _WIDER)


def _broadcast(op: tf.Operation, x: tf.Tensor, shape: tf.Tensor) -> Sequence[tf.Tensor]:
  if x.op.type != "Cast":
    return again(op, (x, shape), _WIDER)
  # As in `apart`, which the converter undoes here.
  return [tf.squeeze(y, 0) for y in again(op, (x[None], tf.concat([tf.constant([1], shape.dtype), shape], 0)), _WIDER)]


def _atan2(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """LiteRT's kernel does not broadcast."""
  if y.shape.is_fully_defined() and x.shape.is_fully_defined():
    shape: Any = tf.broadcast_static_shape(y.shape, x.shape)
  else:
    shape = tf.broadcast_dynamic_shape(tf.shape(y), tf.shape(x))
  return tf.atan2(*(z if y.shape == x.shape else tf.broadcast_to(z, shape) for z in (y, x)))


def _ends_softmax(op: tf.Operation, x: tf.Tensor) -> bool:
  """Whether it is e / sum(e) over the last axis, with e = exp(z - max(z)), and `x` the new e, as `special.exp` makes it."""
  e, total = op.inputs[0].op, _unshaped(op.inputs[1]).op
  if e.type != "Exp" or total.type != "Sum" or total.inputs[0] is not op.inputs[0] or e.inputs[0].op.type != "Sub":
    return False
  z, shift = e.inputs[0].op.inputs
  most = _unshaped(shift).op
  most = most.inputs[0].op if most.type == "Maximum" else most  # with -inf, for an empty row
  if most.type != "Max" or most.inputs[0] is not z:
    return False
  axes = [tf.get_static_value(reduction.inputs[1]) for reduction in (total, most)]
  last = all(a is not None and a.ravel().tolist() in ([z.shape.rank - 1], [-1]) for a in axes)
  return last and x.op.type == "SelectV2" and x.op.inputs[1].op.type == "Sub"


def _unshaped(x: tf.Tensor) -> tf.Tensor:
  while x.op.type in ("Reshape", "ExpandDims", "BroadcastTo", "Identity", "StopGradient", "PreventGradient"):
    x = x.op.inputs[0]
  return x


def _is_from_vector(op: tf.Operation) -> bool:
  """Whether one operand was a vector just now: the converter drops its Reshape, and then complains of the rank."""
  made = [x.op for x in op.inputs]
  known = any(tf.get_static_value(x) is not None for x in op.inputs)
  return op.type == "MatMul" and not known and any(y.type == "Reshape" and y.inputs[0].shape.rank == 1 for y in made)


def _padded(op: tf.Operation, x: tf.Tensor, paddings: tf.Tensor, *value: tf.Tensor) -> Sequence[tf.Tensor]:
  """Above rank 4, axis by axis on [before, axis, after]."""
  made = paddings.op  # the rule reshapes a constant
  known = tf.get_static_value(made.inputs[0] if made.type == "Reshape" else paddings)
  if x.shape.rank <= 4 or known is None:
    return again(op, (x, paddings, *value), _WIDER)
  for axis, sides in enumerate(known.reshape(-1, 2).tolist()):
    if any(sides):
      shape = tf.shape(x)
      flat = tf.reshape(x, tf.stack([tf.reduce_prod(shape[:axis]), shape[axis], tf.reduce_prod(shape[axis + 1 :])]))
      flat = tf.pad(flat, [[0, 0], sides, [0, 0]], constant_values=value[0] if value else 0)
      x = tf.reshape(flat, tf.concat([shape[:axis], tf.shape(flat)[1:2], shape[axis + 1 :]], 0))
  return [with_shape(x, op.outputs[0].shape)]


def _reversed(op: tf.Operation, x: tf.Tensor, axes: tf.Tensor) -> Sequence[tf.Tensor]:
  """One axis after the other: LiteRT's kernel takes neighbours only."""
  if (known := tf.get_static_value(axes)) is None:
    return again(op, (x, axes), _WIDER)
  for axis in known.tolist():
    x = tf.reverse(x, [axis])
  return [x]


def _next_after(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """The neighbour of x in the direction of y, by its bits."""
  zero = tf.constant(0.0, x.dtype)
  up = y > x
  step = tf.where(tf.equal(up, x > zero), tf.constant(1, tf.int32), tf.constant(-1, tf.int32))
  bits = tf.where(
    tf.equal(x, zero), tf.where(up, tf.constant(1, tf.int32), tf.constant(_SIGN + 1, tf.int32)), tf.bitcast(x, tf.int32) + step
  )
  found = tf.where(tf.equal(x, y), y, tf.bitcast(bits, tf.float32))
  return tf.where(tf.math.is_nan(x), x, tf.where(tf.math.is_nan(y), y, found))


def _squeezed(op: tf.Operation, x: tf.Tensor) -> Sequence[tf.Tensor]:
  """Without Squeeze, whose kernel takes 8 dimensions; the converter joins it with its neighbours until there are more."""
  shape, rank = op.outputs[0].shape, x.shape.rank
  if shape.rank is None or rank is None:
    return again(op, (x,), _WIDER)
  if sum(size is None for size in shape) < 2:
    return [tf.reshape(x, [-1 if size is None else size for size in shape])]
  gone = {axis % rank for axis in op.get_attr("squeeze_dims") or np.flatnonzero(np.equal(x.shape.as_list(), 1))}
  if rank <= 5:  # as StridedSlice takes
    return [x[tuple(0 if axis in gone else slice(None) for axis in range(rank))]]
  return [with_shape(tf.reshape(x, tf.gather(tf.shape(x), [axis for axis in range(rank) if axis not in gone])), shape)]


def _subtracted(x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
  return tf.tensor_scatter_nd_add(x, indices, -updates)


_SCATTERS: Mapping[str, Callable[..., tf.Tensor]] = {
  "ScatterNd": tf.scatter_nd,
  "TensorScatterAdd": tf.tensor_scatter_nd_add,
  "TensorScatterSub": _subtracted,
}
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
  "NextAfter": _next_after,
  "Rsqrt": special.rsqrt,
  "Sigmoid": special.sigmoid,
  "Sinh": special.sinh,
  "Tan": angles.tan,
}
# Computed in a wide dtype; nothing else is wrong with them.
_WIDENED = re.findall(
  r"\w+",
  """
  Abs Add AddN AddV2 AvgPool BatchToSpaceND Ceil ConcatV2 Conv2D Conv2DBackpropInput Conv3D Cos Cumsum
  DepthwiseConv2dNative DivNoNan Einsum Elu Equal ExpandDims Fill Floor GatherNd IsFinite IsNan LeakyRelu LogSoftmax
  MatrixBandPart MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 MaxPool Mean MirrorPad Mul Neg NotEqual OneHot OnesLike Pack Pow Prod
  Range Reciprocal Relu Relu6 Rint Roll Round SegmentSum Select SelectV2 Selu Sign Sin Slice Softmax Softplus SpaceToBatchND Split
  SplitV Sqrt Square SquaredDifference StridedSlice Sum Tanh Tile Transpose Unpack UnsortedSegmentProd UnsortedSegmentSum
  Xlogy ZerosLike
  """,
)
_ORDERED = re.findall(r"\w+", "Less LessEqual Greater GreaterEqual ArgMax ArgMin TopKV2 UnsortedSegmentMax UnsortedSegmentMin")
# The converter makes one op, GELU, of some formulas with these. So they are tried as they are first, and replaced if it cannot.
FUSED = ("Erf", "Erfc")

REPLACEMENTS: Mapping[str, Replacement] = {
  **lists.replacements(again, _WIDER),
  **{name: _widened() for name in _WIDENED},
  **{name: _widened(ordered=True) for name in _ORDERED},
  **{name: _widened(_of(function)) for name, function in _MATH.items()},
  **{name: _widened(_scatter) for name in _SCATTERS},
  "Atan2": _widened(_of(_atan2)),
  "BatchMatMulV2": _widened(_integer_matmul),
  "BitwiseAnd": _widened(bits.bitwise(bits.conjunction)),
  "BitwiseOr": _widened(bits.disjunction),
  "BitwiseXor": _widened(bits.bitwise(tf.bitwise.bitwise_xor)),
  "BroadcastTo": _widened(_broadcast),
  "Cumprod": _widened(_cumprod),
  "FloorDiv": _widened(_floor_div),
  "FloorMod": _widened(_floor_mod),
  "GatherV2": _widened(_gathered),
  "Invert": _widened(bits.bitwise(bits.inverted)),
  "LeftShift": _widened(bits.left_shift),
  "MatMul": _widened(_integer_matmul),
  "Max": _widened(_largest, ordered=True),
  "Maximum": _widened(_larger, ordered=True),
  "Min": _widened(_largest, ordered=True),
  "Minimum": _widened(_larger, ordered=True),
  "MirrorPad": _widened(also=[tf.bool]),
  "Pad": _widened(_padded),
  "PadV2": _widened(_padded),
  "PopulationCount": _widened(bits.population_count),
  "ReverseV2": _widened(_reversed),
  "RealDiv": _widened(_divided_float),
  "RightShift": _widened(bits.right_shift),
  "Squeeze": _widened(_squeezed),
  "Split": _widened(also=[tf.bool]),
  "Sub": _widened(_subtracted_from),
  "TensorScatterMax": _widened(_scatter, ordered=True),
  "TensorScatterMin": _widened(_scatter, ordered=True),
  "TensorScatterUpdate": _widened(_scatter),
  "TruncateDiv": _widened(_truncate_div),
  "TruncateMod": _widened(_truncate_mod),
}
