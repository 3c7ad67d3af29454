"""The cost of a call: in JAX, and of the converted function eagerly, in a tf.function, and in one
with a symbolic batch size.

Usage: python -m jax2tf.tools.lab.bench [--seconds=5]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from absl import logging

import jax2tf
from jax2tf.tools.lab import measure


def sin_plus_one(x: jax.Array) -> jax.Array:
  """A function so small that the time of a call is its overhead."""
  return jnp.sin(x) + 1


def mlp(x: jax.Array) -> jax.Array:
  """f32[64,784] -> f32[64,10] through two hidden layers of 512."""
  widths = (x.shape[-1], 512, 512, 10)
  for rows, columns in itertools.pairwise(widths):
    x = jax.nn.relu(x @ jnp.full((rows, columns), 1 / rows, x.dtype))
  return x


def graph_of_unknown_size(converted: Callable[..., Any], x: tf.Tensor, checks: bool) -> Any:
  """A concrete function of any batch size. Without checks, TensorFlow's debug stripper removes the
  assertions."""
  concrete = tf.function(converted, autograph=False).get_concrete_function(
    tf.TensorSpec([None, *x.shape[1:]])
  )
  tf.config.optimizer.set_experimental_options({"debug_stripper": not checks})
  concrete(x)  # the first call optimises the graph
  tf.config.optimizer.set_experimental_options({"debug_stripper": False})
  return concrete


def calls_of(fun: Callable[..., Any], shape: Sequence[int]) -> dict[str, Callable[[], Any]]:
  """{column: a call that returns when its result is computed}."""
  x = np.ones(shape, np.float32)
  tensor, array = tf.constant(x), jnp.asarray(x)
  converted, polymorphic = jax2tf.convert(fun), jax2tf.convert(fun, polymorphic_shapes=["b, ..."])
  functions = {
    "eager": converted,
    "tf.function": tf.function(converted, autograph=False).get_concrete_function(tensor),
    "unknown batch": graph_of_unknown_size(polymorphic, tensor, checks=True),
    "without checks": graph_of_unknown_size(polymorphic, tensor, checks=False),
  }
  jitted = jax.jit(fun)
  return {"jax.jit": lambda: jitted(array).block_until_ready()} | {
    name: lambda function=function: function(tensor).numpy() for name, function in functions.items()
  }


@click.command
@click.option(
  "--seconds",
  type=click.FloatRange(0.01),
  default=5.0,
  help="Seconds of measurement for each function.",
)
def main(seconds: float) -> None:
  """Prints one line for each function."""
  logging.set_verbosity(logging.WARNING)  # JAX logs the accelerators that it did not find
  for fun, shape in ((sin_plus_one, (3,)), (mlp, (64, 784))):
    times = measure.milliseconds(calls_of(fun, shape), seconds)
    if fun is sin_plus_one:
      print(f"{'microseconds per call':24}" + "".join(f"{name:>16}" for name in times))
    print(f"{fun.__name__:24}" + "".join(f"{1e3 * time:16.0f}" for time in times.values()))


if __name__ == "__main__":
  main()
