"""Derivatives by the tf.Variables that a TensorFlow function captures, under `convert` those of the
same function in TensorFlow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf import call_tf
from jax2tf.converters import saved_model

X = np.array([0.3, 0.7, 1.1], np.float32)


class Scaled(tf.Module):
  def __init__(self):
    self.w = tf.Variable([1.0, 2.0, 3.0])
    self.scale = tf.Variable(0.5, trainable=False)

  @tf.function(input_signature=[tf.TensorSpec([3])])
  def __call__(self, x):
    return tf.sin(x * self.w) * self.scale


SCALED = Scaled()


@jax.jit
def kept(x):  # JAX keeps its trace
  return call_tf(SCALED)(x)


def between(x):
  looped, _ = jax.lax.scan(
    lambda total, row: (total + kept(row), None), jnp.zeros(3), jnp.stack([x, 2 * x])
  )
  return (
    jnp.cos(kept(x))
    + looped
    + jax.checkpoint(kept)(x)
    + jax.vmap(call_tf(lambda x: tf.sin(x * SCALED.w[0])))(x)
  )


def in_tensorflow(x):
  return tf.cos(SCALED(x)) + 2 * SCALED(x) + SCALED(2 * x) + tf.sin(x * SCALED.w[0])


def gradients(f, x, sources):
  x = tf.constant(x)
  with tf.GradientTape() as tape:
    tape.watch([x, *sources])
    y = f(x)
  return [tf.convert_to_tensor(g) for g in tape.gradient(y, [x, *sources])]


@pytest.mark.parametrize("native", [False, True], ids=["graph", "native"])
def test_gradients(native):
  kept(jnp.asarray(X))
  f = jax2tf.convert(between, native_serialization=native)
  expected = gradients(in_tensorflow, X, [SCALED.w, SCALED.scale])
  for call in (f, tf.function(f)):
    np.testing.assert_allclose(call(X), in_tensorflow(X), rtol=1e-5)
    for found, g in zip(gradients(call, X, [SCALED.w, SCALED.scale]), expected, strict=True):
      np.testing.assert_allclose(found, g, rtol=1e-5)
  # no trace with shadows is left
  np.testing.assert_allclose(jax.jit(between)(X), in_tensorflow(X), rtol=1e-5)


def test_gradients_of_gradients():
  """By the variables of a gradient that JAX takes, and of one that the tape takes."""
  f = jax2tf.convert(jax.grad(lambda x: (call_tf(SCALED)(x) ** 2).sum()))
  g = jax2tf.convert(lambda x: (call_tf(SCALED)(x) ** 2).sum())

  def expected(x):
    return gradients(lambda x: tf.reduce_sum(SCALED(x) ** 2), x, [])[0]

  want = gradients(expected, X, [SCALED.w])
  for call in (f, tf.function(f), lambda x: gradients(g, x, [])[0]):
    for found, of in zip(gradients(call, X, [SCALED.w]), want, strict=True):
      np.testing.assert_allclose(found, of, rtol=1e-4)


def test_rows_of_an_embedding_of_a_loaded_model(tmp_path):
  class Embedding(tf.Module):
    def __init__(self):
      self.table = tf.Variable(tf.ones([4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def __call__(self, ids):
      return tf.gather(self.table, ids)

  tf.saved_model.save(Embedding(), str(tmp_path))
  model = tf.saved_model.load(str(tmp_path))
  ids = np.array([1, 1, 3], np.int32)
  f = jax2tf.convert(
    lambda ids: 2 * call_tf(model, output_shape_dtype=jax.ShapeDtypeStruct((3, 2), np.float32))(ids)
  )
  with tf.GradientTape() as tape:
    y = f(ids)
  np.testing.assert_array_equal(tape.gradient(y, model.table), [[0, 0], [4, 4], [0, 0], [2, 2]])


def test_none_is_never_said_in_silence():
  f = jax2tf.convert(lambda x: 2 * call_tf(SCALED)(x), with_gradient=False)
  with pytest.raises(LookupError, match="with_gradient"):
    gradients(f, X, [SCALED.w])
  rule = jax.custom_vjp(lambda x: kept(x))
  rule.defvjp(lambda x: (x, x), lambda x, c: (c,))
  with pytest.raises(Exception, match="closed-over value"):
    gradients(jax2tf.convert(lambda x: 2 * rule(x)), X, [SCALED.w])


def test_variables_whose_shape_is_not_known():
  grows = tf.Variable(tf.ones([3]), shape=[None])
  f = call_tf(lambda x: x * tf.reduce_sum(grows) * SCALED.scale)
  with pytest.warns(UserWarning, match="will be None: their shapes are not known"):
    converted = jax2tf.convert(lambda x: 2 * f(x))
    found = gradients(converted, X, [SCALED.scale])
  np.testing.assert_allclose(found[1], 6 * X.sum(), rtol=1e-6)
  with pytest.raises(ValueError, match=r"functional: the shapes of .* are not known"):
    jax2tf.functional(lambda x: x * tf.reduce_sum(grows), X)
  assert jax.grad(f)(1.0) == 1.5  # which needs the sum alone
  with pytest.raises(LookupError, match=r"has no derivative.*what it captures.*depend on values"):
    jax.grad(call_tf(lambda x: tf.reduce_sum(x * grows)))(1.0)


def test_a_saved_model_has_them(tmp_path):
  """It saves the variables that call_tf captures; loaded, they can be written, and have
  gradients."""
  other = Scaled()
  model = saved_model.Model({"k": X}, with_gradient=True)
  model.add(lambda params, x: jnp.cos(call_tf(other)(x)) * params["k"], inputs={"x": "f32[3]"})
  model.add(lambda params, x: 2 * call_tf(other)(x), inputs={"x": "f32[3]"}, signatures="twice")
  loaded = tf.saved_model.load(str(model.save(tmp_path)))
  assert len(loaded.captured_variables) == 2
  assert len(loaded.trainable_variables) == 2  # "k" and "w"
  w, scale = sorted(loaded.captured_variables, key=lambda v: -v.shape.rank)
  w.assign([3.0, 2.0, 1.0])
  other.w.assign(w)

  def expected(x):
    return tf.cos(other(x)) * X

  np.testing.assert_allclose(loaded(X), expected(X), rtol=1e-5)
  for found, g in zip(
    gradients(loaded, X, [w, scale]), gradients(expected, X, [other.w, other.scale]), strict=True
  ):
    np.testing.assert_allclose(found, g, rtol=1e-5)
