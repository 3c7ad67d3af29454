"""Every model of the zoo: forward and gradient at two batch sizes, from one conversion."""

from __future__ import annotations

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.tools.lab.golden import GOLDEN_MODELS, golden_file, op_counts
from tests.support.case import close, xla_ops
from tests.support.models.zoo import MODELS


def as_arrays(tree):
  return jax.tree.map(np.asarray, tree)


def loss_of(fun):
  def loss(params, x):
    floats = [y for y in jax.tree.leaves(fun(params, x)) if jnp.issubdtype(y.dtype, np.floating)]
    return sum(jnp.mean(jnp.sin(y)) for y in floats)

  return loss


def specs(tree, poly):
  return jax.tree.map(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), tree)


@pytest.mark.sampled
@pytest.mark.parametrize("name", MODELS)
def test_forward(name):
  model = MODELS[name]
  fun, params = model.build()
  params = as_arrays(params)
  variables = jax.tree.map(tf.Variable, params)
  converted = jax2tf.convert(fun, polymorphic_shapes=[None, model.spec])
  concrete = tf.function(lambda x: converted(variables, x), autograph=False).get_concrete_function(
    specs(model.inputs(1), model.spec)
  )
  assert not xla_ops(concrete.graph)
  for batch in model.batches:
    x = model.inputs(batch)
    expected = jax.jit(fun)(params, x)
    close(concrete(jax.tree.map(tf.constant, x)), expected, rtol=model.rtol, atol=model.rtol)
    close(converted(variables, x), expected, rtol=model.rtol, atol=model.rtol)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.differentiable])
def test_gradient(name):
  model = MODELS[name]
  fun, params = model.build()
  params = as_arrays(params)
  variables = jax.tree.map(tf.Variable, params)
  flat = jax.tree.leaves(variables)
  loss = loss_of(fun)
  converted = jax2tf.convert(loss, polymorphic_shapes=[None, model.spec])

  @tf.function(autograph=False)
  def loss_and_gradient(x):
    with tf.GradientTape() as tape:
      y = converted(variables, x)
    return y, tape.gradient(y, flat)

  concrete = loss_and_gradient.get_concrete_function(specs(model.inputs(1), model.spec))
  assert not xla_ops(concrete.graph)
  for batch in model.batches:
    x = model.inputs(batch)
    value, grads = concrete(jax.tree.map(tf.constant, x))
    expected_value, expected = jax.jit(jax.value_and_grad(loss, allow_int=True))(params, x)
    # A mean of values of both signs, which may cancel to the precision of values about 1.
    np.testing.assert_allclose(
      value, expected_value, rtol=10 * model.rtol, atol=float(np.finfo(np.float32).eps)
    )
    pairs = [
      (g, e)
      for g, e in zip(grads, jax.tree.leaves(expected), strict=True)
      if e.dtype != jax.dtypes.float0
    ]
    # Some parameters, such as the bias of attention keys, have the gradient 0 up to rounding:
    # compare with the largest of all.
    largest = max(np.max(np.abs(e), initial=0.0) for _, e in pairs)
    for ours, theirs in pairs:
      np.testing.assert_allclose(ours, theirs, rtol=10 * model.rtol, atol=10 * model.rtol * largest)


@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_op_counts_are_golden(name):
  """A change of the graph is a decision: `make golden` writes the counts anew, and the diff is
  reviewed."""
  path = pathlib.Path(golden_file())
  assert path.exists(), f"no golden counts for JAX {jax.__version__}: run `make golden`"
  assert op_counts(MODELS[name]) == json.loads(path.read_text())[name]
