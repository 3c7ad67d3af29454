"""Shapes that the user declares, with `output_shape_dtype`: used where TensorFlow knows none, an
error where it has another."""

import jax
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf import call_tf, functional

X = np.array([[1.0, 3.0], [2.0, -1.0], [0.5, 4.0]], np.float32)
OTHER = "do not match the declared output_shape_dtype"


def declared(*shape, dtype=np.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def by_numpy(x):
  return tf.numpy_function(np.sin, [x], tf.float32)


def by_python(x):
  return tf.py_function(tf.sin, [x], tf.float32)


def in_graph(f):
  return tf.function(jax2tf.convert(f), autograph=False)


@pytest.mark.parametrize("function", [by_numpy, by_python])
@pytest.mark.parametrize("way", [lambda f: f, jax.jit, jax2tf.convert, in_graph])
def test_a_result_of_unknown_rank(function, way):
  f = call_tf(function, output_shape_dtype=declared(3, 2))
  np.testing.assert_allclose(way(lambda x: 2 * f(x))(X), 2 * np.sin(X), rtol=1e-6)


def test_a_result_of_unknown_rank_in_a_batch():
  f = call_tf(by_python, output_shape_dtype=declared(2))
  np.testing.assert_allclose(jax.vmap(f)(X), np.sin(X), rtol=1e-6)
  gradient = jax.jit(
    jax.grad(lambda x: call_tf(by_python, output_shape_dtype=declared(3, 2))(x).sum())
  )
  np.testing.assert_allclose(gradient(X), np.cos(X), rtol=1e-6)


@pytest.mark.parametrize("function", [by_numpy, by_python, tf.sin])
def test_another_shape_is_an_error_eagerly(function):
  with pytest.raises(
    ValueError, match=rf"{OTHER}.*returns float32\(3, 2\), declared is float32\(4, 2\)"
  ):
    call_tf(function, output_shape_dtype=declared(4, 2))(X)


@pytest.mark.parametrize("way", [jax.jit, jax2tf.convert, in_graph])
def test_another_shape_is_an_error_when_it_runs(way):
  f = call_tf(by_numpy, output_shape_dtype=declared(4, 2))
  with pytest.raises(Exception, match=r"\[3,2\] is not compatible with expected shape \[4,2\]"):
    way(lambda x: 2 * f(x))(X)


def test_a_dtype_of_64_bits_is_that_of_jax():
  f = call_tf(tf.sin, output_shape_dtype=declared(3, 2, dtype=np.float64))
  for run in (f, jax.jit(f)):
    assert run(X).dtype == np.float32


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_another_symbolic_size_is_one_error(native, graph):
  """It was nothing, an InternalError, or an error of XLA."""

  def fun(x):
    return call_tf(tf.sin, output_shape_dtype=declared(x.shape[0] + 5, 2))(x) + 1

  converted = jax2tf.convert(fun, polymorphic_shapes="b, _", native_serialization=native)
  run = tf.function(converted, autograph=False) if graph else converted
  with pytest.raises(
    ValueError, match=r"returns float32\(4, 2\) for b = 4, declared is float32\(b \+ 5, 2\)"
  ):
    run(X)


@pytest.mark.parametrize("graph", [False, True])
def test_a_symbolic_size_that_depends_on_values(graph):
  def positive(x):
    return tf.boolean_mask(x, x[:, 0] > 0)

  def fun(x):
    return 2 * call_tf(positive, output_shape_dtype=declared(x.shape[0], 2))(x)

  run = jax2tf.convert(fun, polymorphic_shapes="b, _")
  run = tf.function(run, autograph=False) if graph else run
  np.testing.assert_array_equal(run(X), 2 * X)
  with pytest.raises(tf.errors.InvalidArgumentError, match=OTHER):
    run(-X)


def test_sizes_that_the_function_does_not_take():
  """Its shape is known at none of the sizes that are tried."""

  def fun(x):
    shape = declared(x.shape[0] // 7, 7)
    return call_tf(lambda x: tf.reshape(x, [-1, 7]), output_shape_dtype=shape)(x)

  constraint = ["mod(b, 7) == 0"]
  converted = jax2tf.convert(fun, polymorphic_shapes="b", polymorphic_constraints=constraint)
  x = np.arange(14, dtype=np.float32)
  np.testing.assert_array_equal(converted(x), x.reshape(2, 7))


def test_a_size_that_xla_only_bounds():
  """XLA's type is not TensorFlow's shape: it was an error of MLIR's verifier."""
  k = tf.constant(1)
  largest = call_tf(lambda x: tf.math.top_k(x, k).values)
  np.testing.assert_array_equal(jax.jit(largest)(X), X.max(1, keepdims=True))
  positive = call_tf(lambda x: tf.boolean_mask(x, x > 0), output_shape_dtype=declared(5))
  np.testing.assert_array_equal(jax.jit(positive)(X), X[X > 0])
  with pytest.raises(ValueError, match=r"under_jit='inline': its results in XLA are"):
    jax.jit(call_tf(lambda x: tf.math.top_k(x, k).values, under_jit="inline"))(X)


def test_functional_of_any_batch():
  w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
  specs = [tf.TensorSpec([None, 2]), {"shift": tf.TensorSpec([None, None])}]
  apply, variables = functional(lambda x, more: x @ w + more["shift"], *specs)
  found = apply(variables, X, {"shift": X})
  np.testing.assert_allclose(found, X @ w.numpy() + X, rtol=1e-6)
  module = jax2tf.tf_module(lambda x: x @ w, tf.TensorSpec([None, 2]), library="nnx")
  np.testing.assert_allclose(module(X), X @ w.numpy(), rtol=1e-6)


def test_a_shape_that_tensorflow_infers_wrongly_is_named() -> None:
  """TF 2.21: SelfAdjointEigV2 without vectors has v f32[0] by its shape function, and f32[]."""

  def eigh(x: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.SelfAdjointEigV2(input=x, compute_v=False)

  words = r"infers another shape for a result of 'eigh', \(0,\), than the result has, \(\)"
  with pytest.raises(jax.errors.JaxRuntimeError, match=words):
    jax.block_until_ready(jax.jit(jax2tf.call_tf(eigh))(np.eye(3, dtype=np.float32)))
