"""Files of functions whose variables are arguments: each variable has its own value there."""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
import jax2tf.keras
from jax2tf import functional
from jax2tf.converters import saved_model

X = np.array([[0.3, -0.4], [0.5, 0.7], [-0.2, 0.9]], np.float32)
SPEC = tf.TensorSpec([3, 2])


def values_of(n):
  return [np.random.default_rng(i).normal(size=(2, 2)).astype(np.float32) / 2 for i in range(n)]


def variables_of(n):
  return [tf.Variable(a, name="same") for a in values_of(n)]


def chain(values, x, tanh=tf.tanh):
  for value in values:
    x = tanh(x @ value)
  return x


def in_jax(values, x):
  return 2 * chain(values, x, jnp.tanh)


def loss(f, *arguments):
  return (f(*arguments) ** 2).sum()


def gradients(f, x, *sources):
  """The results of f(x), and the gradients of the loss by x and by the sources."""
  with tf.GradientTape() as tape:
    tape.watch([x, *sources])
    y = f(x)
    total = tf.reduce_sum(y**2)
  unconnected = tf.UnconnectedGradients.ZERO
  return y, tape.gradient(total, [x, *sources], unconnected_gradients=unconnected)


def assert_close(found, expected):
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


def by_tensorflow(apply, values, folder):
  module = tf.Module()
  module.values = [tf.Variable(v) for v in values]
  converted = jax2tf.convert(lambda p, x: 2 * apply(p, x))
  module.f = tf.function(
    lambda x: converted([*module.values], x), autograph=False, input_signature=[SPEC]
  )
  tf.saved_model.save(module, str(folder))
  loaded = tf.saved_model.load(str(folder))
  return loaded.f, loaded.values


def by_parameters(apply, values, folder):
  path = saved_model.save(
    lambda p, x: 2 * apply(p, x),
    values,
    folder,
    inputs={"x": "f32[b,2]"},
    outputs=["y"],
    with_gradient=True,
  )
  loaded = tf.saved_model.load(str(path))
  return lambda x: loaded.signatures["serving_default"](x=x)["y"], []


def keras_model(apply, values):
  layer = jax2tf.keras.Layer(lambda p, x: 2 * apply(p, x), values, inputs={"x": "f32[b,2]"})
  return keras.Sequential([keras.Input((2,)), layer])


def by_keras(apply, values, folder):
  keras_model(apply, values).save(folder / "m.keras")
  loaded = keras.models.load_model(folder / "m.keras", safe_mode=False)
  return loaded, [w.value for w in loaded.trainable_weights]


def by_export(apply, values, folder):
  keras_model(apply, values).export(str(folder), verbose=False)
  loaded = tf.saved_model.load(str(folder))
  return lambda x: loaded.serve(x), []


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("saved", [by_tensorflow, by_parameters, by_keras, by_export])
def test_each_variable_has_its_value_in_a_file(saved, n, tmp_path):
  """TensorFlow names a variable that has no name when it loads a file: it was one variable for
  all."""
  apply, values = functional(functools.partial(chain, variables_of(n)), SPEC)
  values = [3 * v for v in values]
  f, parameters = saved(apply, values, tmp_path)
  found, cotangents = gradients(f, tf.constant(X), *parameters)
  by_values, by_x = jax.grad(functools.partial(loss, in_jax), (0, 1))(values, X)
  assert_close(found, in_jax(values, X))
  assert_close(cotangents, [by_x, *by_values[: len(parameters)]])


def test_two_sets_of_values_in_a_file(tmp_path):
  apply, values = functional(functools.partial(chain, variables_of(2)), SPEC)

  def difference(p, x):
    return apply(p["a"], x) - apply(p["b"], x)

  sets = {"a": values, "b": values[::-1]}
  options = {"inputs": {"x": "f32[b,2]"}, "outputs": ["y"]}
  path = saved_model.save(difference, sets, tmp_path, **options)
  loaded = tf.saved_model.load(str(path))
  assert_close(loaded.signatures["serving_default"](x=tf.constant(X))["y"], difference(sets, X))


@tf.custom_gradient
def twice_the_gradient(x):
  return x * 1.0, lambda dy: 2 * dy


