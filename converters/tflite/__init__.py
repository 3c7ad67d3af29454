"""Exports functions and SavedModels to LiteRT (TFLite)."""

from .exporter import IDIOMS, LEAST_COSINE, Exported, ExportError, run, save, save_model, save_training
from .schemes import QuantizationReport, quantization_report
from .scripts import converter

__all__ = [
  "IDIOMS",
  "LEAST_COSINE",
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
