"""A variational autoencoder that draws its latent vector with jax.random, from a key that the
caller gives."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry, random_key
from tests.support.models.libraries import Function, of_linen


class VAE(nn.Module):
  """x f32[b,256], key u32[2] -> reconstruction f32[b,256], mean and log variance f32[b,8]."""

  @nn.compact
  def __call__(self, x: Any, key: Any) -> tuple[Any, Any, Any]:
    hidden = nn.relu(nn.Dense(64)(x))
    mean, log_variance = nn.Dense(8)(hidden), nn.Dense(8)(hidden)
    noise = jax.random.normal(jax.random.wrap_key_data(key), mean.shape)
    z = mean + jnp.exp(0.5 * log_variance) * noise
    return nn.sigmoid(nn.Dense(256)(nn.relu(nn.Dense(64)(z)))), mean, log_variance


def build() -> tuple[Function, Any]:
  return of_linen(VAE(), np.zeros((1, 256), np.float32), np.zeros(2, np.uint32))


ENTRY = Entry(
  "vae",
  "Flax linen",
  build,
  {"x": "f32[b,256]", "key": "u32[2]"},
  ["reconstruction", "mean", "log_variance"],
  {"b": (1, 3)},
  draws={"key": random_key},
)
