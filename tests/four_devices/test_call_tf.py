"""TensorFlow functions in JAX programs over several devices: as XLA's code, by callback, and with a
variable."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax2tf import call_tf

MESH = Mesh(np.array(jax.devices()), ("x",))
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(8, 2)
V = tf.Variable(2.0)

FUNCTIONS = {
  "inline": (functools.partial(call_tf, under_jit="inline"), lambda x: tf.sin(2 * x)),
  "callback": (functools.partial(call_tf, under_jit="callback"), lambda x: tf.sin(2 * x)),
  "variable": (call_tf, lambda x: tf.sin(V * x)),
}


def spread(transform):
  return {
    "jit": jax.jit(transform, in_shardings=NamedSharding(MESH, PartitionSpec("x"))),
    "shard_map": jax.jit(
      jax.shard_map(transform, mesh=MESH, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))
    ),
    "pmap": lambda x: jax.pmap(transform)(x.reshape(4, 2, 2)).reshape(x.shape),
  }


@pytest.mark.parametrize("over", ["jit", "shard_map", "pmap"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_over_devices(name, over):
  wrapped, f = FUNCTIONS[name]
  f = wrapped(f)
  np.testing.assert_allclose(spread(f)[over](X), np.sin(2 * X), rtol=1e-5, atol=1e-6)
  pulled = spread(lambda x: jax.vjp(f, x)[1](jnp.ones_like(x))[0])[over](X)
  np.testing.assert_allclose(pulled, 2 * np.cos(2 * X), rtol=1e-5, atol=1e-6)


def test_summed_over_devices():
  """By what the devices share, too."""
  f = call_tf(lambda x, w: tf.sin(x * w), under_jit="callback")
  total = jax.shard_map(
    lambda x, w: jax.lax.psum(f(x, w).sum(), "x"),
    mesh=MESH,
    in_specs=(PartitionSpec("x"), PartitionSpec()),
    out_specs=PartitionSpec(),
  )
  by_x, by_w = jax.jit(jax.grad(total, (0, 1)))(X + 0.5, 2.0)
  np.testing.assert_allclose(by_x, 2 * np.cos(2 * X + 1), rtol=1e-5)
  np.testing.assert_allclose(by_w, ((X + 0.5) * np.cos(2 * X + 1)).sum(), rtol=1e-5)
