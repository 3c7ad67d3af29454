"""ONNX's LayerNormalization, RMSNormalization, HardSwish and Gelu, GELU as ONNX Runtime knows it in
older opsets, and SiLU with a product less, in models with fused idioms.

In the TensorFlow graph for tf2onnx, ops that take the same operands, and that no lowering emits,
stand for them: FakeQuantWithMinMaxVarsPerChannel for the normalizations of rows f32[...,n] with
scale f32[n] and offset f32[n], and DebugGradientIdentity for HardSwish and Gelu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import replay
from ..export.replay import Replacement
from . import activations, composites, cumulative, handlers, opsets, sums, triangles
from .replacements import TABLE as EXACT
from .replacements import same

LAYER_NORM, HARD_SWISH = "FakeQuantWithMinMaxVarsPerChannel", "DebugGradientIdentity"
# The names of their nodes.
_STANDS_FOR = {LAYER_NORM: "Normalization", HARD_SWISH: "Activation"}
# Attributes of the stand-ins, which may have any whose name begins with "_".
_EPSILON, _OF_SQUARES, _GELU = "_epsilon", "_of_squares", "_gelu"
_GELU_FORMS = ("none", "tanh")  # ONNX's `approximate`


def _erfc(op: Any, x: tf.Tensor) -> list[tf.Tensor]:
  """erfc(-x / sqrt 2) is 1 + erf(x / sqrt 2), from which ONNX Runtime 1.32 makes Gelu when it opens
  the file; of a product it does not."""
  if x.dtype == tf.float32 and x.op.type == "Mul" and x.op.inputs[0].op.type == "Neg":
    factor = tf.get_static_value(x.op.inputs[1])
    if (
      factor is not None
      and factor.shape == ()
      and math.isclose(factor, math.sqrt(0.5), rel_tol=1e-6)
    ):
      return [tf.math.erf(x.op.inputs[0].op.inputs[0] / math.sqrt(2)) + 1.0]
  return _exact(op, x)


def _product(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """(x - mean) rsqrt(variance + epsilon) is a LayerNormalization of scale 1, x rsqrt(mean(x^2) +
  epsilon) an RMSNormalization; a vector times that is its scale.

  x relu6(x + 3) / 6 is HardSwish. x sigmoid(x) is x / (1 + exp(-x)).
  """
  size = x.shape[-1] if x.shape.rank else None
  if (
    x.op.type == "Sub"
    and x.dtype == tf.float32
    and size is not None
    and (epsilon := _epsilon(op)) is not None
  ):
    return [_normalized(x.op.inputs[0], tf.ones([size]), tf.zeros([size]), epsilon)]
  if x.dtype == tf.float32 and _is_hard_sigmoid(y, x):
    return [_activated(x)]
  if opsets.has("Gelu") and (form := _gelu_form(x, y)) is not None:
    return [_activated(x.op.inputs[1], form)]
  for rows, factor in ((x, y), (y, x)):
    if opsets.has("RMSNormalization") and (found := _mean_square(rows, factor)) is not None:
      return [_normalized(*found, of_squares=True)]
  operands = tuple(zip(op.inputs, (x, y), strict=True))
  for (number, new), (result, sigmoid) in (operands, operands[::-1]):
    if result.op.type == "Sigmoid" and result.op.inputs[0].ref() == number.ref():
      return [new / sigmoid.op.inputs[1]]  # see `special.sigmoid`
  for rows, vector in ((x, y), (y, x)):
    if (
      rows.op.type == LAYER_NORM
      and _is(rows.op.inputs[1], 1)
      and _is(rows.op.inputs[2], 0)
      and _is_vector(vector, rows)
    ):
      return [_again(rows.op, scale=tf.reshape(vector, [-1]))]
  return _exact(op, x, y)


def _sum(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """A vector added to a LayerNormalization is its offset."""
  for rows, vector in ((x, y), (y, x)):
    if (
      rows.op.type == LAYER_NORM
      and not rows.op.get_attr(_OF_SQUARES)
      and _is(rows.op.inputs[2], 0)
      and _is_vector(vector, rows)
    ):
      return [_again(rows.op, offset=tf.reshape(vector, [-1]))]
  return _exact(op, x, y)


def _quotient(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  for result in (activations.softmax(op, x), activations.softsign(x, y), sums.mean_of_groups(x, y)):
    if result is not None:
      return [result]
  return _exact(op, x, y)


def _select(op: Any, condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  for result in (activations.prelu(condition, x, y), triangles.selected(condition, x, y)):
    if result is not None:
      return [result]
  return _exact(op, condition, x, y)


def _joined(op: Any, *operands: tf.Tensor) -> list[tf.Tensor]:
  *parts, axis = operands
  known = tf.get_static_value(axis)
  if known is not None and parts[0].shape.rank:
    running = cumulative.extreme(parts, int(known) % parts[0].shape.rank)
    if running is not None:
      return [running]
  return _exact(op, *operands)


def _band(op: Any, x: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor) -> list[tf.Tensor]:
  result = triangles.band(x, lower, upper)
  return [result] if result is not None else _exact(op, x, lower, upper)


def _exact(op: Any, *operands: tf.Tensor) -> list[tf.Tensor]:
  return list(EXACT.get(op.type, same)(op, *operands))


def _normalized(
  x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float, *, of_squares: bool = False
) -> tf.Tensor:
  attributes = {
    _EPSILON: tf.compat.v1.AttrValue(f=epsilon),
    _OF_SQUARES: tf.compat.v1.AttrValue(b=of_squares),
  }
  return _stand_in(LAYER_NORM, [x, scale, offset], attributes)


def _again(
  op: Any, *, scale: tf.Tensor | None = None, offset: tf.Tensor | None = None
) -> tf.Tensor:
  """The normalization with another scale or offset."""
  x, old_scale, old_offset = op.inputs
  return _normalized(
    x,
    old_scale if scale is None else scale,
    old_offset if offset is None else offset,
    op.get_attr(_EPSILON),
    of_squares=op.get_attr(_OF_SQUARES),
  )


def _activated(x: tf.Tensor, gelu_form: int = -1) -> tf.Tensor:
  """Gelu in the form, or HardSwish."""
  attributes = {
    "T": tf.compat.v1.AttrValue(type=tf.float32.as_datatype_enum),
    _GELU: tf.compat.v1.AttrValue(i=gelu_form),
  }
  return _stand_in(HARD_SWISH, [x], attributes)


def _stand_in(kind: str, operands: list[tf.Tensor], attributes: Mapping[str, Any]) -> tf.Tensor:
  name = _STANDS_FOR[kind]
  op = replay.graph().create_op(kind, operands, [tf.float32], attrs=attributes, name=name)
  return op.outputs[0]


def _mean_square(
  rows: tf.Tensor, factor: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, float] | None:
  """(x, scale, 0, epsilon) if the factor of the rows x, or x - 0, is rsqrt(mean(x^2) + epsilon), or
  that times a scale."""
  x = rows.op.inputs[0] if rows.op.type == "Sub" and _is(rows.op.inputs[1], 0) else rows
  size = x.shape[-1] if x.shape.rank else None
  inverse, scale = factor, None
  if factor.op.type == "Mul":
    inverse, scale = factor.op.inputs
    if inverse.op.type != "Rsqrt":
      inverse, scale = scale, inverse
  if x.dtype != tf.float32 or size is None or inverse.op.type != "Rsqrt":
    return None
  if scale is not None and not _is_vector(scale, x):
    return None
  total = inverse.op.inputs[0].op
  epsilon = tf.get_static_value(total.inputs[1]) if total.type == "AddV2" else None
  if epsilon is None or epsilon.shape or not _is_mean_of_squares(total.inputs[0], x):
    return None
  vector = tf.ones([size]) if scale is None else tf.reshape(scale, [-1])
  return x, vector, tf.zeros([size]), float(epsilon)


def _is_mean_of_squares(mean: tf.Tensor, x: tf.Tensor) -> bool:
  """Whether it is sum(x^2) / n of rows f32[...,n], as f32[...,1]."""
  *outer, size = x.shape.as_list()
  if mean.shape.rank is None or mean.shape.as_list() != [*outer, 1] or outer.count(None) > 1:
    return False
  n_quotients = 0
  while mean.op.type in ("Reshape", "RealDiv"):
    if mean.op.type == "RealDiv":
      if not _is(mean.op.inputs[1], size):
        return False
      n_quotients += 1
    mean = mean.op.inputs[0]
  if mean.op.type != "Sum" or n_quotients != 1:
    return False
  axes = tf.get_static_value(mean.op.inputs[1])
  squares = mean.op.inputs[0].op
  is_of_rows = axes is not None and axes.reshape(-1).tolist() in ([-1], [len(outer)])
  is_square = squares.type in ("Square", "Mul")
  return is_of_rows and is_square and {z.ref() for z in squares.inputs} == {x.ref()}


def _gelu_form(half: tf.Tensor, y: tf.Tensor) -> int | None:
  """The form of GELU that x / 2 times y is, 0 by erf and 1 by tanh, as the idiom `gelu` is lowered;
  the former by `_erfc`."""
  if half.dtype != tf.float32 or half.op.type != "Mul" or not _is(half.op.inputs[0], 0.5):
    return None
  x = half.op.inputs[1]
  if y.op.type != "AddV2":
    return None
  for one, curve in (y.op.inputs, y.op.inputs[::-1]):
    if not _is(one, 1) or curve.op.type not in ("Erf", "Tanh"):
      continue
    operand = curve.op.inputs[0].op
    if curve.op.type == "Erf":
      by_root = operand.type == "RealDiv" and _is(operand.inputs[1], _single(math.sqrt(2)))
      return 0 if by_root and operand.inputs[0].ref() == x.ref() else None
    is_scaled = operand.type == "Mul" and _is(operand.inputs[0], _single(math.sqrt(2 / math.pi)))
    return 1 if is_scaled and _is_with_cube(operand.inputs[1], x) else None
  return None


def _is_with_cube(total: tf.Tensor, x: tf.Tensor) -> bool:
  """Whether it is x + 0.044715 x^3."""
  if total.op.type != "AddV2" or total.op.inputs[0].ref() != x.ref():
    return False
  product = total.op.inputs[1].op
  if product.type != "Mul" or not _is(product.inputs[0], _single(0.044715)):
    return False
  power = product.inputs[1].op
  return power.type == "Pow" and power.inputs[0].ref() == x.ref() and _is(power.inputs[1], 3)


def _single(number: float) -> float:
  """The number as float32 has it."""
  return float(np.float32(number))


def _epsilon(op: Any) -> float | None:
  """The epsilon of the op, if the idiom `normalize` was lowered to it."""
  centred, inverse = (x.op for x in op.inputs)
  if (centred.type, inverse.type) != ("Sub", "Rsqrt"):
    return None
  mean, total = centred.inputs[1].op, inverse.inputs[0].op
  if (
    total.type != "AddV2"
    or not _is_mean_of_rows(mean)
    or not _is_mean_of_rows(variance := total.inputs[0].op)
  ):
    return None
  squares = variance.inputs[0].op
  operands = [x.ref() for x in centred.inputs]
  if (
    squares.type != "SquaredDifference"
    or [x.ref() for x in squares.inputs] != operands
    or mean.inputs[0].ref() != operands[0]
  ):
    return None
  epsilon = tf.get_static_value(total.inputs[1])
  return None if epsilon is None or epsilon.shape else float(epsilon)


def _is_hard_sigmoid(y: tf.Tensor, x: tf.Tensor) -> bool:
  """Whether y is relu6(x + 3) / 6, as the idiom `hard_swish` is lowered."""
  relu6 = y.op.inputs[0].op if y.op.type == "Mul" and _is(y.op.inputs[1], _single(1 / 6)) else None
  if relu6 is None or relu6.type != "Relu6" or relu6.inputs[0].op.type != "AddV2":
    return False
  operand, three = relu6.inputs[0].op.inputs
  return operand is x and _is(three, 3)


def _is_mean_of_rows(op: Any) -> bool:
  axes = (
    tf.get_static_value(op.inputs[1]) if op.type == "Mean" and op.get_attr("keep_dims") else None
  )
  return axes is not None and axes.reshape(-1).tolist() == [-1]


def _is(x: tf.Tensor, number: float) -> bool:
  value = tf.get_static_value(x)
  return value is not None and bool((value == number).all())


def _is_vector(x: tf.Tensor, rows: tf.Tensor) -> bool:
  """x f32[1,...,1,n] with rows f32[...,n]: of a row itself the sizes before are not 1."""
  shape = x.shape.as_list() if x.shape.rank else []
  return (
    bool(shape)
    and len(shape) <= rows.shape.rank
    and shape[-1] == rows.shape[-1]
    and set(shape[:-1]) <= {1}
  )


def _normalization(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """Of the attributes only epsilon is ONNX's too. The axis is the last one by default."""
  del name, args
  epsilon, of_squares = node.get_attr_value(_EPSILON), node.get_attr_value(_OF_SQUARES)
  handlers.keep(node)
  node.set_attr("epsilon", epsilon)
  if of_squares:
    node.type = "RMSNormalization"
    graph.remove_input(node, node.input[2], 2)


def _activation(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  del graph, name, args
  gelu_form = node.get_attr_value(_GELU)
  handlers.keep(node)
  if gelu_form >= 0:
    node.type = "Gelu"
    node.set_attr("approximate", _GELU_FORMS[gelu_form])


HANDLERS = {
  LAYER_NORM: (_normalization, ["LayerNormalization"]),
  HARD_SWISH: (_activation, ["HardSwish"]),
  **composites.HANDLERS,
}
TABLE: Mapping[str, Replacement] = {
  **EXACT,
  "Erfc": _erfc,
  "Mul": _product,
  "AddV2": _sum,
  "RealDiv": _quotient,
  "SelectV2": _select,
  "MatrixBandPart": _band,
  "ConcatV2": _joined,
}
