"""Functions of Lineax, Optimistix and Diffrax, whose primitives have no rule of ours, and of
NumPyro.

Value and gradient, those of two after a SavedModel.

docs/reports/models.md has more of them, each after a SavedModel; these take little time to
trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support import scientific_rows

ROWS = {
  "lineax": ["LU, vmap"],
  "optimistix": ["root_find, Newton"],
  "diffrax": ["Euler"],
  "numpyro": ["log_density"],
}
NAMES = [(library, name) for library, names in ROWS.items() for name in names]


def equinox() -> tuple[Callable[..., Any], tuple[Any, ...]]:
  """A loop that keeps checkpoints for its gradient, around a function that Equinox compiles on its
  own."""
  sine = eqxi.noinline(jnp.sin)

  def fun(x: Any, factor: Any) -> Any:
    def body(carry: Any) -> Any:
      return carry[0] + 1, sine(carry[1]) * factor

    return eqxi.while_loop(
      lambda carry: carry[0] < 3, body, (0, x), max_steps=4, kind="checkpointed"
    )[1]

  return fun, (np.array([0.1, 0.2, 0.3]), 1.5)


def with_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
  """args -> (result, gradient of the sum of its sines)."""

  def sine_of(*args: Any) -> tuple[Any, Any]:
    y = fun(*args)
    return jnp.sum(jnp.sin(y)), y

  def both(*args: Any) -> Any:
    (_, y), gradient = jax.value_and_grad(sine_of, range(len(args)), has_aux=True)(*args)
    return y, gradient

  return jax.jit(both)


def pull(function: Callable[..., Any], *args: tf.Tensor) -> Any:
  with tf.GradientTape() as tape:
    tape.watch(args)
    y = function(*args)
    total = tf.reduce_sum(tf.sin(y))
  return y, tape.gradient(total, args)


@pytest.mark.parametrize(("library", "name"), [("equinox", ""), *NAMES])
def test_value_and_gradient(library: str, name: str, tmp_path: Any) -> None:
  with jax.enable_x64(True):
    fun, args = equinox() if library == "equinox" else scientific_rows.row(library, name)
    specs = [tf.TensorSpec(np.shape(x), tf.float64) for x in args]
    expected = with_gradient(fun)(*args)
    function = tf.function(jax2tf.convert(fun), autograph=False, input_signature=specs)
    if library in ("lineax", "equinox"):
      module = tf.Module()
      module.f = function
      tf.saved_model.save(module, str(tmp_path))
      function = tf.saved_model.load(str(tmp_path)).f
    actual = tf.function(pull, autograph=False)(
      function, *(tf.constant(x, tf.float64) for x in args)
    )
    jax.tree.map(
      lambda y, wanted: np.testing.assert_allclose(y, wanted, rtol=1e-9), actual, expected
    )
