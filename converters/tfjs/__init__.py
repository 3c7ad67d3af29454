"""Functions and SavedModels as TF.js models."""

from .exporter import BACKENDS, Exported, ExportError, packages, run, save, save_model
from .page import Page

__all__ = ["BACKENDS", "ExportError", "Exported", "Page", "packages", "run", "save", "save_model"]
