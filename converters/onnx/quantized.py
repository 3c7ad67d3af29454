"""Quantised ONNX models, by ONNX Runtime's quantizer."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..export import quantization
from . import bfloat16, layouts, protos
from .runtime import extra

# Products alone: quantised sums, norms and activations would round again between two products, for
# no gain in size. ONNX Runtime 1.32 fails on a Gather of float32 rows beside other ops ("scale
# issue"), and its ConvInteger is slower than Conv.
_DYNAMIC = ("MatMul", "Gemm")
_CALIBRATED = ("MatMul", "Gemm", "Conv")


@dataclass(frozen=True)
class Quantization(quantization.Quantization):
  """How an ONNX model is quantised and compared; see `exporter.save_model`."""

  schemes = ("dynamic_int8", "int8")


LEAST_COSINE: Mapping[str, float] = {
  scheme: quantization.LEAST_COSINE[scheme] for scheme in Quantization.schemes
}
LEAST_TOP_1: Mapping[str, float] = {
  scheme: quantization.LEAST_TOP_1[scheme] for scheme in Quantization.schemes
}


def quantized(file: Path, scheme: Quantization) -> Any:
  """The onnx.ModelProto of a float32 model with quantised products of constant weights, its weights
  inside.

  "dynamic_int8": weights, and activations at run time, as MatMulInteger. "int8": products between
  QuantizeLinear and DequantizeLinear, whose ranges are those of the calibrating samples.

  Args:
    file: the float32 model. Its weights may be beside it.
    scheme: with samples in the dtypes of the signature, for "int8".
  """
  onnx, quantizer = extra("onnx"), extra("onnxruntime.quantization")
  before = onnx.load_model(str(file), load_external_data=False)
  # Weights of int8 would saturate in 16 bits on x86 processors without VNNI, silently. Those of
  # uint8 do not, and have the same speed (ONNX Runtime 1.32, a transformer and a convolutional
  # network on a processor with VNNI).
  options = {
    "weight_type": quantizer.QuantType.QUInt8,
    "per_channel": True,
    "use_external_data_format": len(list(file.parent.iterdir())) > 1,
  }
  with tempfile.TemporaryDirectory(prefix="jax2tf-onnx-") as folder, _quiet():
    result = Path(folder, "quantized.onnx")
    if scheme.scheme == "int8":
      quantizer.quantize_static(
        file,
        result,
        _Samples(scheme, protos.names_in(protos.metadata(before), layouts.NCHW)),
        activation_type=quantizer.QuantType.QUInt8,
        op_types_to_quantize=list(_CALIBRATED),
        extra_options={"MatMulConstBOnly": True},
        **options,
      )
    else:
      quantizer.quantize_dynamic(file, result, op_types_to_quantize=list(_DYNAMIC), **options)
    proto = onnx.load_model(str(result))
  proto.producer_name, proto.producer_version = before.producer_name, before.producer_version
  del proto.metadata_props[:]
  proto.metadata_props.extend(before.metadata_props)
  return proto


class _Samples:
  """The calibrating samples, as the quantizer reads them."""

  def __init__(self, scheme: Quantization, nchw: Sequence[str]):
    assert scheme.dataset
    self._nchw = nchw
    self._samples = scheme.dataset.calibrating()

  def get_next(self) -> dict[str, np.ndarray] | None:
    """The next sample, as the file takes it; None after the last one."""
    sample = next(self._samples, None)
    if sample is None:
      return None
    _, inputs = sample
    return layouts.to_file({name: bfloat16.as_held(x) for name, x in inputs.items()}, self._nchw)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Without the warning of the quantizer that it wants a model of its own preprocessing. tf2onnx
  has fused and folded already."""
  logger = logging.getLogger()
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)
