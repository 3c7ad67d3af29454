"""HardSwish as Relu6 and products: Grappler, LiteRT and ONNX recognise this form."""

from __future__ import annotations

import jax
import tensorflow as tf

from jax2tf.idioms.fused._primitives import fused


def _hard_swish(x: tf.Tensor) -> tf.Tensor:
  return x * (tf.nn.relu6(x + 3) * tf.constant(1 / 6, x.dtype))


IDIOMS = fused("hard_swish", jax.nn.hard_swish, op=_hard_swish)
