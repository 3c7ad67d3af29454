"""Mutable arrays that custom rules get as arguments, keep in residuals, and write in the backward
pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.errors import LoweringError

X = np.array([0.3, 0.7], np.float32)


@jax.custom_vjp
def counted(x, ref):
  """sin(x) times the value of ref, to which each backward pass adds 1."""
  return jnp.sin(x) * ref[...]


def backward(residuals, cotangent):
  x, ref = residuals
  ref[...] = ref[...] + 1.0
  return jnp.cos(x) * cotangent * ref[...], None


counted.defvjp(lambda x, ref: (jnp.sin(x) * ref[...], (x, ref)), backward)


def new(x, value=2.0):
  return jax.new_ref(jnp.full((), value, x.dtype))


def once(x):
  return counted(x, new(x))


def one_array_in_two_calls(x):
  ref = new(x)
  return counted(counted(x, ref), ref)


def two_arrays(x):
  a, b = new(x), new(x, 3.0)
  return counted(counted(x, a), b) + counted(x, b)


def written_after(x):
  ref = new(x)
  y = counted(x, ref)
  ref[...] *= 5.0
  return y * ref[...]


def in_an_inner_function(x):
  ref = new(x)

  @jax.jit
  def inner(x, ref):
    ref[...] += 1.0
    return counted(x, ref)

  return inner(x, ref) * ref[...]


def in_a_loop(x):
  ref = new(x)
  return jax.lax.scan(lambda c, _: (counted(c, ref), None), x, None, length=2)[0]


def in_a_branch(x):
  ref = new(x)
  return jax.lax.cond(x.sum() > 0, lambda x: counted(x, ref), lambda x: x, x)


def rematerialised(x):
  return jax.checkpoint(counted)(x, new(x))


def gradient(f, x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = f(x)
  return tape.gradient(y, x)


WAYS = {
  "eager": lambda fun: lambda x: gradient(jax2tf.convert(fun), x),
  "graph": lambda fun: tf.function(lambda x: gradient(jax2tf.convert(fun), x), autograph=False),
  "sizes": lambda fun: tf.function(
    lambda x: gradient(jax2tf.convert(fun, polymorphic_shapes="b"), x),
    autograph=False,
    input_signature=[tf.TensorSpec([None])],
  ),
}
FUNCTIONS = [
  once,
  one_array_in_two_calls,
  two_arrays,
  written_after,
  in_an_inner_function,
  in_a_loop,
  rematerialised,
]
if jax.__version_info__ >= (0, 12):  # JAX 0.10 has no gradient of it
  FUNCTIONS += [in_a_branch]


@pytest.mark.parametrize("fun", FUNCTIONS)
def test_gradients_are_those_of_jax(fun: Any) -> None:
  expected = jax.grad(lambda x: fun(x).sum())(X)
  for run in WAYS.values():
    np.testing.assert_allclose(run(fun)(tf.constant(X)), expected, rtol=1e-5)


def test_compiled_and_loaded(tmp_path: Path) -> None:
  module = tf.Module()
  converted = jax2tf.convert(two_arrays)
  module.f = tf.function(converted, autograph=False, input_signature=[tf.TensorSpec([2])])
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  expected = jax.grad(lambda x: two_arrays(x).sum())(X)
  np.testing.assert_allclose(gradient(loaded.f, tf.constant(X)), expected, rtol=1e-5)
  compiled = tf.function(lambda x: gradient(converted, x), autograph=False, jit_compile=True)
  np.testing.assert_allclose(compiled(tf.constant(X)), expected, rtol=1e-5)


def test_second_derivatives() -> None:
  x = tf.constant(X)
  found = gradient(lambda x: gradient(jax2tf.convert(once), x), x)
  first = jax.grad(lambda x: once(x).sum())
  np.testing.assert_allclose(found, jax.grad(lambda x: first(x).sum())(X), rtol=1e-5)


def test_a_gradient_inside_writes_the_array_of_the_caller() -> None:
  def fun(ref, x):
    return jax.grad(lambda x: counted(x, ref).sum())(x)

  ref, variable = jax.new_ref(jnp.float32(2)), tf.Variable(2.0)
  np.testing.assert_allclose(jax2tf.convert(fun)(jax2tf.Ref(variable), X), fun(ref, X), rtol=1e-6)
  assert variable.numpy() == ref[...] == 3


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_tape_writes_no_array_of_the_caller(in_graph: bool) -> None:
  ref, variable = jax.new_ref(jnp.float32(2)), tf.Variable(2.0)
  closing = jax2tf.convert(lambda x: counted(x, ref))
  taking = jax2tf.convert(lambda ref, x: counted(x, ref))
  for f in (closing, lambda x: taking(jax2tf.Ref(variable), x)):

    def run(x, f=f):
      return gradient(f, x)

    run = tf.function(run, autograph=False) if in_graph else run
    with pytest.raises(LoweringError, match=r"writes a jax\.Ref of the caller"):
      run(tf.constant(X))


def test_a_tape_reads_an_array_of_the_caller() -> None:
  @jax.custom_vjp
  def scaled(x, ref):
    return x * ref[...]

  scaled.defvjp(
    lambda x, ref: (x * ref[...], ref), lambda ref, cotangent: (cotangent * ref[...], None)
  )
  variable = tf.Variable(3.0)

  def fun(ref, x):
    y = scaled(jnp.sin(x), ref)
    ref[...] += 1.0
    return y

  converted = jax2tf.convert(fun)
  found = gradient(lambda x: converted(jax2tf.Ref(variable), x), tf.constant(X))
  ref = jax.new_ref(jnp.float32(3))
  np.testing.assert_allclose(found, jax.grad(lambda x: fun(ref, x).sum())(X), rtol=1e-6)
  assert variable.numpy() == ref[...] == 4


def test_tangents_of_a_custom_vjp_are_refused_as_without_arrays() -> None:
  x = tf.constant(X)
  with (
    pytest.raises(LoweringError, match="can't apply forward-mode"),
    tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)),
  ):
    jax2tf.convert(once)(x)


@pytest.mark.parametrize("in_graph", [False, True])
def test_tangents_of_a_function_that_writes_what_it_closes_over(in_graph: bool) -> None:
  ref = jax.new_ref(jnp.float32(2))
  jax2tf.variable_of(ref)  # with the first value

  def fun(x):
    ref[...] += 1.0
    return jnp.sin(x) * ref[...]

  converted = jax2tf.convert(fun)

  def tangent(x):
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
      y = converted(x)
    return y, accumulator.jvp(y)

  run = tf.function(tangent, autograph=False) if in_graph else tangent
  for _ in range(2):
    expected = jax.jvp(fun, [X], [np.ones_like(X)])
    for y, wanted in zip(run(tf.constant(X)), expected, strict=True):
      np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_a_ref_of_jax_is_no_argument() -> None:
  with pytest.raises(TypeError, match=r"args\[0\] is a jax.Ref.*pass jax2tf.Ref"):
    jax2tf.convert(lambda ref: ref[...] + 1)(jax.new_ref(jnp.float32(2)))
