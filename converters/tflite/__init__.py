"""Exports functions and SavedModels to LiteRT (TFLite)."""

from .exporter import IDIOMS, Exported, ExportError, run, save, save_model, save_training
from .quantized import LEAST_COSINE, LEAST_TOP_1
from .schemes import QuantizationReport, quantization_report
from .scripts import converter

__all__ = [
  "IDIOMS",
  "LEAST_COSINE",
  "LEAST_TOP_1",
  "ExportError",
  "Exported",
  "QuantizationReport",
  "converter",
  "quantization_report",
  "run",
  "save",
  "save_model",
  "save_training",
]
