"""SavedModels: `Model` collects functions and writes them, `save` writes one."""

from .batching import Batching
from .builder import Added, Model, save

__all__ = ["Added", "Batching", "Model", "save"]
