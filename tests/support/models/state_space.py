"""A selective state space model as in Mamba: a linear recurrence whose rates depend on the input,
by `lax.associative_scan`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function, weights

LENGTH, WIDTH, STATE = 16, 8, 4


def state_space(params: Any, x: Any) -> Any:
  """x f32[b,LENGTH,WIDTH] -> the same."""
  step = jax.nn.softplus(x @ params["step"] + params["bias"])
  decay = jnp.exp(-step[..., None] * jnp.exp(params["log_rates"]))
  drive = (step * x)[..., None] * (x @ params["read"])[:, :, None]

  def after(first: Any, second: Any) -> Any:
    return first[0] * second[0], first[1] * second[0] + second[1]

  _, states = lax.associative_scan(after, (decay, drive), axis=1)
  y = jnp.sum(states * (x @ params["write"])[:, :, None], -1) + params["skip"] * x
  return (y * jax.nn.silu(x @ params["gate"])) @ params["out"]


def build() -> tuple[Function, Any]:
  keys = iter(jax.random.split(KEY, 5))
  square = {name: weights(next(keys), WIDTH, WIDTH) for name in ("step", "gate", "out")}
  narrow = {name: weights(next(keys), WIDTH, STATE) for name in ("read", "write")}
  rates = np.log(np.tile(np.arange(1, STATE + 1, dtype=np.float32), (WIDTH, 1)))
  return state_space, {
    **square,
    **narrow,
    "log_rates": rates,
    "bias": np.full(WIDTH, -2, np.float32),
    "skip": np.ones(WIDTH, np.float32),
  }


ENTRY = Entry(
  "state_space", "plain JAX", build, {"x": f"f32[b,{LENGTH},{WIDTH}]"}, ["y"], {"b": (1, 3)}
)
