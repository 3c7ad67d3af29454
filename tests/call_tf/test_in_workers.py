"""TensorFlow functions in JAX, in worker processes: of a fork server, and of Ray."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

LIMIT = 240  # seconds


def work(n):
  """A derivative by callback, next to one as XLA's code."""
  import jax  # noqa: PLC0415  (in the worker)
  import tensorflow as tf  # noqa: PLC0415

  from jax2tf import call_tf  # noqa: PLC0415

  v = tf.Variable(2.0)
  return float(
    jax.jit(jax.grad(lambda x: call_tf(lambda x: v * x * x)(x) + call_tf(tf.identity)(x)))(float(n))
  )


def test_of_a_fork_server():
  with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
    assert pool.submit(work, 3).result(LIMIT) == 13


# Ray forks to start its own processes, which run none of this one's threads.
@pytest.mark.filterwarnings(
  r"ignore:os\.fork\(\) was called:RuntimeWarning", "ignore:.*use of fork\\(\\):DeprecationWarning"
)
def test_of_ray():
  import ray  # noqa: PLC0415

  ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
  try:
    assert ray.get(ray.remote(work).remote(3), timeout=LIMIT) == 13
  finally:
    ray.shutdown()
