"""TensorFlow functions inside functions that `convert` takes back to TensorFlow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf import call_tf

X = jnp.array([0.3, 0.7, 1.1])


def gradient(f, x, persistent=None):
  x = tf.constant(np.asarray(x))
  with tf.GradientTape(persistent=bool(persistent)) as tape:
    tape.watch(x)
    y = f(x)
  return tape.gradient(y, x)


def between(x):
  return jnp.cos(call_tf(lambda x: tf.sin(x) * 2)(x) + 1)


def in_jax(x):
  return jnp.cos(jnp.sin(x) * 2 + 1)


@pytest.mark.parametrize("native", [False, True], ids=["graph", "native"])
def test_values_and_gradients(native):
  f = jax2tf.convert(between, native_serialization=native)
  for call in (f, tf.function(f)):
    np.testing.assert_allclose(call(X), in_jax(X), rtol=1e-5)
    np.testing.assert_allclose(gradient(call, X), jax.grad(lambda x: in_jax(x).sum())(X), rtol=1e-5)
    second = (
      gradient(lambda x, call=call: gradient(call, x), X) if not native and call is f else None
    )
    if second is not None:
      np.testing.assert_allclose(second, jax.vmap(jax.grad(jax.grad(in_jax)))(X), rtol=1e-4)


@pytest.mark.parametrize("native", [False, True], ids=["graph", "native"])
def test_variables_stay_variables(native):
  v = tf.Variable(2.0)
  f = jax2tf.convert(lambda x: jnp.cos(call_tf(lambda x: x * v)(x)), native_serialization=native)
  np.testing.assert_allclose(f(X), jnp.cos(2 * X), rtol=1e-5)
  v.assign(3.0)
  np.testing.assert_allclose(f(X), jnp.cos(3 * X), rtol=1e-5)


def test_a_function_of_tensorflow_alone_is_itself():
  """No op is added but the named identities, and its derivatives are TensorFlow's, by its variables
  too."""
  v = tf.Variable(2.0)
  f = jax2tf.convert(call_tf(lambda x: tf.sin(x) * v))
  graph = tf.function(f).get_concrete_function(tf.TensorSpec([3])).graph
  assert {op.type for op in graph.get_operations()} == {
    "Placeholder",
    "Identity",
    "Sin",
    "ReadVariableOp",
    "Mul",
    "NoOp",
  }
  with tf.GradientTape() as tape:
    y = f(X)
  np.testing.assert_allclose(tape.gradient(y, v), jnp.sin(X).sum(), rtol=1e-5)


def test_writes_and_tables():
  v = tf.Variable(0.0)
  table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10.0, 20.0]), -1.0)

  def f(i):
    v.assign_add(1.0)
    return table.lookup(i)

  converted = jax2tf.convert(lambda i: call_tf(f)(i) + 1)
  assert converted(np.int32(2)) == 21
  assert v.numpy() == 1


@pytest.mark.parametrize(
  ("f", "spec", "expected"),
  [
    (lambda x: tf.pad(x, [[1, 1], [0, 0]]), "b, c", "b + 2, c"),
    (lambda x: tf.reshape(x, [-1]), "b, c", "b*c"),
    (lambda x: x[::2], "b, c", "floordiv(b + 1, 2), c"),
    (lambda x: tf.concat([x, x, x[:1]], 0), "b, c", "2*b + 1, c"),
    (lambda x: tf.reduce_sum(x, 0), "2*b, c", "c"),
  ],
)
def test_symbolic_shapes(f, spec, expected):
  evaluate = jax2tf.eval_polymorphic_shape(lambda x: call_tf(f)(x), polymorphic_shapes=[spec])
  expected_dims = jax.export.symbolic_shape(expected)
  assert evaluate(jax.ShapeDtypeStruct((4, 6), np.float32))[1] == str(expected_dims)


def test_symbolic_shapes_that_fit_no_formula():
  f = jax2tf.convert(lambda x: call_tf(lambda x: x[:100])(x), polymorphic_shapes=["b"])
  with pytest.raises(ValueError, match="output_shape_dtype"):
    f(X)


def test_polymorphic_gradients_of_a_variable():
  """What the gradient takes from the call has symbolic shapes, too."""
  v = tf.Variable(2.0)
  f = jax2tf.convert(lambda x: 1 * call_tf(lambda x: tf.sin(x * v))(x), polymorphic_shapes=["b"])
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = f(x)
  v.assign(5.0)
  by_x, by_v = tape.gradient(y, [x, v])
  np.testing.assert_allclose(by_x, 2 * jnp.cos(2 * X), rtol=1e-5)
  np.testing.assert_allclose(by_v, (X * jnp.cos(2 * X)).sum(), rtol=1e-5)
  graph = tf.function(f).get_concrete_function(tf.TensorSpec([None])).graph.as_graph_def()
  # an exported or compiled graph has no variables of a call's own
  assert "VarHandleOp" not in str(graph)


def test_polymorphic_gradients():
  f = jax2tf.convert(
    jax.vmap(jax.grad(lambda x: call_tf(tf.sin)(x).sum())), polymorphic_shapes=["b, _"]
  )
  np.testing.assert_allclose(f(X[None]), jnp.cos(X[None]), rtol=1e-5)
