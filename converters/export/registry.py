"""What takes the place of the ops that a target lacks, or gets wrong: one table for each target.

A replacement is a function of the op, for its attributes, and of its operands in the new graph, and returns the list of its results.
It is written in ops that the target has and gets right, and keeps values and dtypes as TensorFlow has them. A rule of the lowering
is not touched: docs/targets.md says which of them each target can take thanks to this table.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from ..onnx import replacements as onnx
from ..tfjs import dtypes as ints
from ..tfjs import replacements as tfjs
from ..tflite import replacements as tflite
from .replay import Replacement

ONNX: Mapping[str, Replacement] = onnx.REPLACEMENTS
TFLITE: Mapping[str, Replacement] = tflite.REPLACEMENTS
TFJS: Mapping[str, Replacement] = tfjs.Table()

TABLES: Mapping[str, Mapping[str, Replacement]] = {"onnx": ONNX, "tflite": TFLITE, "tfjs": TFJS}
# {dtype: the target's own that holds it}, where a target lacks dtypes.
HELD: Mapping[str, Mapping[tf.DType, tf.DType]] = {"tfjs": ints.HELD}
