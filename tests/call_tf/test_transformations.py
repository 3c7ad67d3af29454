"""Values and derivatives of a TensorFlow function in JAX, against the same function written in
JAX."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf import call_tf

X, Y = jnp.array([0.3, 0.7, 1.1]), jnp.array([1.0, 2.0])


def in_tensorflow(x, y):
  return tf.sin(x) * tf.reduce_sum(y * y)


def in_jax(x, y):
  return jnp.sin(x) * jnp.sum(y * y)


def close(found, expected):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


def summed(f):
  return lambda x: f(x, Y).sum()


def tangent(f):
  return lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1]


def doubled(f):
  """The function, in a custom_vjp of twice its gradient."""
  rule = jax.custom_vjp(lambda x: f(x, Y))
  rule.defvjp(
    lambda x: jax.vjp(lambda x: f(x, Y), x), lambda pull, c: tuple(2 * g for g in pull(c))
  )
  return rule


TRANSFORMED = {
  "value": lambda f: lambda x: f(x, Y),
  "grad4": lambda f: jax.grad(lambda x: jax.hessian(jax.grad(summed(f)))(x).sum()),
  "value_and_grad": lambda f: jax.value_and_grad(lambda x, y: f(x, y).sum(), argnums=(0, 1)),
  "jvp3": lambda f: tangent(tangent(tangent(summed(f)))),
  "jacobians": lambda f: (
    lambda x: (jax.jacfwd(lambda x: f(x, Y))(x), jax.jacrev(lambda x: f(x, Y))(x))
  ),
  "linearize": lambda f: lambda x: jax.linearize(lambda x: f(x, Y), x)[1](Y[0] * x),
  "remat": lambda f: jax.grad(jax.checkpoint(summed(f))),
  "vmap": lambda f: (
    lambda x: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(
      jnp.stack([x, -x]), jnp.stack([Y, 3 * Y, Y])
    )
  ),
  "grad of vmap, by what the batch shares": lambda f: jax.grad(
    lambda x: jax.vmap(f, (None, 0))(x, jnp.stack([Y, 3 * Y])).sum()
  ),
  "loops": lambda f: jax.grad(
    lambda x: jax.lax.scan(
      lambda c, _: (jax.lax.cond(c[0] > 0, lambda c: f(c, Y), jnp.sin, c), None), x, None, 2
    )[0].sum()
  ),
  "custom_vjp around": lambda f: jax.jacrev(doubled(f)),
  "a mixture": lambda f: jax.jacfwd(
    jax.checkpoint(jax.grad(lambda x: jax.lax.map(doubled(f), jnp.stack([x, 2 * x])).sum()))
  ),
  "complex": lambda f: jax.grad(lambda x: f(x + 0.5j, Y.astype(complex)).sum().imag),
}
ARGUMENTS = {"value_and_grad": (X, Y)}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_eagerly_and_inlined(name):
  transform, arguments = TRANSFORMED[name], ARGUMENTS.get(name, (X,))
  expected = transform(in_jax)(*arguments)
  close(transform(call_tf(in_tensorflow))(*arguments), expected)
  close(jax.jit(transform(call_tf(in_tensorflow, under_jit="inline")))(*arguments), expected)


@pytest.mark.parametrize("name", ["value", "jvp3", "jacobians", "vmap", "loops", "complex"])
def test_called_back(name):
  close(
    jax.jit(TRANSFORMED[name](call_tf(in_tensorflow, under_jit="callback")))(X),
    TRANSFORMED[name](in_jax)(X),
  )


# TF 2.22 has mended one of the two.
WITHOUT_CONJUGATE = {
  "det": pytest.mark.xfail(
    tf.__version__.startswith("2.21."),
    strict=True,
    reason="TF 2.21: its gradient lacks a conjugate",
  ),
  "cumprod": pytest.mark.xfail(strict=True, reason="TF 2.22: its gradient lacks a conjugate"),
}


@pytest.mark.parametrize(
  ("of_tensorflow", "of_jax"),
  [
    pytest.param(tf.linalg.det, jnp.linalg.det, marks=WITHOUT_CONJUGATE["det"]),
    pytest.param(tf.math.cumprod, jnp.cumprod, marks=WITHOUT_CONJUGATE["cumprod"]),
  ],
)
def test_complex_derivatives_that_tensorflow_has_wrong(of_tensorflow, of_jax):
  x = jnp.asarray([[2.0, 0.5j], [0.3 + 1j, 1.0]])
  close(
    jax.grad(lambda x: call_tf(of_tensorflow)(x).sum().imag)(x),
    jax.grad(lambda x: of_jax(x).sum().imag)(x),
  )


def test_derivatives_of_a_tf_function_under_vmap():
  """pfor looks for the gradient functions of what it vectorizes."""
  close(jax.hessian(summed(call_tf(tf.function(in_tensorflow))))(X), jax.hessian(summed(in_jax))(X))


def test_custom_gradient():
  @tf.custom_gradient
  def f(x):
    return x * x, lambda dy: 1.5 * dy

  f = call_tf(f)
  assert jax.grad(f)(1.0) == jax.jvp(f, (1.0,), (1.0,))[1] == jax.jit(jax.grad(f))(1.0) == 1.5


@pytest.mark.parametrize(
  "method", [None, "sequential", "expand_dims", "broadcast_all", "vectorized"]
)
def test_vmap_method(method):
  f = jax.vmap(call_tf(lambda x, y: tf.sin(x) * y, vmap_method=method), (0, None))
  close(f(X, 2.0), 2 * jnp.sin(X))


@pytest.mark.parametrize(
  ("f", "reason"),
  [
    (
      lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), []),
      "PyFunc has no gradient",
    ),
    (
      lambda x: x * tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), []),
      "PyFunc has no gradient",
    ),
    (
      lambda x: tf.cast(tf.raw_ops.Bincount(arr=[1], size=2, weights=x[None]), tf.float32)[0],
      "No gradient defined for operation",
    ),
    (lambda x: x + tf.image.hsv_to_rgb(tf.stack([x, x, x]))[0], "HSVToRGB has no gradient"),
    (
      lambda x: x + tf.function(lambda y: tf.image.hsv_to_rgb(tf.stack([y, y, y])))(x)[0],
      "HSVToRGB has no gradient",
    ),
    (
      lambda x: tf.image.resize(tf.reshape(x, [1, 1, 1, 1]), [2, 2])[0, 0, 0, 0],
      "ResizeBilinearGrad has no gradient",
    ),
  ],
  ids=[
    "numpy",
    "a part of it",
    "no gradient",
    "registered without",
    "in a function",
    "not by tangents",
  ],
)
def test_no_derivative(f, reason):
  with pytest.raises(LookupError, match=reason):
    jax.jvp(call_tf(f), (1.0,), (1.0,))


def test_a_gradient_around_what_has_none():
  @tf.custom_gradient
  def f(x):
    return tf.ensure_shape(
      tf.numpy_function(np.sin, [x], tf.float32), []
    ), lambda dy: dy * tf.cos(x)

  assert (
    jax.grad(call_tf(f))(0.0)
    == jax.jit(
      jax.grad(call_tf(lambda x: f(x) + tf.stop_gradient(tf.image.hsv_to_rgb([x, x, x])[0])))
    )(0.0)
    == 1
  )


def test_empty_batch():
  assert jax.vmap(call_tf(in_tensorflow), (0, None))(jnp.zeros((0, 3)), Y).shape == (0, 3)


def test_round_trips():
  def g(x):
    calls.append(x)
    return jnp.sin(x)

  calls = []
  close(jax.grad(call_tf(jax2tf.convert(g)))(0.5), jnp.cos(0.5))
  assert len(calls) == 1
  wrapped = functools.wraps(converted := jax2tf.convert(g))(lambda x: 2 * converted(x))
  close(call_tf(wrapped)(0.5), 2 * jnp.sin(0.5))
  poly = call_tf(jax2tf.convert(g, polymorphic_shapes=["2*b"]))
  close(poly(X[:2]), jnp.sin(X[:2]))
  with pytest.raises(ValueError, match="remainder"):
    poly(X)
  with pytest.raises(LookupError, match="Gradient explicitly disabled"):
    jax.grad(call_tf(jax2tf.convert(g, with_gradient=False)))(0.5)


def test_a_converted_method_dies_with_its_object():
  class Model:
    def __init__(self):
      self.converted = jax2tf.convert(self.call)

    def call(self, x):
      return jnp.sin(x)

  alive = weakref.ref(Model())
  gc.collect()
  assert alive() is None
