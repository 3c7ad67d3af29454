"""A convolutional classifier: convolution, batch norm, both kinds of pooling; the network is
`LinenCNN` in zoo.py."""

from __future__ import annotations

from tests.support.models.entry import Entry
from tests.support.models.zoo import MODELS

ENTRY = Entry(
  "cnn",
  "Flax linen",
  MODELS["linen_cnn_nhwc"].build,
  {"image": "f32[b,16,16,3]"},
  ["logits"],
  {"b": (1, 3)},
)
