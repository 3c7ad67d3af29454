"""TensorFlow models as modules of Flax and Equinox, trained by optax and taken back."""

import equinox as eqx
import keras
import numpy as np
import optax
import pytest
import tensorflow as tf
from flax import nnx

import jax2tf

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
Y = np.sin(2 * X[:, :1])


def keras_model():
  keras.utils.set_random_seed(0)
  return keras.Sequential(
    [
      keras.Input((3,)),
      keras.layers.Dense(8, "tanh"),
      keras.layers.BatchNormalization(),
      keras.layers.Dense(1),
    ]
  )


def loss(module, x):
  return ((module(x) - Y) ** 2).mean()


def trained_by_nnx(module):
  optimizer = nnx.Optimizer(module, optax.adam(0.05), wrt=nnx.Param)

  @nnx.jit
  def step(module, optimizer):
    value, grads = nnx.value_and_grad(loss)(module, X)
    optimizer.update(module, grads)
    return value

  return [float(step(module, optimizer)) for _ in range(5)], module


def trained_by_equinox(module):
  optimizer = optax.adam(0.05)

  @eqx.filter_jit
  def step(module, state):
    value, grads = eqx.filter_value_and_grad(loss)(module, X)
    updates, state = optimizer.update(grads, state)
    return value, eqx.apply_updates(module, updates), state

  losses, state = [], optimizer.init(eqx.filter(module, eqx.is_array))
  for _ in range(5):
    value, module, state = step(module, state)
    losses.append(float(value))
  return losses, module


def test_a_keras_model():
  """Both libraries train it alike, and it goes back into the model."""
  found = {}
  for library, train in (("nnx", trained_by_nnx), ("equinox", trained_by_equinox)):
    model = keras_model()
    before = model(X).numpy()
    module = jax2tf.tf_module(model, tf.TensorSpec([4, 3]), library=library)
    np.testing.assert_allclose(module(X), before, rtol=1e-5, atol=1e-6)
    found[library], module = train(module)
    np.testing.assert_array_equal(model(X), before)
    assert module.assigned() is model
    np.testing.assert_allclose(model(X), module(X), rtol=1e-5, atol=1e-6)
  assert found["nnx"][-1] < 0.7 * found["nnx"][0]
  np.testing.assert_allclose(found["nnx"], found["equinox"], rtol=1e-4)


def test_a_saved_model(tmp_path):
  class Model(tf.Module):
    def __init__(self):
      self.w = tf.Variable([[1.0], [2.0], [-1.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def __call__(self, x):
      return tf.tanh(x @ self.w)

  tf.saved_model.save(Model(), str(tmp_path / "before"))
  module = jax2tf.tf_module(tf.saved_model.load(str(tmp_path / "before")), X, library="equinox")
  losses, module = trained_by_equinox(module)
  assert losses[-1] < losses[0]
  tf.saved_model.save(module.assigned(), str(tmp_path / "after"))
  np.testing.assert_allclose(
    tf.saved_model.load(str(tmp_path / "after"))(X), eqx.filter_jit(module)(X), rtol=1e-5
  )


def test_refusals():
  with pytest.raises(ValueError, match=r"library = 'haiku' is not one of \('nnx', 'equinox'\)"):
    jax2tf.tf_module(keras_model(), X, library="haiku")