def kinds(a, b, c):
  """Functions that read three variables in all the ways that TensorFlow has."""

  def loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, chain([a, b, c], x)), [0, x])[1]

  inner = tf.function(functools.partial(chain, [c, a]), autograph=False)
  deeper = tf.function(lambda x: inner(tf.tanh(x @ b)), autograph=False)
  rows = [0, 1, 1]
  yield "loop", loop
  yield "calls", deeper
  yield "compiled", tf.function(lambda x: deeper(x) @ a, autograph=False, jit_compile=True)
  yield "branches", lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: deeper(x), lambda: x @ a)
  yield (
    "switch",
    lambda x: tf.switch_case(tf.size(x) % 5, [lambda: x @ a, lambda: loop(x) @ b, lambda: x @ c]),
  )
  yield "gather", lambda x: x * tf.gather(a, rows) @ b + tf.nn.embedding_lookup(c, rows)
  yield "gather_nd", lambda x: x * a.gather_nd([[r] for r in rows]) + x @ b @ c
  yield "shapes", lambda x: x @ b + tf.cast(tf.shape(a)[0], tf.float32) + tf.gather(c, rows)
  yield "custom gradient", lambda x: twice_the_gradient(x @ a) @ b @ c
  yield "recomputed", tf.recompute_grad(functools.partial(chain, [a, b, c]))
  yield "map", lambda x: tf.map_fn(lambda row: chain([a, b, c], row[None])[0], x)


NAMES = [name for name, _ in kinds(*variables_of(3))]


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_read_a_variable(name):
  """In a graph, where a copy of the function takes the values."""
  variables = variables_of(3)
  apply, values = functional(dict(kinds(*variables))[name], SPEC)
  other = [v + 0.5 for v in values]
  f = tf.function(jax2tf.convert(lambda p, x: 2 * apply(p, x)), autograph=False)
  tensors = [*map(tf.constant, other)]
  y, cotangents = gradients(lambda x: f(tensors, x), tf.constant(X), *tensors)
  for variable, value in zip(apply.variables, other, strict=True):
    variable.assign(value)
  run = dict(kinds(*variables))[name]
  expected, wanted = gradients(lambda x: 2 * run(x), tf.constant(X), *apply.variables)
  assert_close([y, *cotangents], [expected, *map(tf.convert_to_tensor, wanted)])


def test_compiled_by_xla():
  """Which knows no variable that exists for one call."""
  apply, values = functional(dict(kinds(*variables_of(3)))["calls"], SPEC)
  converted = jax2tf.convert(lambda p, x: 2 * apply(p, x))
  f = tf.function(converted, autograph=False, jit_compile=True)
  tensors = [*map(tf.constant, values)]
  found = gradients(lambda x: f(tensors, x), tf.constant(X), *tensors)
  assert_close(found, gradients(lambda x: converted(tensors, x), tf.constant(X), *tensors))


def test_variables_in_a_dataset():
  a, b = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])

  def summed(x):
    rows = tf.data.Dataset.range(3).map(lambda i: a * tf.cast(i, tf.float32) + b)
    return rows.reduce(x, lambda total, row: total + row * b)

  apply, values = functional(summed, tf.TensorSpec([2]))
  other = [v + 1 for v in values]
  found = apply(other, X[0])
  a.assign(other[0])
  b.assign(other[1])
  assert_close(found, summed(X[0]))


def test_an_op_that_does_more_than_read():
  v = tf.Variable([1.0, 2.0])

  def windows(x):
    groups = tf.data.Dataset.range(2).group_by_window(
      lambda i: tf.cast(v[0], tf.int64), lambda _, rows: rows, window_size=2
    )
    return groups.reduce(x, lambda total, i: total + tf.cast(i, tf.float32))

  apply, values = functional(windows, tf.TensorSpec([2]))
  with pytest.raises(ValueError, match="takes a variable, and does more than read it"):
    apply(values, X[0])


def test_derivatives_where_the_call_is_all(tmp_path):
  """TensorFlow would differentiate the call itself, and the values had no gradient."""
  a, b = tf.Variable([2.0, 2.0]), tf.Variable([3.0, 3.0])
  apply, values = functional(lambda x: tf.sin(x * a) * b**2, tf.TensorSpec([2]))

  def last(x, *values):
    return apply(values, x)

  expected = jax.grad(functools.partial(loss, last), (0, 1, 2))(X[0], *values)
  tensors = [*map(tf.constant, values)]
  converted = jax2tf.convert(last)
  for f in (converted, tf.function(converted, autograph=False)):
    _, found = gradients(lambda x, f=f: f(x, *tensors), tf.constant(X[0]), *tensors)
    assert_close(found, [*expected])


@pytest.mark.parametrize("shape", [None, "b"], ids=["fixed", "symbolic"])
def test_a_tape_inside(shape):
  """It records in a graph too, where `convert` stops tapes."""

  def slope(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = x**3
    return tape.gradient(y, x)

  call = jax2tf.call_tf(slope)
  f = tf.function(jax2tf.convert(lambda x: 2 * call(x), polymorphic_shapes=shape), autograph=False)
  y, (found,) = gradients(f, tf.constant(X[0]))
  assert_close(y, 6 * X[0] ** 2)
  assert_close(found, 2 * 6 * X[0] ** 2 * 12 * X[0])
