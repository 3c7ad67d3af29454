"""SavedModels: `Model` collects functions and writes them, `save` writes one."""

from .batching import Batching
from .builder import Added, Model, save
from .state import refs_as_state

__all__ = ["Added", "Batching", "Model", "refs_as_state", "save"]
