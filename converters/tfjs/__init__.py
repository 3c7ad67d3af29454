"""Exports functions and SavedModels to TF.js."""

from ..export.pipeline import Exported
from ..export.source import ExportError
from .exporter import IDIOMS, run, save, save_model
from .inspection import inspect, verify
from .runtime import packages
from .target import BACKENDS

__all__ = [
  "BACKENDS",
  "IDIOMS",
  "ExportError",
  "Exported",
  "inspect",
  "packages",
  "run",
  "save",
  "save_model",
  "verify",
]
