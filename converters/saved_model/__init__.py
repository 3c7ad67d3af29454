"""SavedModels: `save` saves one function, `Model` builds a model of several functions."""

from . import manifest as manifest
from . import warmup as warmup
from .arguments import Added
from .batching import Batching
from .builder import Model
from .flags import with_flags
from .from_libraries import from_equinox, from_flax_linen, from_flax_nnx, from_haiku
from .saving import save
from .scopes import with_module_scopes
from .state import refs_as_state

__all__ = [
  "Added",
  "Batching",
  "Model",
  "from_equinox",
  "from_flax_linen",
  "from_flax_nnx",
  "from_haiku",
  "refs_as_state",
  "save",
  "with_flags",
  "with_module_scopes",
]
