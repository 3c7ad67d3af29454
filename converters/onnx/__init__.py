"""Exports functions and SavedModels to ONNX."""

from ..export.pipeline import Exported
from ..export.schemes import QuantizationReport
from ..export.source import ExportError
from .exporter import IDIOMS, run, save, save_model
from .inspection import inspect, verify
from .quantized import LEAST_COSINE, LEAST_TOP_1
from .schemes import quantization_report
from .scripts import Prepared, custom_op_handlers, prepared

__all__ = [
  "IDIOMS",
  "LEAST_COSINE",
  "LEAST_TOP_1",
  "ExportError",
  "Exported",
  "Prepared",
  "QuantizationReport",
  "custom_op_handlers",
  "inspect",
  "prepared",
  "quantization_report",
  "run",
  "save",
  "save_model",
  "verify",
]
