"""Converted functions in what TensorFlow 1 has: its graphs and sessions, control flow, variables
and shapes."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.support.case import close

A = np.array([[1.0, 2.0, 0.5], [-3.0, 0.25, 1.0], [0.5, 4.0, -2.0]], np.float32)
X = np.array([1.5, -2.5, 0.3], np.float32)


def functions(a, x):
  """What compared tensors by == before: wrong factors without an error, or a crash."""
  return {
    "lu": jax.scipy.linalg.lu(a),
    "inv, solve, det": (jnp.linalg.inv(a), jnp.linalg.solve(a, x), jnp.linalg.det(a)),
    "expm": jax.scipy.linalg.expm(a),
    "qr": jnp.linalg.qr(a),
    "floor division": (x // 0.7, *jnp.divmod(x, 0.7), jnp.round(x)),
    "round away from zero": lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
  }


def without_derivatives(a, x):
  """The same, of functions without a derivative."""
  singular = jnp.triu(a) - a[0, 0] * jnp.eye(3)
  return {
    "pivoted qr": jax.scipy.linalg.qr(a, pivoting=True),
    "hessenberg": jax.scipy.linalg.hessenberg(a),
    "tridiagonal": lax.linalg.tridiagonal(a @ a.T)[1:3],
    "singular triangle": jax.scipy.linalg.solve_triangular(singular, x),
    "nextafter": jnp.nextafter(x.astype(jnp.bfloat16), jnp.bfloat16(2)),
    "while": lax.while_loop(lambda c: c.sum() < 9, lambda c: c + a[0] ** 2, x),
  }


def control_flow(a, x):
  """Loops and branches, in each other too."""
  nested = lax.fori_loop(0, 5, lambda i, c: lax.cond(c[0] > 1, lambda: c / 2, lambda: c + a[0]), x)
  return {
    "scan": lax.scan(lambda c, row: (c * row, c + row), x, a),
    "long scan": lax.scan(lambda c, i: (c * 0.9 + i, c[0]), x, jnp.arange(40.0)),
    "cond": lax.cond(x[0] > 1, lambda: a @ x, lambda: x),
    "switch": lax.switch(x[0].astype(int), [lambda: x, lambda: a @ x, lambda: 2 * x]),
    "cond in a loop": nested,
    "expm": jax.scipy.linalg.expm(a),
  }


def total(function):
  """The sum of sines of the floating point results."""

  def of_function(*args):
    leaves = jax.tree.leaves(function(*args))
    return sum(jnp.sum(jnp.sin(y)) for y in leaves if jnp.issubdtype(y.dtype, np.inexact))

  return of_function


@contextlib.contextmanager
def tensorflow_1(*settings):
  """With some of the settings of TensorFlow 1: "control_flow_v2", "v2_tensorshape" ..."""
  for setting in settings:
    getattr(tf.compat.v1, f"disable_{setting}")()
  try:
    yield
  finally:
    for setting in settings:
      getattr(tf.compat.v1, f"enable_{setting}")()


def check(function, *args, sizes=None, with_gradient=True):
  """The values and gradients of a function of placeholders, in a Session."""
  with tf.Graph().as_default() as graph:
    xs = [tf.compat.v1.placeholder(x.dtype, [None] * x.ndim if sizes else x.shape) for x in args]
    ys, gradients = jax2tf.convert(function, polymorphic_shapes=sizes)(*xs), []
    if with_gradient:
      sum_ = jax2tf.convert(total(function), polymorphic_shapes=sizes)(*xs)
      gradients = tf.gradients(sum_, xs)
  with tf.compat.v1.Session(graph=graph) as session:
    values, gradients = session.run((ys, gradients), dict(zip(xs, args, strict=True)))
  close(values, jax.jit(function)(*args), rtol=1e-4, atol=1e-5)
  if with_gradient:
    expected = jax.jit(jax.grad(total(function), tuple(range(len(args)))))(*args)
    close(gradients, list(expected), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("function", [functions, control_flow], ids=["functions", "control_flow"])
@pytest.mark.parametrize("settings", [(), ("control_flow_v2", "v2_tensorshape")], ids=["2", "1"])
def test_values_and_gradients_in_a_session(function, settings):
  with tensorflow_1(*settings):
    check(function, A, X)
    assert tf.compat.v1.control_flow_v2_enabled() != ("control_flow_v2" in settings)


def test_functions_without_derivatives_in_a_session():
  check(without_derivatives, A, X, with_gradient=False)


def test_symbolic_sizes_with_the_shapes_of_tensorflow_1():
  def function(a, x):
    return (
      lax.scan(lambda c, row: (c + row, c @ row), x, a),
      jnp.linalg.inv(a[:3, :3]),
      a @ x / a.shape[0],
    )

  with tensorflow_1("v2_tensorshape"):
    check(function, A, X, sizes=["b, b", "b"])
    found = jax2tf.convert(function, polymorphic_shapes=["b, b", "b"])(A, X)  # eagerly
  close(found, jax.jit(function)(A, X), rtol=1e-4)


@pytest.mark.parametrize("settings", [(), ("control_flow_v2",)], ids=["2", "1"])
def test_inside_of_the_users_loops_and_branches(settings):
  def function(x):
    return lax.scan(lambda c, i: (jnp.sin(c) + i, None), x, jnp.arange(20.0))[0] + x

  converted, v1 = jax2tf.convert(function), tf.compat.v1
  with tensorflow_1(*settings), tf.Graph().as_default(), v1.Session() as session:
    x = v1.placeholder(tf.float32, [3])
    _, looped = v1.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, converted(z)), [0, x])
    branched = v1.cond(x[0] > 0, lambda: converted(x), lambda: x)
    found = session.run(
      [looped, branched, *tf.gradients(looped, x), *tf.gradients(branched, x)], {x: X}
    )
  three_times = jax.jit(lambda x: function(function(function(x))))
  gradients = [jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(X) for f in (three_times, function)]
  close(found, [three_times(X), function(X), *gradients], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_variable_of_tensorflow_1(use_resource):
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    variable = v1.get_variable("v", initializer=tf.constant(X), use_resource=use_resource)
    y = jax2tf.convert(jnp.sin)(variable)
    gradient = tf.gradients(y, variable)
    session.run(v1.global_variables_initializer())
    close(session.run([y, *gradient]), [np.sin(X), np.cos(X)], rtol=1e-6)


@pytest.mark.parametrize("comparison", ["x == y", "x != y", "x in [y]", "[y].index(x)"])
def test_comparing_tensors_in_jax2tf_fails(comparison):
  """conftest.py refuses it in every test, in all modules of jax2tf."""
  with pytest.raises(pytest.fail.Exception, match=r"use tf\.equal"):
    eval(
      comparison, {"__name__": "jax2tf.lowering.example", "x": tf.constant(1), "y": tf.constant(2)}
    )
