"""U-Net for segmentation: down by pooling, up by resizing, with skip connections and group norm."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_haiku


def _block(x: Any, channels: int) -> Any:
  for _ in range(2):
    x = jax.nn.relu(hk.GroupNorm(4)(hk.Conv2D(channels, 3)(x)))
  return x


def _up(x: Any, channels: int) -> Any:
  b, height, width, _ = x.shape
  return hk.Conv2D(channels, 1)(
    jax.image.resize(x, (b, 2 * height, 2 * width, x.shape[-1]), "nearest")
  )


def unet(image: Any) -> Any:
  """image f32[b,32,32,3] -> f32[b,32,32,2], the scores of each pixel's classes."""
  skips, x = [], image
  for channels in (8, 16):
    skips.append(x := _block(x, channels))
    x = hk.max_pool(x, (2, 2, 1), (2, 2, 1), "SAME")
  x = _block(x, 32)
  for channels, skip in zip((16, 8), reversed(skips), strict=True):
    x = _block(jnp.concatenate([skip, _up(x, channels)], -1), channels)
  return hk.Conv2D(2, 1)(x)


def build() -> tuple[Function, Any]:
  return of_haiku(unet, np.zeros((1, 32, 32, 3), np.float32))


ENTRY = Entry(
  "unet",
  "Haiku",
  build,
  {"image": "f32[b,32,32,3]"},
  ["scores"],
  {"b": (1, 3)},
  atol=2e-5,
  why="ten convolutions in a row, and group norm gives each one's rounding the scale of its result",
)
