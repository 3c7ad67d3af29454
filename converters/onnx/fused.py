"""ONNX's LayerNormalization and HardSwish, GELU as ONNX Runtime knows it, and SiLU with a product
less, in models with fused idioms.

In the TensorFlow graph for tf2onnx, ops that take the same operands, and that no lowering emits,
stand for the first two: FakeQuantWithMinMaxVarsPerChannel for LayerNormalization of rows
f32[...,n], scale f32[n] and offset f32[n], and DebugGradientIdentity for HardSwish.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import replay
from ..export.replay import Replacement
from .replacements import TABLE as EXACT
from .replacements import same

LAYER_NORM, HARD_SWISH = "FakeQuantWithMinMaxVarsPerChannel", "DebugGradientIdentity"
_EPSILON = "_epsilon"  # an arbitrary attribute of an op


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
  """(x - mean) rsqrt(variance + epsilon) is a LayerNormalization of scale 1; a vector times that is
  its scale.

  x relu6(x + 3) / 6 is HardSwish. x sigmoid(x) is x / (1 + exp(-x)).
  """
  size = x.shape[-1] if x.shape.rank else None
  if (
    x.op.type == "Sub"
    and x.dtype == tf.float32
    and size is not None
    and (epsilon := _epsilon(op)) is not None
  ):
    return [_layer_norm(x.op.inputs[0], tf.ones([size]), tf.zeros([size]), epsilon)]
  if x.dtype == tf.float32 and _is_hard_sigmoid(y, x):
    kind = {"T": tf.compat.v1.AttrValue(type=tf.float32.as_datatype_enum)}
    return [
      replay.graph()
      .create_op(HARD_SWISH, [x], [tf.float32], attrs=kind, name="HardSwish")
      .outputs[0]
    ]
  for (number, _), (of_sigmoid, result) in itertools.permutations(
    zip(op.inputs, (x, y), strict=True)
  ):
    if of_sigmoid.op.type == "Sigmoid" and of_sigmoid.op.inputs[0].ref() == number.ref():
      one_over = result.op  # see `special.sigmoid`
      return [(y if result is x else x) / one_over.inputs[1]]
  for rows, vector in ((x, y), (y, x)):
    if (
      rows.op.type == LAYER_NORM
      and _is(rows.op.inputs[1], 1)
      and _is(rows.op.inputs[2], 0)
      and _is_vector(vector, rows)
    ):
      return [
        _layer_norm(
          rows.op.inputs[0], tf.reshape(vector, [-1]), rows.op.inputs[2], rows.op.get_attr(_EPSILON)
        )
      ]
  return _exact(op, x, y)


def _sum(op: Any, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
  """A vector added to a LayerNormalization is its offset."""
  for rows, vector in ((x, y), (y, x)):
    if rows.op.type == LAYER_NORM and _is(rows.op.inputs[2], 0) and _is_vector(vector, rows):
      return [
        _layer_norm(
          rows.op.inputs[0], rows.op.inputs[1], tf.reshape(vector, [-1]), rows.op.get_attr(_EPSILON)
        )
      ]
  return _exact(op, x, y)


def _exact(op: Any, *operands: tf.Tensor) -> list[tf.Tensor]:
  return list(EXACT.get(op.type, same)(op, *operands))


def _layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
  attributes = {_EPSILON: tf.compat.v1.AttrValue(f=epsilon)}
  return (
    replay.graph()
    .create_op(
      LAYER_NORM, [x, scale, offset], [tf.float32], attrs=attributes, name="LayerNormalization"
    )
    .outputs[0]
  )


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
  relu6 = (
    y.op.inputs[0].op
    if y.op.type == "Mul" and _is(y.op.inputs[1], float(np.float32(1 / 6)))
    else None
  )
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


def _as_onnx(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
  """Of the attributes only epsilon is ONNX's too. The axis is the last one by default."""
  del graph, name, args
  epsilon = node.get_attr_value(_EPSILON)
  for attribute in list(node.attr):
    del node.attr[attribute]
  if epsilon is not None:
    node.set_attr("epsilon", epsilon)


HANDLERS = {LAYER_NORM: (_as_onnx, ["LayerNormalization"]), HARD_SWISH: (_as_onnx, ["HardSwish"])}
TABLE: Mapping[str, Replacement] = {**EXACT, "Erfc": _erfc, "Mul": _product, "AddV2": _sum}
