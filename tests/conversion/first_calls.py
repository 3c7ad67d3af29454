"""Programs in which the first converted function of a process is made while TensorFlow
differentiates: `python first_calls.py`.

Each runs in a fork of a process that has imported JAX and TensorFlow, and not this package.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorflow as tf


def convert(fun: Any) -> Any:
  import jax2tf  # noqa: PLC0415  (the first import is what is tested)

  return jax2tf.convert(fun)


def accumulator(x: tf.Tensor) -> tf.Tensor:
  return tf.autodiff.ForwardAccumulator(x, tf.ones_like(x))


def in_an_accumulator(x: tf.Tensor) -> Any:
  with accumulator(x) as acc:
    y = convert(jnp.sin)(x)
  return acc.jvp(y)


def in_an_accumulator_of_a_graph(x: tf.Tensor) -> Any:
  return tf.function(in_an_accumulator, autograph=False)(x)


def in_accumulators_and_tapes(x: tf.Tensor) -> Any:
  """The third derivative of cos is sin."""
  with accumulator(x) as outer:
    with tf.GradientTape() as tape:
      tape.watch(x)
      with accumulator(x) as inner:
        y = convert(jnp.cos)(x)
      tangent = inner.jvp(y)
    gradient = tape.gradient(tangent, x)
  return tf.cos(x) / tf.sin(x) * outer.jvp(gradient)


def after_an_accumulator(x: tf.Tensor) -> Any:
  """It began before, and is used after."""
  with accumulator(x) as acc:
    y = tf.sin(x)
  convert(jnp.sin)(x)
  with acc:
    z = y * 1.0
  return acc.jvp(z)


def with_an_accumulator_in_another_thread(x: tf.Tensor) -> Any:
  began, converted, found = threading.Event(), threading.Event(), []

  def run() -> None:
    with accumulator(x) as acc:
      began.set()
      converted.wait(60)
      y = tf.sin(x)
    found.append(acc.jvp(y))

  thread = threading.Thread(target=run)
  thread.start()
  began.wait(60)
  convert(jnp.sin)(x)
  converted.set()
  thread.join()
  return found[0]


def in_a_tape_whose_other_result_has_no_cotangent(x: tf.Tensor) -> Any:
  """Its derivative is infinite, times the zero that TensorFlow substitutes."""
  with accumulator(x), tf.GradientTape() as tape:
    tape.watch(x)
    y, _ = convert(lambda x: (jnp.sin(x), jnp.sqrt(x - x)))(x)
  return tape.gradient(y, x)


def in_pfor(x: tf.Tensor) -> Any:
  rows = tf.vectorized_map(lambda row: convert(jnp.sin)(row), tf.stack([x + np.pi / 2, x]))
  return rows[0]


PROGRAMS = (
  in_an_accumulator,
  in_an_accumulator_of_a_graph,
  in_accumulators_and_tapes,
  after_an_accumulator,
  with_an_accumulator_in_another_thread,
  in_a_tape_whose_other_result_has_no_cotangent,
  in_pfor,
)

if __name__ == "__main__":
  forks = []
  for program in PROGRAMS:
    if (fork := os.fork()) == 0:
      x = tf.constant(1.0)
      np.testing.assert_allclose(program(x), np.cos(1.0), rtol=1e-5)
      os._exit(0)
    forks.append(fork)
  for program, fork in zip(PROGRAMS, forks, strict=True):
    print(program.__name__, os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
