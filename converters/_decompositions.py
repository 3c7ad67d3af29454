"""What takes the place of the ops that a target lacks, or gets wrong: one table for each target.

A replacement is a function of the op, for its attributes, and of its operands in the new graph, and returns the list of its results.
It is written in ops that the target has and gets right, and keeps values and dtypes as TensorFlow has them. A rule of the lowering
is not touched: docs/targets.md says which of them each target can take thanks to this table.
"""

from __future__ import annotations

from collections.abc import Mapping

from jax2tf.converters import _onnx_ops
from jax2tf.converters._concrete import Replacement

ONNX: Mapping[str, Replacement] = _onnx_ops.REPLACEMENTS
TFLITE: Mapping[str, Replacement] = {}
TFJS: Mapping[str, Replacement] = {}

TABLES: Mapping[str, Mapping[str, Replacement]] = {"onnx": ONNX, "tflite": TFLITE, "tfjs": TFJS}
