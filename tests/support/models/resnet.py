"""A residual network with a strided stem, of two blocks; the network is `LinenResNet` in zoo.py."""

from __future__ import annotations

from tests.support.models.entry import Entry
from tests.support.models.zoo import MODELS

ENTRY = Entry(
  "resnet",
  "Flax linen",
  MODELS["linen_resnet"].build,
  {"image": "f32[b,32,32,3]"},
  ["logits"],
  {"b": (1, 3)},
)
