"""The float model with weights in float16, which LiteRT dequantises when it loads the model.

TensorFlow 2.21's converter, with `supported_types = [tf.float16]`, also rounds each scalar of the
program: it makes 65504 of 1e9 and of infinity, and 0 of an epsilon of 1e-12. It also allows the
device to compute in float16. Here only weights are rounded.
"""

from __future__ import annotations

import numpy as np

from . import flatbuffer

# Elements of a constant. Smaller ones stay float32, as in the converter's "dynamic_int8".
_LEAST_SIZE = 1024
_DEQUANTIZE_FLOAT16 = 3  # the version of the op


def half_precision(model: bytes) -> bytes:
  """The .tflite model with all large float32 constants in float16, except those outside its
  range."""
  tools, model_object = flatbuffer.tools(), flatbuffer.unpacked(model)
  # {buffer of float32: that of float16, or None if it does not fit}
  halves: dict[int, int | None] = {}
  for graph in model_object.subgraphs:
    dequantized = []
    for i, tensor in enumerate(list(graph.tensors)):
      if (
        tensor.type != tools.TensorType.FLOAT32
        or (data := model_object.buffers[tensor.buffer].data) is None
      ):
        continue
      source = int(tensor.buffer)
      if source not in halves:
        halves[source] = None
        if (half := _rounded(np.frombuffer(data.tobytes(), np.float32))) is not None:
          halves[source] = len(model_object.buffers)
          model_object.buffers.append(tools.BufferT(data=half.view(np.uint8)))
      if (buffer := halves[source]) is not None:
        weights = tools.TensorT(
          shape=tensor.shape,
          type=tools.TensorType.FLOAT16,
          buffer=buffer,
          name=tensor.name + b"/float16",
        )
        weights.hasRank, tensor.buffer = tensor.hasRank, 0
        dequantized.append(
          tools.OperatorT(
            opcodeIndex=len(model_object.operatorCodes), inputs=[len(graph.tensors)], outputs=[i]
          )
        )
        graph.tensors.append(weights)
    graph.operators = dequantized + graph.operators
  if any(buffer is not None for buffer in halves.values()):
    op = tools.BuiltinOperator.DEQUANTIZE
    model_object.operatorCodes.append(
      tools.OperatorCodeT(builtinCode=op, deprecatedBuiltinCode=op, version=_DEQUANTIZE_FLOAT16)
    )
  used = {int(tensor.buffer) for graph in model_object.subgraphs for tensor in graph.tensors}
  for source, buffer in halves.items():
    if buffer is not None and source not in used:
      model_object.buffers[source].data = None
  return flatbuffer.packed(model_object, len(model))


def _rounded(weights: np.ndarray) -> np.ndarray | None:
  """The weights in float16; None if they are few, if one becomes infinite, or if all are below the
  normal numbers."""
  if weights.size < _LEAST_SIZE:
    return None
  with np.errstate(over="ignore", under="ignore"):
    half = weights.astype(np.float16)
  finite = np.abs(weights[np.isfinite(weights)])
  lost = (
    np.isinf(half).sum() > np.isinf(weights).sum()
    or 0 < finite.max(initial=0) < np.finfo(np.float16).tiny
  )
  return None if lost else half
