"""tf.autodiff.ForwardAccumulator gives the tangents of jax.jvp."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.gradients.test_gradient import FUNCTIONS, MODES, X, forever, gradient
from tests.support.case import close

TANGENT = np.array([1.0, -0.5, 0.25], np.float32)


@pytest.fixture(params=list(MODES))
def mode(request):
  return MODES[request.param]


def jvp(f):
  """The tangents of f(x), in TensorFlow."""

  def tangents(x, tangent):
    with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
      y = f(x)
    return accumulator.jvp(y)

  return tangents


def summed(f):
  return lambda x: jnp.sum(f(x))


@pytest.mark.parametrize("name", [*sorted(FUNCTIONS.keys() - {"custom_vjp"}), "forever"])
def test_tangents(name, mode):
  f = {**FUNCTIONS, "forever": forever}[name]
  close(
    mode(jvp(jax2tf.convert(f)))(tf.constant(X), tf.constant(TANGENT)),
    jax.jvp(f, (X,), (TANGENT,))[1],
    rtol=1e-5,
  )


def test_custom_vjp_is_refused_in_jaxs_words(mode):
  with pytest.raises(
    NotImplementedError,
    match=r"can't apply forward-mode differentiation \(jvp\) to a custom_vjp function",
  ):
    mode(jvp(jax2tf.convert(FUNCTIONS["custom_vjp"])))(tf.constant(X), tf.constant(TANGENT))


@pytest.mark.parametrize("name", ["sin_exp", "remat", "scan", "custom_jvp"])
def test_forward_over_reverse(name, mode):
  f = FUNCTIONS[name]
  expected = jax.jvp(jax.grad(summed(f)), (X,), (TANGENT,))[1]
  close(
    mode(jvp(gradient(jax2tf.convert(f))))(tf.constant(X), tf.constant(TANGENT)),
    expected,
    rtol=1e-5,
    of_the_largest=True,
  )


@pytest.mark.parametrize("name", ["sin_exp", "remat", "scan", "custom_jvp"])
def test_reverse_over_forward(name, mode):
  f = FUNCTIONS[name]
  expected = jax.grad(lambda x: jnp.sum(jax.jvp(f, (x,), (TANGENT,))[1]))(X)
  tangent = tf.constant(TANGENT)
  close(
    mode(gradient(lambda x: jvp(jax2tf.convert(f))(x, tangent)))(tf.constant(X)),
    expected,
    rtol=1e-5,
    of_the_largest=True,
  )


@pytest.mark.parametrize("name", ["sin_exp", "scan", "cond", "custom_jvp"])
def test_accumulator_around_a_function(name):
  f = FUNCTIONS[name]
  function = tf.function(jax2tf.convert(f), autograph=False)
  close(
    jvp(function)(tf.constant(X), tf.constant(TANGENT)), jax.jvp(f, (X,), (TANGENT,))[1], rtol=1e-5
  )


def test_several_arguments_and_results():
  def f(x, n, y):
    return x * y * n, n + 1, jnp.sin(y)

  x, n, y = tf.constant(X), tf.constant([1, 2, 3]), tf.constant(X + 1)
  with tf.autodiff.ForwardAccumulator(
    [x, y], [tf.constant(TANGENT), tf.ones_like(y)]
  ) as accumulator:
    product, count, sine = jax2tf.convert(f)(x, n, y)
  expected = jax.jvp(
    lambda x, y: f(x, np.array([1, 2, 3], np.int32), y), (X, X + 1), (TANGENT, np.ones_like(X))
  )[1]
  close([accumulator.jvp(product), accumulator.jvp(sine)], [expected[0], expected[2]])
  assert accumulator.jvp(count) is None


def test_only_one_argument_has_a_tangent():
  x, y = tf.constant(X), tf.constant(X + 1)
  with tf.autodiff.ForwardAccumulator(y, tf.constant(TANGENT)) as accumulator:
    z = jax2tf.convert(lambda x, y: jnp.exp(x) * y**2)(x, y)
  close(accumulator.jvp(z), np.exp(X) * 2 * (X + 1) * TANGENT, rtol=1e-5)


def test_complex_tangents(mode):
  z, t = np.array([1 + 2j, -0.5 + 0.3j], np.complex64), np.array([0.3 - 1j, 2 + 0.1j], np.complex64)
  for f in (lambda z: z * z, jnp.conj, lambda z: z.real + 2j * z.imag):
    close(
      mode(jvp(jax2tf.convert(f)))(tf.constant(z), tf.constant(t)),
      jax.jvp(f, (z,), (t,))[1],
      rtol=1e-5,
    )


def test_without_gradient(mode):
  with pytest.raises(LookupError, match="Gradient explicitly disabled"):
    mode(jvp(jax2tf.convert(jnp.sin, with_gradient=False)))(tf.constant(X), tf.constant(TANGENT))
