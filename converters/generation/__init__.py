"""Language models of JAX for engines that generate text: one `Decoder`, one `save`."""

from ..export.source import ExportError
from .adapters import (
  by_token,
  from_bonsai,
  from_equinox,
  from_flax_linen,
  from_flax_nnx,
  from_gemma,
  from_tunix,
)
from .conversations import Conversation, Turn
from .decoder import Decoder
from .exporter import Saved, compare, run, save
from .lora import merged_lora
from .report import TOLERANCES, LoopReport, Row
from .target import MODULES as TARGETS

__all__ = [
  "TARGETS",
  "TOLERANCES",
  "Conversation",
  "Decoder",
  "ExportError",
  "LoopReport",
  "Row",
  "Saved",
  "Turn",
  "by_token",
  "compare",
  "from_bonsai",
  "from_equinox",
  "from_flax_linen",
  "from_flax_nnx",
  "from_gemma",
  "from_tunix",
  "merged_lora",
  "run",
  "save",
]
