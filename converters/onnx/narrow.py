"""int4, uint4 and float8 for tf2onnx, which does not know them. Values are int8, uint8 and float32.

ONNX Runtime only moves them and converts them, and so does TensorFlow. A cast to float8 rounds:
two Casts in ONNX, as for bfloat16. Parameters have their own dtype in the file; see `parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..export.narrow import INT4, OF_4_BITS, UINT4, Table
from . import protos
from .protos import FLOAT8E4M3FN, FLOAT8E5M2
from .runtime import extra

_E4M3, _E5M2 = tf.as_dtype("float8_e4m3fn"), tf.as_dtype("float8_e5m2")
_FLOAT8 = {_E4M3: 4, _E5M2: 5}  # the bits of the exponent
# The largest numbers that do not round to a number beyond the largest one, 448 and 57344.
_LARGEST = {_E4M3: 464.0, _E5M2: float(np.nextafter(np.float32(61440), np.float32(0)))}
# {num_bits of the marker of a rounding, those of the exponent: the dtype}. The handler makes
# two Casts of the marker.
ROUNDED = {4: FLOAT8E4M3FN, 5: FLOAT8E5M2}
HELD: Mapping[tf.DType, tf.DType] = {**OF_4_BITS, **dict.fromkeys(_FLOAT8, tf.float32)}
# The first opset that has the dtype.
SINCE: Mapping[tf.DType, int] = {INT4: 21, UINT4: 21, **dict.fromkeys(_FLOAT8, 19)}


def _rounded(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  # ONNX Runtime 1.32 makes 448 of 480, and NaN of what is infinite in JAX
  beyond = tf.constant(math.nan if dtype == _E4M3 else math.inf)
  x = tf.where(tf.abs(x) > _LARGEST[dtype], x * beyond, x)
  return tf.raw_ops.FakeQuantWithMinMaxArgs(inputs=x, num_bits=_FLOAT8[dtype])


TABLE = Table(HELD, _rounded)


def finish(graph: Any) -> int:
  """Makes the casts of a GraphProto to float8 those of JAX: what is too large becomes NaN or
  infinite, and not the largest number. tf2onnx drops this attribute, which opset 18 lacks.

  Returns:
    the oldest opset that has these casts; 0 without one.
  """
  oldest = 0
  for node in protos.nodes(graph):
    if node.op_type == "Cast" and node.attribute[0].i in ROUNDED.values():
      node.attribute.append(extra("onnx").helper.make_attribute("saturate", 0))
      oldest = min(SINCE[dtype] for dtype in _FLOAT8)
  return oldest
