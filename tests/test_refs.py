"""Mutable arrays that a function makes for itself: pure from outside, so TensorFlow sees values only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.state.discharge import run_state

import jax2tf
from tests.case import Case, run

X = np.array([0.5, -1.5, 2.0], np.float32)


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


_cube.defvjp(lambda x: (_cube(x), x), lambda x, g: (g * 7 * x,))  # not the derivative of a cube: JAX uses it all the same

# JAX 0.10.2 has no reverse derivative of a reverse derivative of a ref.
_GRADIENT = jax.grad(lambda x: _straight(x).sum())

test_case, saved = run(
  [
    Case("ref_in_a_loop", _loop, [X], poly="b"),
    Case("ref_in_a_branch", _branch, [X]),
    Case("ref_in_a_body", _inner, [X], poly="b"),
    Case("ref_in_vmap_and_jit", jax.vmap(jax.jit(_loop)), [np.stack([X, -X])]),
    Case("ref_in_remat", jax.checkpoint(_loop), [X]),
    Case("ref_in_custom_vjp", _cube, [X]),
    Case("run_state", _run_state, [X], grad=False, poly="b"),  # JAX has no reverse derivative of it
    Case("second_derivative_of_a_ref", lambda x: jax.jvp(_GRADIENT, (x,), (x,))[1], [X], grad=False),
  ]
)


def test_a_ref_from_outside_is_refused() -> None:
  ref = jax.new_ref(jnp.float32(1))
  with pytest.raises(jax2tf.LoweringError, match="mutable array"):
    jax2tf.convert(lambda x: x + ref[...])(X)
