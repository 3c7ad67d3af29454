"""A ResNet of symbolic batch, height and width, converted once: values and gradients at five
sizes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import xla_ops
from tests.support.models.zoo import MODELS

# Multiples of what all strides divide together: of other sizes JAX cannot tell that both branches
# of a block fit.
SIZES = {
  "b, 8*h, 8*w, 3": [(1, 8, 8), (3, 16, 24), (2, 32, 8), (1, 40, 48), (5, 24, 16)],
  "b, 16*h, 40, 3": [(1, 16, 40), (3, 32, 40), (2, 48, 40), (4, 64, 40), (7, 16, 40)],
}


def loss(apply, variables, x):
  """Also of x, whose gradient goes through every convolution."""
  return jnp.mean(jnp.sin(apply(variables, x)))


@pytest.mark.parametrize("spec", SIZES)
def test_five_sizes(spec):
  apply, variables = MODELS["linen_resnet"].build()
  value_and_grad = jax.value_and_grad(functools.partial(loss, apply), argnums=(0, 1))
  in_jax = jax.jit(lambda variables, x: (apply(variables, x), value_and_grad(variables, x)))
  tensors = tf.nest.map_structure(tf.Variable, jax.tree.map(np.asarray, variables))
  logits = jax2tf.convert(apply, polymorphic_shapes=[None, spec])
  converted_loss = jax2tf.convert(functools.partial(loss, apply), polymorphic_shapes=[None, spec])

  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None, None, None if "w" in spec else 40, 3])]
  )
  def in_tf(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = converted_loss(tensors, x)
    return logits(tensors, x), (value, tape.gradient(value, (tensors, x)))

  assert not xla_ops(in_tf.get_concrete_function().graph)
  for b, h, w in SIZES[spec]:
    x = np.random.default_rng(h).standard_normal((b, h, w, 3)).astype(np.float32)
    expected, found = in_jax(variables, x), in_tf(tf.constant(x))
    flat = jax.tree.leaves(found)
    assert len(flat) == len(jax.tree.leaves(expected))
    for e, f in zip(jax.tree.leaves(expected), flat, strict=True):
      # Sums over all pixels in another order: relative to the largest entry, as for the zoo.
      np.testing.assert_allclose(
        f, e, rtol=3e-5, atol=3e-5 * max(float(jnp.abs(e).max()), 1e-3), err_msg=f"{b, h, w}"
      )
