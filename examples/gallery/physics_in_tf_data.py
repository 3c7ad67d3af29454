"""How does tf.data compute elements with a simulation that is written in JAX?

Each element is a double pendulum that starts at rest. The simulation runs until one of its rods
turns over. JAX derives the equations of motion from the Lagrangian.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm
from rich.console import Console
from rich.progress import track

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import tensorflow as tf

  import jax2tf
  from jax2tf.examples.gallery import chart

SECONDS_A_STEP, GRAVITY = 0.02, 9.81


def lagrangian(angles: jax.Array, speeds: jax.Array) -> jax.Array:
  """Kinetic minus potential energy of two rods of 1 m with 1 kg at their ends: angles f32[2],
  speeds f32[2] -> f32[]."""
  across, up = jnp.cumsum(jnp.cos(angles) * speeds), jnp.cumsum(jnp.sin(angles) * speeds)
  heights = -jnp.cumsum(jnp.cos(angles))
  return jnp.sum(across**2 + up**2) / 2 - GRAVITY * jnp.sum(heights)


def slope(state: jax.Array) -> jax.Array:
  """The Euler-Lagrange equations: state f32[2,2], angles and speeds -> f32[2,2], speeds and
  accelerations."""
  angles, speeds = state
  ((a, b), (c, d)) = jax.hessian(lagrangian, 1)(angles, speeds)
  momentum = jax.grad(lagrangian, 1)
  along_path = jax.jvp(lambda angles: momentum(angles, speeds), (angles,), (speeds,))[1]
  f, g = jax.grad(lagrangian, 0)(angles, speeds) - along_path
  return jnp.stack([speeds, jnp.stack([d * f - b * g, a * g - c * f]) / (a * d - b * c)])


def simulate(angles: jax.Array, steps: int) -> jax.Array:
  """Initial angles f32[b,2] -> f32[b], the seconds until a rod turns over, or NaN; by the classic
  Runge-Kutta method."""

  def one(state: jax.Array) -> jax.Array:
    h = SECONDS_A_STEP
    k1 = slope(state)
    k2 = slope(state + h / 2 * k1)
    k3 = slope(state + h / 2 * k2)
    return state + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(state + h * k3))

  def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    states, turned = carry
    states = jax.vmap(one, in_axes=-1, out_axes=-1)(states)
    turns = jnp.any(jnp.abs(states[0]) > jnp.pi, axis=0)
    return states, jnp.where(turns & jnp.isnan(turned), (i + 1) * SECONDS_A_STEP, turned)

  states = jnp.stack([angles.T, jnp.zeros_like(angles.T)])
  return jax.lax.fori_loop(0, steps, step, (states, jnp.full(angles.shape[0], jnp.nan)))[1]


def starts(size: int) -> np.ndarray:
  """The grid of both angles, f32[size*size,2], in radians."""
  side = np.linspace(-np.pi, np.pi, size, endpoint=False, dtype=np.float32) + np.float32(
    np.pi / size
  )
  return np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)


def main(arguments: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
  """The seconds of each pendulum, from tf.data and from jax.jit."""
  parser = chart.parser(__doc__, "physics_in_tf_data")
  parser.add_argument("--size", type=int, default=200, help="pendulums on each side of the grid")
  parser.add_argument("--steps", type=int, default=500, help=f"steps of {SECONDS_A_STEP} s")
  options = parser.parse_args(arguments)
  angles = starts(options.size)

  simulate_tf = jax2tf.convert(
    lambda angles: simulate(angles, options.steps), polymorphic_shapes="b, _", with_gradient=False
  )
  rows = tf.data.Dataset.from_tensor_slices(angles).batch(-(-len(angles) // 8))
  seconds = rows.map(simulate_tf, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
  start = time.perf_counter()
  batches = track(
    seconds.as_numpy_iterator(), "batches of tf.data", total=8, console=Console(stderr=True)
  )
  found = np.concatenate(list(batches))
  print(
    f"{len(angles):,} pendulums, {options.steps} steps of each, in "
    f"{time.perf_counter() - start:.1f} s"
  )

  expected = np.asarray(jax.jit(simulate, static_argnums=1)(angles, options.steps))
  print(
    f"{np.mean((found == expected) | np.isnan(found) & np.isnan(expected)):.1%} have the time of "
    "jax.jit; the others are chaotic"
  )

  figure, axes = chart.subplots(size=(7, 5.6))
  sides = (-180, 180, -180, 180)
  image = axes.imshow(
    found.reshape(options.size, -1),
    origin="lower",
    extent=sides,
    norm=LogNorm(0.4, None),
    cmap="magma_r",
    interpolation="nearest",
  )
  ticks = range(-180, 181, 90)
  axes.set(
    xlabel="first angle at the start (degrees)",
    ylabel="second angle at the start (degrees)",
    xticks=ticks,
    yticks=ticks,
  )
  axes.set_title("When does a rod of the double pendulum turn over?")
  bar = figure.colorbar(image, extend="min", label="seconds; white: not in this time")
  bar.set_ticks(
    [t for t in (0.5, 1, 2, 5, 10) if np.nanmin(found) <= t <= np.nanmax(found)], labels=None
  )
  bar.ax.yaxis.set_major_formatter("{x:g}")
  bar.ax.yaxis.set_minor_formatter("")
  chart.save(figure, options.picture)
  return found, expected


if __name__ == "__main__":
  main()
