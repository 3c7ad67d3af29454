"""Calls of TensorFlow from JAX's threads end: TensorFlow and JAX wait for each other nowhere. Each
test has a limit of time."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf import call_tf

LIMIT = 120  # seconds


def limited(test):
  """Fails where the test hangs; its thread is left behind."""

  @functools.wraps(test)
  def run():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
      pool.submit(test).result(LIMIT)
    finally:
      pool.shutdown(wait=False)

  return run


V = tf.Variable(1e-3)
by_callback = call_tf(lambda x: tf.sin(x) * V)


@limited
def test_large_arrays():
  step = jax.jit(lambda x: by_callback(x @ x) + 1)
  assert jnp.isfinite(step(jnp.ones((2000, 2000)))).all()


@limited
def test_an_asynchronous_chain():
  step, x = jax.jit(jax.grad(lambda x: by_callback(x).sum())), jnp.ones((300, 300))
  for _ in range(30):
    x = step(x) + 0 * (x @ x)
  np.testing.assert_allclose(x, 1e-3, rtol=1e-3)


@limited
def test_a_loop():
  looped = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, c: c + by_callback(c), x))
  assert looped(jnp.ones(100_000))[0] > 1.2


@limited
def test_threads():
  jitted = jax.jit(jax.value_and_grad(lambda x: by_callback(x @ x).sum()))

  def work(n):
    x = jnp.full((100, 100), 1e-3 * n)
    for _ in range(5):
      by_callback(x)
      value, _ = jitted(x)
    return float(value)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(work, range(8)))
  np.testing.assert_allclose(
    found, [1e4 * np.sin(1e-4 * n * n) * 1e-3 for n in range(8)], rtol=1e-4
  )


@limited
def test_inside_tf_data():
  """JAX under a py_function, and a converted function."""
  jitted, converted = (
    jax.jit(lambda x: by_callback(x) + 1),
    jax2tf.convert(lambda x: by_callback(x) + 1),
  )
  rows = tf.data.Dataset.from_tensor_slices(np.ones((16, 1000), np.float32))
  from_python = rows.map(
    lambda x: tf.numpy_function(lambda x: np.asarray(jitted(x)), [x], tf.float32),
    num_parallel_calls=4,
  )
  for dataset in (from_python, rows.map(converted, num_parallel_calls=4)):
    for row in dataset:
      np.testing.assert_allclose(row, np.sin(1.0) * 1e-3 + 1, rtol=1e-6)
