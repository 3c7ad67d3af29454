"""From a converted function to a file: SavedModel, and what reads one."""

from .saved_model import batching as batching
from .saved_model import manifest as manifest
from .saved_model import warmup as warmup
