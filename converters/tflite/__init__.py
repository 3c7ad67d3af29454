"""Exports functions and SavedModels to LiteRT (TFLite)."""

from ..export.pipeline import Exported
from ..export.quantization import LEAST_COSINE, LEAST_TOP_1
from ..export.schemes import QuantizationReport
from ..export.source import ExportError
from .exporter import IDIOMS, run, save, save_model, save_training
from .inspection import inspect, verify
from .schemes import quantization_report
from .scripts import converter

__all__ = [
  "IDIOMS",
  "LEAST_COSINE",
  "LEAST_TOP_1",
  "ExportError",
  "Exported",
  "QuantizationReport",
  "converter",
  "inspect",
  "quantization_report",
  "run",
  "save",
  "save_model",
  "save_training",
  "verify",
]
