"""What takes the place of the ops that a target lacks, or gets wrong: one table for each target.

A replacement is a function of the op, for its attributes, and of its operands in the new graph, and returns the list of its results.
It is written in ops that the target has and gets right, and keeps values and dtypes as TensorFlow has them. A rule of the lowering
is not touched: docs/targets.md says which of them each target can take thanks to this table.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from jax2tf.converters import _onnx_ops, _tfjs_dtypes, _tfjs_ops, _tflite_ops
from jax2tf.converters._concrete import Replacement

ONNX: Mapping[str, Replacement] = _onnx_ops.REPLACEMENTS
TFLITE: Mapping[str, Replacement] = _tflite_ops.REPLACEMENTS
TFJS: Mapping[str, Replacement] = _tfjs_ops.Table()

TABLES: Mapping[str, Mapping[str, Replacement]] = {"onnx": ONNX, "tflite": TFLITE, "tfjs": TFJS}
# {dtype: the target's own that holds it}, where a target lacks dtypes.
HELD: Mapping[str, Mapping[tf.DType, tf.DType]] = {"tfjs": _tfjs_dtypes.HELD}
