"""`jax.experimental.io_callback`, ordered or not, in every graph; and where it would be called
again."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import io_callback

import jax2tf
from tests.support.case import close

X = np.array([0.5, -1.5, 2.0], np.float32)
NUMBER = jax.ShapeDtypeStruct((), np.float32)
counted: list[float] = []


def _count(x):
  counted.append(float(x.sum()))
  return np.float32(len(counted))


def _draws(x):
  """Two calls of the same operands give two numbers; a third has no results."""
  first, second = (
    io_callback(_count, NUMBER, jax.lax.stop_gradient(x), ordered=True) for _ in range(2)
  )
  io_callback(lambda x: counted.append(float(x)), None, jax.lax.stop_gradient(x[0]), ordered=True)
  return first * jnp.sin(x) - second


def _loop(x):
  return jax.lax.fori_loop(0, 3, lambda i, c: c + io_callback(_count, NUMBER, c + i), x)


def _branch(x):
  return jax.lax.cond(x.sum() > 0, lambda: io_callback(_count, NUMBER, x), lambda: x[0])


FUNCTIONS = {
  "draws": _draws,
  "loop": _loop,
  "branch": _branch,
  "vmap": jax.vmap(lambda x: io_callback(lambda x: (counted.append(float(x)), x)[1], NUMBER, x)),
  "same": lambda x: jax.lax.fori_loop(
    0, 3, lambda i, c: c * 2 + io_callback(_count, NUMBER, jax.lax.stop_gradient(x)), x
  ),
  "unused": lambda x: (io_callback(_count, NUMBER, x), x)[1],
}


def _run(call):
  counted.clear()
  return jax.tree.map(np.asarray, call()), sorted(counted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_calls(name):
  fun = FUNCTIONS[name]
  expected, calls = _run(lambda: jax.jit(fun)(X))
  assert calls
  converted = jax2tf.convert(fun)
  function, native = (
    tf.function(f, autograph=False)
    for f in (converted, jax2tf.convert(fun, native_serialization=True))
  )
  wrapped = tf.compat.v1.wrap_function(converted, [tf.TensorSpec([3])])
  for call in (converted, function, function, native, wrapped):
    found, made = _run(lambda call=call: call(tf.constant(X)))
    close(found, expected)
    assert made == calls


def _gradient(function, x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)
  return tape.gradient(y, x)


def test_gradients_call_once():
  expected, calls = _run(lambda: jax.grad(lambda x: _draws(x).sum())(X))
  converted = jax2tf.convert(_draws)
  outside = functools.partial(_gradient, tf.function(converted, autograph=False))
  for call in (
    functools.partial(_gradient, converted),
    tf.function(functools.partial(_gradient, converted), autograph=False),
    outside,
  ):
    found, made = _run(lambda call=call: call(tf.constant(X)))
    close(found, expected)
    assert made == calls


def test_what_would_call_again_is_refused():
  """A second derivative computes the function once more: with another number, were it called
  again."""
  converted, x = jax2tf.convert(_draws), tf.constant(X)
  words = (
    r"(?s)'io_callback'.*calls back for its effects, which derivatives of this order would "
    r"repeat.*test_io_callback\.py:\d+"
  )
  with pytest.raises(jax2tf.LoweringError, match=words):
    _gradient(functools.partial(_gradient, converted), x)
  with pytest.raises(jax2tf.LoweringError, match=words), tf.autodiff.ForwardAccumulator(x, x):
    converted(x)
  with pytest.raises(
    jax2tf.LoweringError, match=r"(?s)'io_callback'.*XLA cannot compile.*test_io_callback\.py:\d+"
  ):
    tf.function(jax2tf.convert(_draws, with_gradient=False), autograph=False, jit_compile=True)(X)


def test_it_has_no_derivative():
  with pytest.raises(ValueError, match="IO callbacks do not support JVP"):
    _gradient(jax2tf.convert(_branch), tf.constant(X))
