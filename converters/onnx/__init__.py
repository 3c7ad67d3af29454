"""Exports functions and SavedModels to ONNX."""

from .exporter import IDIOMS, Exported, ExportError, run, save, save_model

__all__ = ["IDIOMS", "ExportError", "Exported", "run", "save", "save_model"]
