"""Language models of JAX for engines that generate text: one `Decoder`, one `save`."""

from ..export.source import ExportError
from .conversations import Conversation, Turn
from .decoder import Decoder
from .exporter import Saved, save
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
  "merged_lora",
  "save",
]
