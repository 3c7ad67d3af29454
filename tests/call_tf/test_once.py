"""A derivative knows what the function read, drew and wrote when it was called: it neither asks nor
does it again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf import call_tf, functional

X = jnp.array([0.5, 1.0, 2.0])
V, STEP = tf.Variable(2.0), tf.Variable(2**40, dtype=tf.int64)
TABLE = tf.lookup.experimental.MutableHashTable(tf.int32, tf.float32, -1.0)


def restored():
  V.assign(2.0)
  STEP.assign(2**40)
  TABLE.insert(1, 2.0)


def write(cotangent):
  """Writes whatever the functions below read."""
  V.assign(10.0)
  STEP.assign(7)
  TABLE.insert(1, 10.0)
  return cotangent


def looped(x):
  return tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c * V), [0, x])[1]


def counted(x):
  return x * tf.cast(STEP - 2**40 + 2, tf.float32)


# Each is 2 * x, but for the cube of the loop.
READING = {
  "variable": lambda x: x * V,
  "loop": looped,
  "integers that JAX does not have": counted,
  "table": lambda x: x * tf.ensure_shape(TABLE.lookup(tf.constant(1)), []),
  "float64": lambda x: tf.cast(tf.cast(x, tf.float64) * tf.cast(V, tf.float64), tf.float32),
}


def written_between(f, x, jit):
  pull = (jax.jit if jit else lambda g: g)(
    lambda x: jax.vjp(f, x)[1](call_tf(write)(f(x) * 0 + 1))[0]
  )
  restored()
  return pull(x)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", READING)
def test_a_write_after_the_call(name, jit):
  f, factor = call_tf(READING[name]), 8 if name == "loop" else 2
  np.testing.assert_array_equal(written_between(f, X, jit), [factor] * 3)
  np.testing.assert_array_equal(written_between(jax.vmap(f), X, jit), [factor] * 3)
  np.testing.assert_array_equal(
    written_between(jax.checkpoint(lambda x: jnp.sin(f(x))), 0 * X, jit), [factor] * 3
  )


@pytest.mark.parametrize("name", ["variable", "loop"])
@pytest.mark.parametrize("native", [False, True], ids=["graph", "native"])
def test_a_write_after_the_call_of_a_converted_function(name, native):
  f = jax2tf.convert(lambda x: 1 * call_tf(READING[name])(x), native_serialization=native)

  def gradients():
    restored()
    x = tf.constant(X)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = f(x)
    V.assign(10.0)
    return tape.gradient(y, [x, V])

  for call in (gradients, tf.function(gradients, autograph=False)):
    by_x, by_v = call()
    np.testing.assert_allclose(by_x, [8 if name == "loop" else 2] * 3)
    np.testing.assert_allclose(by_v, 3.5 * (12 if name == "loop" else 1))


def test_what_is_computed_again_reads_no_more():
  """Rematerialisation, of a call without derivatives."""
  f = jax.checkpoint(lambda x, i: jnp.sin(x * call_tf(lambda i: tf.cast(i, tf.float32) * V)(i)))
  restored()
  _, pull = jax.vjp(lambda x: f(x, 1), 0.0)
  V.assign(10.0)
  assert pull(1.0)[0] == 2


def drop(x):
  return x * tf.cast(tf.random.uniform(tf.shape(x)) > 0.5, tf.float32)


def value_and_cotangent(f, x):
  y, pull = jax.vjp(f, x)
  return y, pull(y)[0]


def value_and_tangent(f, x):
  return jax.jvp(f, (x,), (x,))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_random_numbers_are_drawn_once(jit):
  f, ones = call_tf(drop), jnp.ones((3, 8))
  for g in (f, jax.vmap(f), jax.checkpoint(f), functools.partial(jax.lax.map, f)):
    for transform in (value_and_tangent, value_and_cotangent):
      of_g = functools.partial(transform, g)
      y, derivative = (jax.jit(of_g) if jit else of_g)(ones)
      np.testing.assert_array_equal(derivative, y)
      assert 0 < y.sum() < 24
  hessian = jax.hessian(lambda x: (f(x) ** 2).sum())(ones[0])
  assert set(np.diag(hessian).tolist()) == {0, 2}
  np.testing.assert_array_equal(hessian, np.diag(np.diag(hessian)))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_writes_are_done_once(jit):
  mean = tf.Variable(1.0)

  def centred(x):
    mean.assign(0.5 * mean + 0.5 * tf.reduce_mean(x))
    return (x - tf.reduce_mean(x)) ** 3 * mean.read_value()

  for transform in (jax.grad, jax.hessian):
    mean.assign(1.0)
    found = (jax.jit if jit else lambda f: f)(transform(lambda x: call_tf(centred)(x).sum()))(X)
    jax.effects_barrier()
    # TensorFlow has no derivative through a write.
    np.testing.assert_allclose(
      found, transform(lambda x: jnp.sum((x - x.mean()) ** 3) * mean.numpy())(X), rtol=1e-5
    )
    np.testing.assert_allclose(mean, 0.5 + 0.5 * X.mean(), rtol=1e-6)


def test_python_is_called_once():
  calls = []

  def f(x):
    return x * tf.ensure_shape(
      tf.numpy_function(lambda: (calls.append(1), np.float32(len(calls)))[1], [], tf.float32), []
    )

  assert jax.grad(call_tf(f))(3.0) == jax.jit(jax.grad(lambda x: call_tf(f)(x) - x))(3.0) == 1
  assert len(calls) == 2


def test_what_cannot_be_kept():
  def f(x):
    return tf.while_loop(
      lambda i, c: i < 3, lambda i, c: (i + 1, c * tf.random.uniform([])), [0, x]
    )[1]

  with pytest.raises(
    LookupError,
    match=r"(?s)'f' has no derivative.*RandomUniform.*variant, which JAX does not "
    r"have",
  ):
    jax.grad(call_tf(f))(1.0)


def test_a_batch_of_variables():
  apply, _ = functional(lambda x: x * V, 1.0)
  for transform, expected in ((lambda f: f, X * 3), (jax.grad, jnp.full(3, 3.0))):
    mapped = jax.vmap(transform(lambda v, x: apply([v], x)), (0, None))
    np.testing.assert_allclose(jax.jit(mapped)(X, 3.0), expected)
