"""TensorFlow's pfor (tf.vectorized_map, Jacobians) over converted functions with an LU inside,
whose kernel is a branch for CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.support.case import close

SQUARES = (np.random.default_rng(0).random((4, 3, 3)) + 3 * np.eye(3)).astype(np.float32)
SINGULAR = SQUARES * np.array([1, 0, 1, 1], np.float32)[:, np.newaxis, np.newaxis]
ROWS = {
  "lu": (lambda a: list(lax.linalg.lu(a)), SINGULAR),
  "solve": (lambda a: [jnp.linalg.solve(a, a + 1)], SQUARES),
}


@pytest.mark.parametrize("row", ROWS)
def test_rows_with_an_lu(row):
  fun, x = ROWS[row]
  got = tf.vectorized_map(jax2tf.convert(fun), tf.constant(x))
  close(list(got), jax.vmap(fun)(x), rtol=1e-5, atol=1e-5)


def test_jacobian_whose_backward_pass_has_an_lu():
  def fun(b):
    def solve(_, b):
      return jnp.linalg.solve(SQUARES[0] + jnp.sin(b), b)

    return lax.custom_linear_solve(lambda x: SQUARES[0] @ x, b, solve, solve)

  converted = jax2tf.convert(fun)

  @tf.function(autograph=False)
  def jacobian(b):
    with tf.GradientTape() as tape:
      tape.watch(b)
      x = converted(b)
    return tape.jacobian(x, b)

  b = np.arange(3, dtype=np.float32)
  close(jacobian(tf.constant(b)), jax.jacrev(fun)(b), rtol=1e-4, of_the_largest=True)
