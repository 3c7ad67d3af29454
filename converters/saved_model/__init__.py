"""SavedModels: `Model` collects functions and writes them, `save` writes one."""

from .batching import Batching
from .builder import Added, Model, save
from .libraries import from_equinox, from_flax_linen, from_flax_nnx, from_haiku
from .state import refs_as_state

__all__ = ["Added", "Batching", "Model", "from_equinox", "from_flax_linen", "from_flax_nnx", "from_haiku", "refs_as_state", "save"]
