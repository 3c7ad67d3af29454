"""QuantizeLinear and DequantizeLinear where the function itself quantizes, and int8 parameters."""

from __future__ import annotations

import tensorflow as tf

from ..export import ranges
from ..export.ranges import Range
from ..export.replay import Replacement
from ..export.source import Signature
from .composites import QUANTIZE, composite
from .parameters import Parameters


def quantizing(
  signature: Signature, parameters: Parameters, *, of_activations: bool
) -> dict[str, Replacement]:
  """The replacement of what the function quantizes.

  Args:
    signature: of the function.
    parameters: get the integers of its parameters.
    of_activations: whether other tensors get nodes that quantize; their ops stay otherwise.
  """
  weights = {id(one.op): one for one in ranges.weights_of(signature)} if parameters.keeps else {}

  def of_weight(op: tf.Operation) -> tf.Tensor | None:
    if (weight := weights.get(id(op))) is None:
      return None
    return weight.dequantized(*parameters.read(op, weight))

  def of_activation(found: Range, result: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    if not (of_activations and found.is_of_tensor):
      return result
    scale, zero = tf.constant(found.scale[0]), tf.constant(found.zero[0], tf.int8)
    return composite(QUANTIZE, [x, scale, zero])

  return {ranges.MARK: ranges.marked(of_weight, of_activation)}
