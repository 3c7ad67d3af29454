"""Saves converted functions as SavedModels, and exports them to other formats."""

from .saved_model import batching as batching
from .saved_model import manifest as manifest
from .saved_model import warmup as warmup
