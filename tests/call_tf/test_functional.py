"""The variables of TensorFlow functions as arguments of JAX functions."""

import ast
import functools
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorflow as tf

import jax2tf
from jax2tf import functional

X = np.array([[0.3, 0.7], [1.1, -0.2]], np.float32)


class Layer(tf.Module):
  def __init__(self):
    self.w = tf.Variable([[1.0, 2.0], [0.5, -1.0]])
    self.b = tf.Variable([0.1, 0.2])
    self.scale = tf.Variable(2.0, trainable=False)

  @tf.function(input_signature=[tf.TensorSpec([None, 2])])
  def __call__(self, x):
    return tf.tanh(x @ self.w + self.b)

  @tf.function(input_signature=[tf.TensorSpec([None, 2])])
  def scaled(self, x):
    return self(x) * self.scale


def in_jax(variables, x):
  w, b = variables  # in the order of their first use
  return jnp.tanh(x @ w + b)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  path = tmp_path_factory.mktemp("layer")
  tf.saved_model.save(Layer(), str(path))
  return str(path)


def test_optax_trains_a_saved_model(directory, tmp_path, without_jax):
  """In one jitted step of XLA's code alone; then its variables take the values, and it is saved
  again."""
  model = tf.saved_model.load(directory)
  apply, variables = functional(model, tf.TensorSpec([2, 2]))
  before = [v.numpy() for v in apply.variables]
  optimizer = optax.adam(0.1)

  def step(apply, variables, state):
    grads = jax.grad(lambda v: ((apply(v, X) - 0.25) ** 2).mean())(variables)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(variables, updates), state

  steps = [jax.jit(functools.partial(step, f)) for f in (apply, in_jax)]
  assert "callback" not in steps[0].lower(variables, optimizer.init(variables)).as_text()
  trained = [(variables, optimizer.init(variables))] * 2
  for _ in range(5):
    trained = [step(*state) for step, state in zip(steps, trained, strict=True)]
  variables, expected = trained[0][0], trained[1][0]
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), variables, expected)
  for v, value in zip(apply.variables, before, strict=True):
    np.testing.assert_array_equal(v, value)  # the model keeps its own values
  for v, value in zip(apply.variables, variables, strict=True):
    v.assign(value)
  tf.saved_model.save(model, str(tmp_path))
  np.testing.assert_allclose(tf.saved_model.load(str(tmp_path))(X), in_jax(variables, X), rtol=1e-5)
  code = (
    "import tensorflow as tf; "
    f"print(tf.saved_model.load({str(tmp_path)!r})({X.tolist()}).numpy().tolist())"
  )
  done = subprocess.run(
    [without_jax, "-c", code], check=True, capture_output=True, text=True, timeout=300
  )
  np.testing.assert_allclose(
    ast.literal_eval(done.stdout.splitlines()[-1]), in_jax(variables, X), rtol=1e-5
  )


@pytest.mark.parametrize("scaled", [False, True], ids=["inlined", "callback"])
def test_derivatives(directory, scaled):
  """Also by callback, as a variable that is not trainable asks for, and eagerly."""
  model = tf.saved_model.load(directory)
  apply, variables = functional(model.scaled if scaled else model, X)
  other = [v + 1 for v in variables]

  def expected(variables, x):
    return in_jax(variables, x) * (2 if scaled else 1)

  for transform in (
    lambda f: f,
    lambda f: jax.grad(lambda *a: f(*a).sum(), (0, 1)),
    lambda f: jax.jit(jax.grad(lambda *a: f(*a).sum(), (0, 1))),
    lambda f: jax.jit(lambda v, x: jax.jvp(f, (v, x), (v, x))),
    lambda f: jax.jit(jax.jacrev(f)),
    lambda f: jax.jit(jax.hessian(lambda v, x: f(v, x).sum())),
  ):
    found, want = transform(apply)(other, X), transform(expected)(other, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, want)


def test_converted(directory):
  """Each call in the graph has variables of its own."""
  apply, variables = functional(tf.saved_model.load(directory), X)
  other = [v + 1 for v in variables]
  f = tf.function(jax2tf.convert(lambda v, x: 2 * apply(v, x)))
  with tf.GradientTape() as tape:
    tensors = list(map(tf.constant, other))
    tape.watch(tensors)
    y = f(tensors, X)
  np.testing.assert_allclose(y, 2 * in_jax(other, X), rtol=1e-5)
  expected = jax.grad(lambda v: 2 * in_jax(v, X).sum())(other)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-5), tape.gradient(y, tensors), expected
  )


def test_a_dtype_that_jax_has_not():
  v = tf.Variable([1.0, 2.0], dtype=tf.float64)
  apply, variables = functional(lambda x: tf.cast(x, tf.float64) * v, X[0])
  np.testing.assert_allclose(
    jax.jit(jax.grad(lambda v, x: apply(v, x).sum()))(variables, X[0])[0], X[0]
  )


def test_refusals(directory):
  model = tf.saved_model.load(directory)
  apply, variables = functional(model, X)
  with pytest.raises(ValueError, match="no trainable"):
    functional(tf.sin, X)
  with pytest.raises(ValueError, match="have the shapes"):
    apply(variables[:1], X)

  def writes(x):
    model.b.assign_add([1.0, 1.0])
    return x + model.b

  apply, variables = functional(writes, X[0])
  with pytest.raises(ValueError, match="AssignAddVariableOp"):
    apply(variables, X[0])
