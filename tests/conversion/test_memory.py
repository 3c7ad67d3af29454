"""What dies with a converted function: the arrays that it closes over, its graphs, the parameters
of a saved model."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from tensorflow.python.framework import ops

import jax2tf
from jax2tf.converters import saved_model
from tests.support import measure

X = np.ones((2, 3), np.float32)


def _eagerly(converted: Callable[..., Any]) -> None:
  converted(X)


def _in_a_graph(converted: Callable[..., Any]) -> None:
  tf.function(converted, autograph=False)(X)


def _under_a_tape(converted: Callable[..., Any]) -> None:
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = converted(x)
  assert tape.gradient(y, x) is not None


def _around_a_graph(converted: Callable[..., Any]) -> None:
  _under_a_tape(tf.function(converted, autograph=False))


def _in_a_graph_with_its_tape(converted: Callable[..., Any]) -> None:
  tf.function(_under_a_tape, autograph=False)(converted)


def _loops(w: jax.Array, x: Any) -> Any:
  """With helpers in JAX, whose jaxprs are remembered."""
  step = jax.jit(lambda carry: jnp.tanh(carry @ w))
  x = jax.device_put(x, jax.devices()[0])  # so that prepare looks for where each equation runs
  y, _ = lax.scan(lambda carry, i: (step(carry) + i, None), x, jnp.arange(3.0))
  return (
    lax.cond(x.sum() > 0, step, jnp.sin, y)
    + lax.scan(lambda _, i: (None, jnp.sin(i)), None, jnp.arange(3.0))[1]
  )


@pytest.mark.parametrize("native", [False, True], ids=["graph", "native"])
@pytest.mark.parametrize(
  "use", [_eagerly, _in_a_graph, _under_a_tape, _around_a_graph, _in_a_graph_with_its_tape]
)
def test_closed_over_arrays_die_with_the_function(use, native):
  weights = jnp.eye(3)
  alive = weakref.ref(weights)
  converted = jax2tf.convert(lambda x, w=weights: _loops(w, x), native_serialization=native)
  use(converted)
  del converted, weights
  gc.collect()
  assert alive() is None


@pytest.mark.parametrize("with_gradient", [False, True])
def test_parameters_die_with_an_exported_model(with_gradient, tmp_path):
  registered = set(ops.gradient_registry.list())
  params = {"w": jnp.eye(3)}
  model = saved_model.Model(params, with_gradient=with_gradient)
  model.add(lambda params, x: jnp.sin(x @ params["w"]), inputs={"x": "f32[b,3]"})
  # A graph holds the handles of the variables that it captures, and with them their memory.
  graph = weakref.ref(model.signatures["serving_default"].get_concrete_function().graph)
  model.save(tmp_path)
  weights = weakref.ref(params["w"])
  del model, params
  gc.collect()
  assert graph() is None
  assert weights() is None
  assert set(ops.gradient_registry.list()) <= registered


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_functions_that_come_and_go_leave_nothing():
  """tf.function around tf.custom_gradient keeps 60 kB of each (TF 2.21)."""

  def use(i: int) -> None:
    weights = np.full((3, 3), i, np.float32)
    _around_a_graph(jax2tf.convert(lambda x: jnp.sin(x @ weights)))

  for i in range(10):
    use(i)
  assert measure.growth_megabytes(lambda: [use(i) for i in range(20)]) < 0.8
