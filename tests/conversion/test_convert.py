"""The calling convention: what goes in, what comes out, and where the result may be called."""

from __future__ import annotations

import collections
import threading
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import as_numpy, close, op_types, xla_ops

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def f(x: Any) -> Any:
  return jnp.sin(x) + 1


@pytest.mark.parametrize(
  "x",
  [
    X,
    X[0, 0],
    1.5,
    2,
    True,
    tf.constant(X),
    tf.Variable(X),
    jnp.asarray(X),
    np.float64(1.0),
    1 + 2j,
  ],
  ids=[
    "numpy",
    "numpy_scalar",
    "float",
    "int",
    "bool",
    "tensor",
    "variable",
    "jax",
    "float64",
    "complex",
  ],
)
def test_takes_every_kind_of_value(x):
  given = x.numpy() if isinstance(x, tf.Tensor | tf.Variable) else x
  result = jax2tf.convert(f)(x)
  assert isinstance(result, tf.Tensor)
  close(result, jax.jit(f)(given))


def test_under_tf_function_jit_compile_and_dataset_map():
  converted = jax2tf.convert(f)
  for function in (
    tf.function(converted),
    tf.function(converted, jit_compile=True),
    tf.function(converted, autograph=False),
  ):
    close(function(tf.constant(X)), f(X))
  dataset = tf.data.Dataset.from_tensor_slices(X).map(converted, num_parallel_calls=2)
  close(tf.stack(list(dataset)), f(X))


def test_in_a_keras_layer():
  class Layer(keras.layers.Layer):
    def build(self, shape):
      self.w = self.add_weight(shape=(shape[-1], 4), initializer="ones")
      self.apply = jax2tf.convert(lambda w, x: jnp.tanh(x @ w), polymorphic_shapes=[None, "b, _"])

    def call(self, x):
      return self.apply(self.w, x)

  inputs = keras.Input((3,))
  model = keras.Model(inputs, keras.layers.Dense(1)(Layer()(inputs)))
  model.compile("sgd", "mse")
  before = [np.array(w) for w in model.get_weights()]
  model.fit(
    np.ones((8, 3), np.float32), np.zeros((8, 1), np.float32), epochs=2, batch_size=4, verbose=0
  )
  assert all((a != b).any() for a, b in zip(before[:2], model.get_weights()[:2], strict=True))


Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_pytree_node_class
class Box:
  def __init__(self, content):
    self.content = content

  def tree_flatten(self):
    return (self.content,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)


def test_pytrees_keep_their_structure():
  def g(d, lst, point, box, nothing=None):
    return {
      "d": d["a"] + 1,
      "l": [lst[0], (lst[1],)],
      "p": Point(point.y, point.x),
      "b": Box(box.content * 2),
      "n": nothing,
      "e": (),
    }

  args = ({"a": X}, [X, X + 1], Point(X, X + 2), Box(X))
  result = jax2tf.convert(g)(*args)
  assert isinstance(result["p"], Point)
  assert isinstance(result["b"], Box)
  assert result["n"] is None
  assert result["e"] == ()
  assert jax.tree.structure(result) == jax.tree.structure(g(*args))
  close(result, g(*args))


def test_containers_of_a_tf_module_are_plain_pytrees():
  module = tf.Module()
  module.params = {"b": tf.Variable(X), "a": [tf.Variable(X + 1)], "t": (tf.Variable(X + 2),)}

  def g(p):
    return p["b"] - p["a"][0] + p["t"][0]

  close(jax2tf.convert(g)(module.params), g({"b": X, "a": [X + 1], "t": (X + 2,)}))


def test_keyword_arguments():
  def g(x, *, scale, shift=2.0):
    return x * scale + shift

  close(jax2tf.convert(g)(X, scale=X), g(X, scale=X))
  close(
    tf.function(jax2tf.convert(g))(X, scale=X, shift=tf.constant(3.0)), g(X, scale=X, shift=3.0)
  )


def test_results_that_are_arguments_or_constants():
  def g(x):
    return x, np.float32(3), jnp.arange(4), x

  close(jax2tf.convert(g)(X), jax.jit(g)(X))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
  "dtype", [np.float64, np.int64, np.uint64, np.complex128, np.int8, np.float16, bool]
)
def test_dtypes_are_canonical(dtype, x64):
  x = np.ones(3, dtype)
  with jax.enable_x64(x64):
    expected = jax.jit(lambda x: x)(x)
    result = jax2tf.convert(lambda x: x)(tf.constant(x))
    assert result.dtype.as_numpy_dtype == expected.dtype
    assert jax2tf.dtype_of_val(tf.constant(x)) == result.dtype


def test_64_bit_input_without_x64_wraps_as_in_jax():
  x = np.array([2**40 + 5, -1, 2**31], np.int64)
  close(jax2tf.convert(lambda x: x)(tf.constant(x)), jax.jit(lambda x: x)(x))
  with pytest.raises(OverflowError, match="argument 1099511627776 does not fit int32"):
    jax2tf.convert(lambda x: x)(2**40)


