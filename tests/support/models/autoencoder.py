"""A convolutional autoencoder: strided convolutions down to a code, transposed ones up again."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import numpy as np

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_haiku


def autoencoder(image: Any) -> tuple[Any, Any]:
  """image f32[b,16,16,1] -> the image anew, and its code f32[b,8]."""
  x = image
  for channels in (8, 16):
    x = jax.nn.elu(hk.Conv2D(channels, 3, stride=2)(x))
  code = hk.Linear(8)(hk.Flatten()(x))
  x = hk.Linear(4 * 4 * 16)(code).reshape(-1, 4, 4, 16)
  for channels in (8, 1):
    x = hk.Conv2DTranspose(channels, 3, stride=2)(jax.nn.elu(x))
  return jax.nn.sigmoid(x), code


def build() -> tuple[Function, Any]:
  return of_haiku(autoencoder, np.zeros((1, 16, 16, 1), np.float32))


ENTRY = Entry(
  "autoencoder",
  "Haiku",
  build,
  {"image": "f32[b,16,16,1]"},
  ["reconstruction", "code"],
  {"b": (1, 3)},
)
