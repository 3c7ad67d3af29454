"""A Siamese network: one encoder for two images, and how similar they are."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_haiku


def similarity(left: Any, right: Any) -> Any:
  """left, right f32[b,16,16,1] -> f32[b], the cosine of the angle between their embeddings."""
  encoder = hk.Sequential(
    [
      hk.Conv2D(8, 3, padding="VALID"),
      jax.nn.leaky_relu,
      hk.AvgPool((2, 2, 1), (2, 2, 1), "VALID"),
      hk.Conv2D(16, 3, padding="VALID"),
      jax.nn.leaky_relu,
      hk.Flatten(),
      hk.Linear(16),
    ]
  )
  u, v = encoder(left), encoder(right)
  norms = jnp.linalg.norm(u, axis=-1) * jnp.linalg.norm(v, axis=-1)
  return jnp.sum(u * v, -1) / jnp.maximum(norms, 1e-8)


def build() -> tuple[Function, Any]:
  image = np.zeros((1, 16, 16, 1), np.float32)
  return of_haiku(similarity, image, image)


ENTRY = Entry(
  "siamese",
  "Haiku",
  build,
  {"left": "f32[b,16,16,1]", "right": "f32[b,16,16,1]"},
  ["similarity"],
  {"b": (1, 3)},
)
