"""A transformer encoder over tokens of which 0 is padding, with learned positions; the network is
`LinenEncoder` in zoo.py."""

from __future__ import annotations

from tests.support.models.entry import Entry, below
from tests.support.models.zoo import MODELS

ENTRY = Entry(
  "transformer_encoder",
  "Flax linen",
  MODELS["linen_transformer_encoder"].build,
  {"ids": "i32[b,s]"},
  ["states"],
  {"b": (1, 3), "s": (6, 11)},
  draws={"ids": below(11)},
  constraints=["s <= 64"],
)
