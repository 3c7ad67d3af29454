"""One step of a diffusion model (DDIM): the noise that a network finds in an image at time t, and
the image at time t - 1."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry, below
from tests.support.models.libraries import Function, of_linen

STEPS = 50
# What is left of the image's variance at each time, for a linear schedule of noise.
REMAINING = np.cumprod(1 - np.linspace(1e-3, 0.1, STEPS)).astype(np.float32)


class Denoiser(nn.Module):
  """x f32[b,16,16,1], t i32[b] -> the noise in x."""

  @nn.compact
  def __call__(self, x: Any, t: Any) -> Any:
    frequencies = jnp.exp(-jnp.log(1e4) * jnp.arange(8) / 8)
    angles = t[:, None] * frequencies
    time = nn.Dense(16)(
      nn.swish(nn.Dense(16)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)))
    )
    y = nn.Conv(16, (3, 3))(x)
    for _ in range(2):
      z = nn.Conv(16, (3, 3))(nn.swish(nn.GroupNorm(4)(y)))
      y = y + nn.Conv(16, (3, 3))(nn.swish(nn.GroupNorm(4)(z + time[:, None, None])))
    return nn.Conv(1, (3, 3))(y)


def build() -> tuple[Function, Any]:
  apply, params = of_linen(Denoiser(), np.zeros((1, 16, 16, 1), np.float32), np.zeros(1, np.int32))

  def step(params: Any, x: Any, t: Any) -> tuple[Any, Any]:
    noise = apply(params, x, t)
    now = jnp.asarray(REMAINING)[t][:, None, None, None]
    before = jnp.where(t > 0, jnp.asarray(REMAINING)[jnp.maximum(t - 1, 0)], 1.0)[
      :, None, None, None
    ]
    image = jnp.clip((x - jnp.sqrt(1 - now) * noise) / jnp.sqrt(now), -3, 3)
    return jnp.sqrt(before) * image + jnp.sqrt(1 - before) * noise, noise

  return step, params


ENTRY = Entry(
  "diffusion_step",
  "Flax linen",
  build,
  {"x": "f32[b,16,16,1]", "t": "i32[b]"},
  ["previous", "noise"],
  {"b": (1, 3)},
  draws={"t": below(STEPS)},
)
