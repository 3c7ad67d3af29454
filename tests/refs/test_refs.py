"""Mutable arrays that a function makes for itself: pure from outside, so TensorFlow sees values
only."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax._src.state.discharge import run_state

import jax2tf
from tests.support.case import Case, run

X = np.array([0.5, -1.5, 2.0], np.float32)
M = np.arange(12, dtype=np.float32).reshape(3, 4)


def _loop(x):
  total = jax.new_ref(x * 0)  # of x, since JAX's remat wants it
  jax.lax.fori_loop(0, 3, lambda i, _: total.__setitem__(..., total[...] + jnp.sin(x) * i), None)
  return total[...]


def _straight(x):
  ref = jax.new_ref(x)
  ref[...] *= jnp.sin(x)
  return ref[...]


def _branch(x):
  ref = jax.new_ref(x)
  jax.lax.cond(x.sum() > 0, lambda: ref.__setitem__(0, ref[1] * 2), lambda: None)
  return jax.freeze(ref)


def _inner(x):
  def body(carry, row):
    ref = jax.new_ref(carry)
    ref[...] *= row
    return ref[...], ref[...] + 1

  return jax.lax.scan(body, jnp.float32(1), x)


def _run_state(x):
  def body(refs):
    total, operand = refs
    total[...] += jnp.sin(operand[...])

  return run_state(body)((jnp.ones_like(x), x))[0]


@jax.custom_vjp
def _cube(x):
  ref = jax.new_ref(x)
  ref[...] = ref[...] ** 3
  return ref[...]


# not the derivative of a cube: JAX uses it all the same
_cube.defvjp(lambda x: (_cube(x), x), lambda x, g: (g * 7 * x,))


def _indexing(m):
  ref = jax.new_ref(m)
  ref[1] = ref[0] * 2
  ref[2, 3] = ref[1, 2]
  ref[0, :3] = ref[:, 1]
  some = ref[jnp.array([0, 0, 1]), jnp.array([1, 2, 3])]
  ref[jnp.array([1, 2, 1]), jnp.array([0, 0, 1])] = some
  ref[::2, 1:4:2] = m[:2, :2]
  ref[jnp.array([7, -1]), 1] = m[0, :2]  # out of bounds, as for arrays
  return ref[jnp.argmax(m[0]) - 3], jax.ref.swap(ref, 1, m[2]), jax.freeze(ref)


def _while(x):
  ref = jax.new_ref(x)

  def body(i):
    ref[...] *= 2
    return i + 1

  jax.lax.while_loop(lambda i: i < 3, body, 0)
  return ref[...]


def _passed(x):
  ref = jax.new_ref(x)

  @jax.jit
  def update(ref, y):
    ref[0] = y * 2
    ref.addupdate(y, idx=1)

  update(ref, x[2])
  update(ref, ref[0])
  return ref[...]


def _distances(m):
  def distance(x, y, out):
    out[...] = jnp.sum((x - y) ** 2)

  out = jax.new_ref(jnp.zeros((3, 3)))
  jax.vmap(jax.vmap(distance, (0, None, 0)), (None, 0, 0))(m, m, out)
  return out[...]


@jax.custom_vjp
def _stash(ref, x):
  return x


_stash.defvjp(lambda ref, x: (x, ref), lambda ref, g: (ref.__setitem__(..., g), (None, g))[1])


def _stashed(x):
  ref = jax.new_ref(jnp.zeros_like(x))
  gradient = jax.grad(lambda x, ref: jnp.sin(_stash(ref, x)).sum())(x, ref)
  return gradient, ref[...]


def _sum_of_gradients(x):
  ref = jax.new_ref(jnp.zeros_like(x))
  for i in (0, 2, 0):
    # of x[i] JAX 0.10.2 has none
    jax.vjp(lambda x, i=i: jnp.sin(x * i).sum(), x)[1].with_refs(ref)(jnp.float32(1))
  return ref[...]


def _microbatches(xs):
  weights = jnp.full((2, 4, 4), 0.1)
  total = jax.new_ref(jnp.zeros_like(weights))

  def loss(weights, x):
    return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0])

  def step(_, x):
    y, pull = jax.vjp(lambda weights: loss(weights, x), weights)
    pull.with_refs(total)(jnp.ones_like(y))
    return (), y

  _, losses = jax.lax.scan(step, (), xs[:, None])
  return jax.freeze(total), losses


def _keys(x):
  key = jax.new_ref(jax.random.key(0))

  def draw():
    key[...], now = jax.random.split(key[...])
    return jax.random.normal(now, (3,))

  return draw() + x, draw()


# JAX 0.10.2 has no reverse derivative of a reverse derivative of a ref.
_GRADIENT = jax.grad(lambda x: _straight(x).sum())

# They are ordinary ops in a graph, which the rows above save.
_SAVED = {"saved": "for time"}

test_case, saved = run(
  [
    Case("ref_in_a_loop", _loop, [X], poly="b"),
    Case("ref_in_a_branch", _branch, [X]),
    Case("ref_in_a_body", _inner, [X], poly="b"),
    Case("ref_in_vmap_and_jit", jax.vmap(jax.jit(_loop)), [np.stack([X, -X])]),
    Case("ref_in_remat", jax.checkpoint(_loop), [X]),
    Case("ref_in_custom_vjp", _cube, [X]),
    Case("run_state", _run_state, [X], grad=False, poly="b"),  # JAX has no reverse derivative of it
    Case("indexing", _indexing, [M]),
    Case("while_loop", _while, [X], grad=False, skip=_SAVED),  # as of every while_loop
    Case("passed_to_jit", _passed, [X], skip=_SAVED),
    Case("passed_to_vmap", _distances, [M], skip=_SAVED),
    Case("out_of_the_backward_pass", _stashed, [X], grad=False, skip=_SAVED),
    Case("gradients_in_a_ref", _sum_of_gradients, [X], grad=False, skip=_SAVED),
    Case("microbatches", _microbatches, [M], grad=False, atol=1e-6, skip=_SAVED),
    Case("keys", _keys, [X], skip=_SAVED),
    Case(
      "second_derivative_of_a_ref", lambda x: jax.jvp(_GRADIENT, (x,), (x,))[1], [X], grad=False
    ),
  ]
)


@pytest.mark.parametrize(
  "fun",
  [_straight, jax.jit(_straight), _loop, jax.jit(_loop), _branch],
  ids=["straight", "in_jit", "loop", "loop_in_jit", "branch"],
)
def test_second_derivatives_are_those_that_jax_has(fun) -> None:
  """JAX 0.10.2 has none where a ref is both read and written, under jax.jit too."""
  x, v = tf.Variable(X), tf.constant(X)
  with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
      y = jax2tf.convert(fun)(x)
    gradient = inner.gradient(y, x)
  second = jax.grad(lambda x: (jax.grad(lambda x: fun(x).sum())(x) * X).sum())
  try:
    expected = jax.jit(second)(X)
  except AttributeError as error:
    with pytest.raises(AttributeError, match=re.escape(str(error).split()[-1])):
      outer.gradient(gradient, x, v)
    return
  # float32 sums in another order
  np.testing.assert_allclose(outer.gradient(gradient, x, v), expected, rtol=1e-5, atol=1e-6)
