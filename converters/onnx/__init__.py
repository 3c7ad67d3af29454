"""Functions and SavedModels as ONNX models."""

from .exporter import Exported, ExportError, run, save, save_model

__all__ = ["ExportError", "Exported", "run", "save", "save_model"]
