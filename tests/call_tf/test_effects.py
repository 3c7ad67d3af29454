"""Variables, tables, strings, asserts and the order of calls; arguments and results of every
kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

from jax2tf import call_tf


def test_a_variable_is_read_at_each_call():
  v = tf.Variable(2.0)
  f = jax.jit(call_tf(lambda x: x * v))
  assert f(1.0) == 2
  v.assign(10.0)
  assert f(1.0) == 10
  assert jax.jit(jax.grad(call_tf(lambda x: x * v)))(1.0) == 10
  with pytest.raises(
    ValueError,
    match=r"(?s)Error compiling TensorFlow function.*variables or tables.*Leave under_jit out",
  ):
    jax.jit(call_tf(lambda x: x * v, under_jit="inline"))(1.0)


def test_no_write_is_lost():
  v = tf.Variable(0.0)

  def count(x):
    v.assign_add(1.0)
    return x

  f = call_tf(count)
  jax.jit(lambda x: (f(x), f(x), f(x)))(1.0)
  jax.effects_barrier()
  assert v.numpy() == 3
  jax.jit(lambda x: [f(x), x][1])(1.0)  # whose result nobody needs
  jax.effects_barrier()
  assert v.numpy() == 4
  jax.vmap(f)(jnp.ones(3))
  assert v.numpy() == 7
  assert jax.grad(f)(1.0) == 1
  assert v.numpy() == 8


def test_ordered():
  seen = tf.Variable(tf.zeros([0], tf.int32), shape=[None])

  def note(i):
    seen.assign(tf.concat([seen, i[None]], 0))
    return ()

  f = call_tf(note, ordered=True)
  jax.jit(lambda: jax.lax.fori_loop(0, 5, lambda i, c: (f(i), c)[1], 0))()
  jax.effects_barrier()
  assert seen.numpy().tolist() == [0, 1, 2, 3, 4]


def test_a_variable_moves_inside_a_loop():
  """A read is neither merged with another one nor moved out of the loop."""
  v = tf.Variable(1.0)
  double = call_tf(lambda x: v.assign(2 * v) + 0 * x, ordered=True)
  read = call_tf(lambda x: v + 0 * x, ordered=True)
  _, reads = jax.jit(
    lambda: jax.lax.scan(lambda c, _: (c, [read(c), double(c)][0]), 0.0, None, 4)
  )()
  assert reads.tolist() == [1, 2, 4, 8]


def test_shared_memory_is_not_written():
  """TensorFlow and JAX share the memory of large arrays; a variable that is written has its own."""
  v = tf.Variable(tf.ones(1000))
  x = jnp.zeros(1000)
  y = call_tf(lambda x: v.assign(x).read_value())(x)
  v.assign_add(tf.ones(1000))
  assert x.sum() == y.sum() == 0


def test_an_assert_raises():
  def f(x):
    tf.debugging.assert_less(x, 5.0, message="too large")
    return x

  assert jax.jit(call_tf(f))(1.0) == 1
  with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
    call_tf(f)(7.0)
  with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
    jax.jit(call_tf(f))(7.0).block_until_ready()


WORDS = tf.lookup.StaticHashTable(
  tf.lookup.KeyValueTensorInitializer(["1", "22"], tf.constant([10.0, 20.0])), -1.0
)


def test_what_xla_does_not_compile():
  f = call_tf(
    lambda i: (
      WORDS.lookup(tf.strings.as_string(i)),
      tf.ensure_shape(tf.numpy_function(np.negative, [i], tf.int32), []),
    )
  )
  for mapped in (jax.vmap(f), jax.jit(jax.vmap(f))):
    looked_up, negative = mapped(jnp.array([1, 22, 333]))
    assert looked_up.tolist() == [10, 20, -1]
    assert negative.tolist() == [-1, -22, -333]


def test_dynamic_shapes_need_a_declaration():
  def f(x):
    return tf.boolean_mask(x, x > 1)

  x = jnp.array([1, 2, 3])
  assert call_tf(f)(x).tolist() == [2, 3]
  with pytest.raises(
    ValueError, match=r"cannot call functions whose output has dynamic shape.*output_shape_dtype"
  ):
    jax.jit(call_tf(f))(x)
  assert jax.jit(call_tf(f, output_shape_dtype=jax.ShapeDtypeStruct((2,), np.int32)))(
    x
  ).tolist() == [2, 3]
  with pytest.raises(ValueError, match="do not match the declared output_shape_dtype"):
    jax.jit(call_tf(f, output_shape_dtype=jax.ShapeDtypeStruct((2,), np.float32)))(x)
  with pytest.raises(ValueError, match="pytree of the TensorFlow function results does not match"):
    call_tf(f, output_shape_dtype=(jax.ShapeDtypeStruct((2,), np.int32), None, 1))(x)


@pytest.mark.parametrize(
  "dtype", ["bool", "int4", "uint8", "bfloat16", "float8_e4m3fn", "complex64"]
)
def test_dtypes(dtype):
  x = jnp.array([0, 1, 1]).astype(dtype)
  for f in (
    call_tf(tf.identity),
    jax.jit(call_tf(tf.identity)),
    jax.jit(call_tf(tf.identity, under_jit="callback")),
  ):
    y = f(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x))


def test_pytrees():
  f = call_tf(lambda x, *, p: {"a": x + p["q"], "wide": tf.cast(x, tf.int64), "none": None})
  for call in (f, jax.jit(f)):
    y = call(1.0, p={"q": 2.0})
    assert y["a"] == 3 and y["wide"].dtype == jnp.int32 and y["none"] is None
  key = jax.random.key(0)
  assert call_tf(lambda k: k)(key) == jax.jit(call_tf(lambda k: k))(key) == key


@pytest.mark.parametrize(
  ("error", "words", "call"),
  [
    (TypeError, "Expected a callable value", lambda: call_tf(3)),
    (ValueError, "vmap_method", lambda: call_tf(tf.sin, vmap_method="x")),
    (ValueError, "under_jit", lambda: call_tf(tf.sin, under_jit="x")),
    (
      TypeError,
      r"Argument args\[1\].* is not a valid JAX type",
      lambda: call_tf(tf.add)(1.0, object()),
    ),
    (
      TypeError,
      "is not a valid JAX array type",
      lambda: call_tf(tf.strings.length)(tf.constant("a")),
    ),
    (
      ValueError,
      "returns a result that is not convertible to JAX",
      lambda: call_tf(tf.strings.as_string)(1),
    ),
    (
      ValueError,
      "call_tf_graph=True only support exporting",
      lambda: jax.jit(call_tf(tf.sin, call_tf_graph=True))(1.0),
    ),
  ],
)
def test_refusals(error, words, call):
  with pytest.raises(error, match=words):
    call()


def test_large_arrays_behind_asynchronous_work():
  f = jax.jit(lambda x: call_tf(lambda x: x * 1e-3, under_jit="callback")(x @ x) + 1)
  assert jnp.isfinite(f(f(jnp.ones((1000, 1000)))).sum())


def test_exported():
  exported = export.export(jax.jit(call_tf(tf.sin)))(jnp.ones(3))
  np.testing.assert_allclose(
    export.deserialize(exported.serialize()).call(jnp.ones(3)), np.sin(np.ones(3)), rtol=1e-6
  )
  with pytest.raises(ValueError, match=r"no symbolic shapes for the TensorFlow function 'sin'"):
    export.export(jax.jit(call_tf(tf.sin)))(
      jax.ShapeDtypeStruct(export.symbolic_shape("b"), jnp.float32)
    )
