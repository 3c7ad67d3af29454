"""The float model with weights in float16, which LiteRT dequantises when it loads the model.

TensorFlow 2.21's converter, with `supported_types = [tf.float16]`, also rounds each scalar of the
program: it makes 65504 of 1e9 and of infinity, and 0 of an epsilon of 1e-12. It also allows the
device to compute in float16. Here only weights are rounded.
"""

from __future__ import annotations

import numpy as np

from ..export.weights import Weight
from . import flatbuffer
from .parts import DEQUANTIZES_FLOAT16, Parts, add_tensor

# Elements of a constant. Smaller ones stay float32, as in the converter's "dynamic_int8".
_LEAST_SIZE = 1024
_AT_ONCE = 2**20  # elements, so that the check takes no memory


def half_precision(parts: Parts) -> None:
  """Makes all large float32 constants of the model float16, except those outside its range."""
  tools, model = flatbuffer.tools(), parts.model
  # {buffer of float32: that of float16, or None if it does not fit}
  halves: dict[int, int | None] = {}
  for graph in model.subgraphs:
    dequantized = []
    for i, tensor in enumerate(list(graph.tensors)):
      source = int(tensor.buffer)
      if tensor.type != tools.TensorType.FLOAT32 or (weight := parts.value(tensor)) is None:
        continue
      if source not in halves:
        halves[source] = parts.replaced(source, weight.cast(np.float16)) if _fits(weight) else None
      if (buffer := halves[source]) is not None:
        name = tensor.name + b"/float16"
        half = add_tensor(graph, name, np.dtype(np.float16), tensor.shape, buffer)
        tensor.buffer = 0
        dequantized.append(parts.op("DEQUANTIZE", DEQUANTIZES_FLOAT16, [half], i))
    graph.operators = dequantized + graph.operators


def _fits(weight: Weight) -> bool:
  """Whether the weights become float16; not if they are few, if one becomes infinite, or if all are
  below the normal numbers."""
  if weight.size < _LEAST_SIZE:
    return False
  values = weight.read().reshape(-1)
  largest = 0.0
  for start in range(0, values.size, _AT_ONCE):
    part = np.abs(values[start : start + _AT_ONCE])
    finite = part[np.isfinite(part)]
    largest = max(largest, float(finite.max(initial=0)))
  with np.errstate(over="ignore"):
    is_inside = bool(np.isfinite(np.float32(largest).astype(np.float16)))
  return is_inside and (largest == 0 or largest >= float(np.finfo(np.float16).tiny))
