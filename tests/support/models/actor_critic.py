"""An actor-critic agent: convolutions over stacked frames, then a policy and a value."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function, of_equinox

ACTIONS = 6


class Agent(eqx.Module):
  """frames u8[4,24,24] -> log probabilities f32[ACTIONS], value f32[], the best action i32[],
  entropy f32[]."""

  convolutions: list[eqx.nn.Conv2d]
  hidden: eqx.nn.Linear
  policy: eqx.nn.Linear
  value: eqx.nn.Linear

  def __init__(self, key: Any):
    keys = jax.random.split(key, 5)
    self.convolutions = [
      eqx.nn.Conv2d(4, 8, 4, stride=2, key=keys[0]),
      eqx.nn.Conv2d(8, 16, 3, stride=2, key=keys[1]),
    ]
    self.hidden = eqx.nn.Linear(16 * 5 * 5, 64, key=keys[2])
    self.policy = eqx.nn.Linear(64, ACTIONS, key=keys[3])
    self.value = eqx.nn.Linear(64, "scalar", key=keys[4])

  def __call__(self, frames: Any) -> tuple[Any, Any, Any, Any]:
    x = frames.astype(jnp.float32) / 255
    for convolution in self.convolutions:
      x = jax.nn.relu(convolution(x))
    x = jax.nn.relu(self.hidden(x.ravel()))
    log_probs = jax.nn.log_softmax(self.policy(x))
    return (
      log_probs,
      self.value(x),
      jnp.argmax(log_probs).astype(jnp.int32),
      -jnp.sum(jnp.exp(log_probs) * log_probs),
    )


def build() -> tuple[Function, Any]:
  return of_equinox(Agent(KEY))


ENTRY = Entry(
  "actor_critic",
  "Equinox",
  build,
  {"frames": "u8[b,4,24,24]"},
  ["log_probs", "value", "action", "entropy"],
  {"b": (1, 3)},
  draws={"frames": lambda rng, shape, dtype: rng.integers(0, 255, shape, dtype, endpoint=True)},
)
