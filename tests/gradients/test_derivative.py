"""What a derivative traces and keeps: each jaxpr when it is asked for, and of a refusal the words
alone."""

from __future__ import annotations

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.derivative_jaxprs import derivative
from jax2tf.program import Subject, prepare

X = np.arange(3, dtype=np.float32)


def counted(calls):
  """sin with a derivative rule of its own, which notes its parts as they are traced."""

  @jax.custom_vjp
  def fun(x):
    return jnp.sin(x)

  def forward(x):
    calls.append("forward")
    return jnp.sin(x), x

  def backward(x, cotangent):
    calls.append("backward")
    return (jnp.cos(x) * cotangent,)

  fun.defvjp(forward, backward)
  return fun


def test_what_only_infers_traces_no_backward_pass(tmp_path):
  calls = []
  spec = tf.TensorSpec([3])
  jax2tf.convert(counted(calls))(X)
  without = jax2tf.convert(counted(calls), with_gradient=False)
  module = tf.Module()
  module.f = tf.function(without, autograph=False, input_signature=[spec])
  tf.saved_model.save(module, str(tmp_path))
  assert calls == []
  graph = tf.function(jax2tf.convert(counted(calls)), autograph=False)
  graph(X)
  assert calls == ["forward"]  # its residuals are in the graph, whoever asks for a gradient later
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = graph(x)
  np.testing.assert_allclose(tape.gradient(y, x), np.cos(X), rtol=1e-6)
  assert calls.count("backward") == 1


def test_a_trace_in_another_thread_reaches_nothing_of_this_one():
  """What a backward pass reaches is its own, also while the pullback of other results is traced."""
  hooks = []

  @jax.custom_vjp
  def hooked(x):
    return x

  def backward(_, cotangent):
    while hooks:
      thread = threading.Thread(target=hooks.pop())
      thread.start()
      thread.join()
    return (cotangent,)

  hooked.defvjp(lambda x: (x, None), backward)
  jaxpr = jax.make_jaxpr(lambda x, y: (hooked(x), jnp.sin(y)))(X, X)
  subject = Subject("f")
  of = derivative(jaxpr, prepare(jaxpr, subject), subject, [0, 1], prepare)
  other = of.pullback((1,))
  hooks.append(lambda: other.jaxpr)
  assert of.backward((0,)).nonzero == {0}


@pytest.mark.parametrize(
  "wrap", [lambda f: f, lambda f: tf.function(f, autograph=False)], ids=["eager", "graph"]
)
def test_a_refusal_keeps_its_words_and_no_array(wrap):
  alive = []

  @jax.custom_vjp
  def fun(x):
    return x

  def forward(x):
    local = jnp.ones(1000)
    alive.append(weakref.ref(local))
    error = KeyError("no such derivative")
    error.add_note("noted")
    raise error

  fun.defvjp(forward, lambda _, cotangent: (cotangent,))
  converted = jax2tf.convert(fun)
  x = tf.constant(X)

  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = converted(x)
    return tape.gradient(y, x)

  for _ in range(2):
    with pytest.raises(KeyError, match="no such derivative") as caught:
      wrap(gradient)(x)
    assert "noted" in caught.value.__notes__
    del caught
  gc.collect()
  assert alive and not any(array() is not None for array in alive)


def test_a_rule_that_kept_a_tracer_is_no_derivative():
  """JAX 0.10: the rule of expn holds its order as it was traced, so jax.grad(jax.jit(f)) fails
  too."""
  order, x = tf.constant(2), tf.constant(1.0)
  fun = jax2tf.convert(jax.scipy.special.expn)
  np.testing.assert_allclose(
    tf.function(fun, autograph=False)(order, x), jax.scipy.special.expn(2, np.float32(1)), rtol=1e-6
  )

  @tf.function(autograph=False)
  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = fun(order, x)
    return tape.gradient(y, x)

  try:
    jax.grad(jax.jit(lambda n, x: jax.scipy.special.expn(n, x)), 1)(np.int32(2), np.float32(1))
  except TypeError:
    with pytest.raises(
      ValueError, match="a custom derivative rule uses a value of an earlier trace"
    ):
      gradient(x)
  else:
    np.testing.assert_allclose(
      gradient(x), jax.grad(jax.scipy.special.expn, 1)(2, np.float32(1)), rtol=1e-6
    )
