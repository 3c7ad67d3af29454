"""A neural ODE: `lax.while_loop` over steps whose length the error of the last one decides."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function

SIZE, TOLERANCE, MOST_STEPS = 4, 1e-3, 200


def solve(field: Any, y: Any) -> tuple[Any, Any]:
  """y f32[b,SIZE] at time 0 -> y at time 1, and the number of steps, by Heun's method with Euler's
  as the estimate of its error."""

  def unfinished(state: Any) -> Any:
    time, _, _, steps = state
    return (time < 1) & (steps < MOST_STEPS)

  def step(state: Any) -> Any:
    time, y, length, steps = state
    length = jnp.minimum(length, 1 - time)
    first = field(y)
    second = field(y + length * first)
    error = jnp.max(jnp.abs(0.5 * length * (second - first))) / TOLERANCE
    accepted = error <= 1
    y = jnp.where(accepted, y + 0.5 * length * (first + second), y)
    time = jnp.where(accepted, time + length, time)
    return time, y, length * jnp.clip(0.9 / jnp.sqrt(error + 1e-6), 0.2, 4.0), steps + 1

  _, y, _, steps = lax.while_loop(
    unfinished, step, (jnp.float32(0), y, jnp.float32(0.1), jnp.int32(0))
  )
  return y, steps


def build() -> tuple[Function, Any]:
  arrays, static = eqx.partition(
    eqx.nn.MLP(SIZE, SIZE, 16, 1, activation=jnp.tanh, key=KEY), eqx.is_array
  )

  def flow(arrays: Any, y: Any) -> tuple[Any, Any]:
    return solve(lambda y: 3 * jax.vmap(eqx.combine(arrays, static))(y), y)

  return flow, arrays


ENTRY = Entry(
  "neural_ode", "Equinox", build, {"y": f"f32[b,{SIZE}]"}, ["y_end", "steps"], {"b": (1, 3)}
)
