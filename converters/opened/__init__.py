"""Closed SavedModels as ordinary ones: `opened.save(source, path)`."""

from __future__ import annotations

from .exporter import Opened, OpenError, save

__all__ = ["OpenError", "Opened", "save"]
