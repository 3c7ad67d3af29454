"""Functions and SavedModels as TF.js models."""

from .exporter import BACKENDS, Exported, ExportError, packages, run, save, save_model

__all__ = ["BACKENDS", "ExportError", "Exported", "packages", "run", "save", "save_model"]
