"""`jax_debug_nans` and `jax_debug_infs` hold for converted functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf

X = np.array([-1, 0.5, 2], np.float32)


@jax.jit
def _log(x, scale=1.0):
  return {"y": jnp.log(x) * scale, "n": x.astype(jnp.int32)}


def _loop(x):
  return jax.lax.fori_loop(0, 2, lambda i, c: jnp.sqrt(c - i), x).astype(jnp.complex64)


def _hidden(x):
  return jnp.where(x < 0, 0, jnp.log(x))  # what is no result, JAX's jit does not see


@pytest.mark.parametrize(
  "fun",
  [
    _log,
    _loop,
    lambda x: jnp.sqrt(x).astype(jnp.bfloat16),
    lambda x: jnp.sqrt(x).astype(jnp.float8_e5m2),
  ],
)
def test_nan(fun):
  converted = jax2tf.convert(fun)
  converted(X)  # a trace made without the setting serves with it
  with jax.debug_nans(True):
    with pytest.raises(FloatingPointError) as expected:
      fun(X)
    for x in (X, tf.Variable(X)):
      with pytest.raises(FloatingPointError) as raised:
        converted(x)
      assert str(raised.value) == str(expected.value)
    converted(np.array([3, 4, 5], np.float32))
    function = tf.function(converted, autograph=False)
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match=r"FloatingPointError: invalid value \(nan\) encountered in",
    ):
      function(X)
  converted(X)


def _root(x):
  return jnp.where(x > 0, jnp.sqrt(x), 0)  # whose gradient is 0 * inf at 0


def test_nan_of_a_gradient():
  x = tf.Variable(0.0)

  def gradient():
    with tf.GradientTape() as tape:
      y = jax2tf.convert(_root)(x)
    return tape.gradient(y, x)

  with jax.debug_nans(True):
    with pytest.raises(FloatingPointError, match=r"^invalid value \(nan\) encountered in "):
      jax.grad(_root)(0.0)
    with pytest.raises(
      FloatingPointError, match=r"^invalid value \(nan\) encountered in the gradient of '_root'$"
    ):
      gradient()
    with pytest.raises(
      tf.errors.InvalidArgumentError, match=r"invalid value \(nan\) encountered in the gradient of"
    ):
      tf.function(gradient, autograph=False)()
    x.assign(1.0)
    assert gradient() == 0.5
  x.assign(0.0)
  assert np.isnan(gradient())


def test_inf():
  with (
    jax.debug_infs(True),
    pytest.raises(FloatingPointError, match=r"^invalid value \(inf\) encountered in log"),
  ):
    jax2tf.convert(_log)(np.float32(0))


def test_what_is_no_result_is_not_checked():
  with jax.debug_nans(True):
    assert jax.jit(_hidden)(X)[0] == jax2tf.convert(_hidden)(X)[0] == 0


def test_what_xla_leaves_out():
  function = tf.function(
    jax2tf.convert(_log, with_gradient=False), autograph=False, jit_compile=True
  )
  with (
    jax.debug_nans(True),
    pytest.warns(UserWarning, match=r"omits the assertions of jax_debug_nans .* on '_log'$"),
  ):
    function(X)
