"""How do I keep a moving average in a tf.Variable from inside a lax.scan?

The scan runs in XLA and writes the variable at each step, in order. TensorFlow can read it at any
time.
"""

from __future__ import annotations

import functools

import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import tensorflow as tf

  import jax2tf

AVERAGE = tf.Variable(0.0)


@functools.partial(jax2tf.call_tf, ordered=True)
def observe(x: tf.Tensor) -> tf.Tensor:
  """x f32[] -> f32[], the average including x."""
  return AVERAGE.assign(0.9 * AVERAGE + 0.1 * x)


@jax.jit
def walk(start: jax.Array, steps: jax.Array) -> tuple[jax.Array, jax.Array]:
  def step(position: jax.Array, change: jax.Array) -> tuple[jax.Array, jax.Array]:
    position = position + change
    return position, observe(position)

  return jax.lax.scan(step, start, steps)


def main() -> tuple[float, np.ndarray]:
  """Runs the scan. Returns the variable, and its values during the scan."""
  AVERAGE.assign(0.0)
  _, averages = walk(jnp.float32(0), jnp.ones(10))
  jax.effects_barrier()
  print(
    f"the average after ten steps is {AVERAGE.numpy():.4f}, and the scan has seen "
    f"{averages[-1]:.4f}"
  )
  return float(AVERAGE.numpy()), np.asarray(averages)


if __name__ == "__main__":
  main()
