"""Functions and SavedModels as LiteRT (TFLite) models."""

from .exporter import LEAST_COSINE, Exported, ExportError, QuantizationReport, quantization_report, run, save, save_model, save_training

__all__ = [
  "LEAST_COSINE",
  "ExportError",
  "Exported",
  "QuantizationReport",
  "quantization_report",
  "run",
  "save",
  "save_model",
  "save_training",
]