@pytest.mark.parametrize(
  "pair",
  [
    (np.float16(2), 1.5),
    (np.int8(3), 2),
    (True, 2),
    (jnp.bfloat16(1), 3),
    (1, 2.5),
    (np.uint8(3), 1j),
  ],
)
def test_weak_types_promote_as_in_jax(pair):
  x = np.asarray(pair[0])[None]
  close(jax2tf.convert(lambda x, y: x + y)(x, pair[1]), jax.jit(lambda x, y: x + y)(x, pair[1]))


def test_dtype_of_val_of_python_scalars():
  assert jax2tf.dtype_of_val(1) == tf.int32
  assert jax2tf.dtype_of_val(1.0) == tf.float32
  assert jax2tf.dtype_of_val(True) == tf.bool
  assert jax2tf.dtype_of_val(1j) == tf.complex64


def test_names_of_arguments_results_and_scopes():
  @jax.named_scope("attention")
  def g(x):
    return jnp.sin(x), jnp.cos(x)

  graph = (
    tf.function(jax2tf.convert(g, with_gradient=False))
    .get_concrete_function(tf.TensorSpec([2]))
    .graph
  )
  names = [op.name for op in graph.get_operations()]
  assert {"jax2tf_arg_0", "jax2tf_out", "jax2tf_out_1", "jax2tf_g_/attention/Sin"} <= set(names)


def test_static_shape_is_that_of_the_aval():
  converted = jax2tf.convert(lambda x: x @ np.ones((3, 5), np.float32), polymorphic_shapes="b, _")
  concrete = tf.function(converted).get_concrete_function(tf.TensorSpec([None, 3]))
  assert concrete.structured_outputs.shape.as_list() == [None, 5]


def test_constants_are_shared_by_bodies_and_branches():
  table = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)

  def g(x):
    x = x @ table
    x = jax.lax.cond(x[0, 0] > 0, lambda x: x @ table, lambda x: x - table, x)
    return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ table), x)

  concrete = tf.function(jax2tf.convert(g)).get_concrete_function(tf.TensorSpec([64, 64]))
  definition = concrete.graph.as_graph_def()
  nodes = [*definition.node, *(n for fn in definition.library.function for n in fn.node_def)]
  assert (
    sum(n.attr["value"].tensor.ByteSize() > table.nbytes for n in nodes if n.op == "Const") == 1
  )
  close(concrete(tf.constant(table)), jax.jit(g)(table), rtol=1e-5, atol=1e-5)


def test_large_constants_warn():
  big = np.zeros((101, 2**18), np.float32)
  with pytest.warns(
    UserWarning, match="closes over 101 MB of arrays.*pass them as arguments"
  ) as warned:
    jax2tf.convert(lambda i: jnp.asarray(big)[0, :4] + i)(0)
  assert warned[0].filename == __file__


def test_two_threads_convert_and_call_at_once():
  converted = jax2tf.convert(lambda x, n: jnp.sin(x) * n, static_argnums=1)
  failures = []

  def work(n):
    try:
      for size in range(1, 6):
        x = np.full(size, n, np.float32)
        close(converted(x, n), jnp.sin(x) * n)
    except BaseException as error:
      failures.append(error)

  threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not failures, failures


def test_a_graph_has_only_ordinary_ops():
  def g(x):
    return jax.nn.softmax(x @ x.T).sum(), jnp.sort(x)

  concrete = tf.function(jax2tf.convert(g)).get_concrete_function(tf.TensorSpec([4, 4]))
  assert not xla_ops(concrete.graph)


def test_enable_xla_changes_nothing():
  def types(enable):
    concrete = tf.function(jax2tf.convert(f, enable_xla=enable)).get_concrete_function(
      tf.TensorSpec([4])
    )
    return op_types(concrete.graph)

  assert types(True) == types(False)


def test_split_to_logical_devices_is_the_identity():
  close(jax2tf.split_to_logical_devices(tf.constant(X), (2, 1)), X)
  with pytest.raises(ValueError, match="partition_dimensions"):
    jax2tf.split_to_logical_devices(tf.constant(X), (2,))


def test_typed_keys_as_arguments_and_results():
  key = jax.random.key(7)

  def g(key):
    key, sub = jax.random.split(key)
    return key, jax.random.uniform(sub, (3,))

  close(jax2tf.convert(g)(key), g(key))
  assert as_numpy(jax2tf.convert(lambda k: k)(key)).dtype == np.uint32


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_round_trip(impl):
  keys = jax.random.split(jax.random.key(7, impl=impl), 3)
  data = jax2tf.convert(lambda keys: keys)(keys)
  again = jax.random.wrap_key_data(data.numpy(), dtype=data.jax_dtype)
  assert again.dtype == keys.dtype
  assert (again == keys).all()

  def normal(keys):
    return jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)

  close(jax2tf.convert(normal)(data), normal(keys))
  in_graph = tf.function(
    lambda: jax2tf.convert(normal)(jax2tf.convert(lambda keys: keys[::-1])(keys)), autograph=False
  )
  close(in_graph(), normal(keys[::-1]))


def test_run_functions_eagerly():
  tf.config.run_functions_eagerly(True)
  try:
    close(
      tf.function(jax2tf.convert(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x)))(X),
      X * 8,
    )
  finally:
    tf.config.run_functions_eagerly(False)
