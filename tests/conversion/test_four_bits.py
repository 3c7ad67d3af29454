"""Arguments and results of 4 bits: right wherever TensorFlow keeps them, refused where XLA's code
would take or return them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import jax2tf

DTYPES = [ml_dtypes.int4, ml_dtypes.uint4]
ROWS = {
  "argument": lambda dtype: (lambda x: x.astype(jnp.int32) + 1, np.arange(7).astype(dtype)),
  "result": lambda dtype: (lambda x: x.astype(dtype), np.arange(7, dtype=np.int32)),
  "both": lambda dtype: (jnp.flip, np.arange(7).astype(dtype)),
}


def as_ints(x):
  return np.asarray(x).astype(np.int32)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", ROWS)
def test_values_without_jit_compile(row, dtype, native):
  fun, x = ROWS[row](dtype)
  converted = jax2tf.convert(
    fun, native_serialization=native, polymorphic_shapes="n" if native else None
  )
  graph = tf.function(
    converted, autograph=False, input_signature=[tf.TensorSpec([None] if native else [7], x.dtype)]
  )
  for run in (converted, graph):
    got = run(tf.constant(x)).numpy()
    assert got.dtype == fun(jnp.asarray(x)).dtype
    np.testing.assert_array_equal(as_ints(got), as_ints(fun(jnp.asarray(x))))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", ROWS)
def test_jit_compile_refuses_by_name(row, dtype, native):
  fun, x = ROWS[row](dtype)
  function = tf.function(
    jax2tf.convert(fun, native_serialization=native), autograph=False, jit_compile=True
  )
  name = np.dtype(dtype).name
  where = "result" if row == "result" else "argument"
  with pytest.raises(
    NotImplementedError,
    match=f"{where} 0 of '.*' is {name} inside a tf.function with jit_compile=True",
  ):
    function(tf.constant(x))


@pytest.mark.parametrize("row", ROWS)
def test_jit_compile_around_a_finished_graph_is_refused(row, tmp_path):
  fun, x = ROWS[row](ml_dtypes.int4)
  module = tf.Module()
  module.f = tf.function(
    jax2tf.convert(fun, with_gradient=False),
    autograph=False,
    input_signature=[tf.TensorSpec([7], x.dtype)],
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  for f in (module.f, loaded.f):
    np.testing.assert_array_equal(as_ints(f(tf.constant(x)).numpy()), as_ints(fun(jnp.asarray(x))))
    compiled = tf.function(lambda x, f=f: f(x), autograph=False, jit_compile=True)
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match="jit_compile_garbles_int4_take_and_return_int8_with_casts_inside",
    ):
      compiled(tf.constant(x))


def test_inside_of_the_function_xla_has_them():
  table = (np.arange(40) % 16 - 8).astype(ml_dtypes.int4)

  def fun(x):
    return (x.astype(jnp.int4) + jnp.asarray(table)).astype(jnp.int8)

  x = np.arange(40, dtype=np.int8)
  got = tf.function(jax2tf.convert(fun), autograph=False, jit_compile=True)(tf.constant(x)).numpy()
  np.testing.assert_array_equal(got, fun(jnp.asarray(x)))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("jit_compile", [None, True])
def test_residuals(native, jit_compile):
  @jax.custom_vjp
  def quantized(x):
    return x * 2

  quantized.defvjp(
    lambda x: (x * 2, jnp.round(x).astype(jnp.int4)), lambda r, ct: (ct * r.astype(jnp.float32),)
  )
  x = tf.range(7, dtype=tf.float32)
  function = tf.function(
    jax2tf.convert(quantized, native_serialization=native), autograph=False, jit_compile=jit_compile
  )
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)
  np.testing.assert_array_equal(tape.gradient(y, x), np.arange(7, dtype=np.float32))
