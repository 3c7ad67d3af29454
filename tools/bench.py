"""What one call costs: JAX, the converted function called eagerly, and inside a tf.function.

Usage: python -m jax2tf.tools.bench [--seconds=1]
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

import jax2tf

SECONDS = flags.DEFINE_float("seconds", 1.0, "how long to measure each call", lower_bound=0.01)


def sin_plus_one(x: jax.Array) -> jax.Array:
  """The smallest function there is, so that the call is what costs."""
  return jnp.sin(x) + 1


def mlp(x: jax.Array) -> jax.Array:
  """f32[64,784] -> f32[64,10] through two hidden layers of 512."""
  widths = (x.shape[-1], 512, 512, 10)
  for rows, columns in itertools.pairwise(widths):
    x = jax.nn.relu(x @ jnp.full((rows, columns), 1 / rows, x.dtype))
  return x


def microseconds(call: Callable[[], Any], seconds: float) -> float:
  """The median time of a call, after two to warm up."""
  call(), call()
  times = []
  end = time.perf_counter() + seconds
  while time.perf_counter() < end:
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
  return 1e6 * statistics.median(times)


def main(argv: Sequence[str]) -> None:
  """Prints one line for each function."""
  del argv
  logging.set_verbosity(logging.WARNING)  # JAX tells absl which accelerators it did not find
  print(f"{'microseconds per call':24}{'jax.jit':>12}{'eager':>12}{'tf.function':>14}")
  for fun, shape in ((sin_plus_one, (3,)), (mlp, (64, 784))):
    x = np.ones(shape, np.float32)
    tensor, array = tf.constant(x), jnp.asarray(x)
    jitted, converted = jax.jit(fun), jax2tf.convert(fun)
    graph = tf.function(converted, autograph=False)
    calls = (
      lambda f=jitted, a=array: f(a).block_until_ready(),
      lambda f=converted, t=tensor: f(t).numpy(),
      lambda f=graph, t=tensor: f(t).numpy(),
    )
    jax_time, eager, in_graph = (microseconds(call, SECONDS.value) for call in calls)
    print(f"{fun.__name__:24}{jax_time:12.0f}{eager:12.0f}{in_graph:14.0f}")


if __name__ == "__main__":
  app.run(main)
