"""Exports functions and SavedModels to TF.js."""

from .exporter import BACKENDS, IDIOMS, Exported, ExportError, packages, run, save, save_model
from .page import Page

__all__ = [
  "BACKENDS",
  "IDIOMS",
  "ExportError",
  "Exported",
  "Page",
  "packages",
  "run",
  "save",
  "save_model",
]
