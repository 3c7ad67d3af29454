"""`jax.debug.print` and `jax.debug.callback`: the text of JAX, as often and in the order of the program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf

X = np.array([0.5, -1.5, 2.0], np.float32)


def _prints(x):
  jax.debug.print("x = {x} {0:.3f}", x[0], x=x)
  y = jnp.sin(x)
  jax.debug.print("y = {}", y, ordered=True)
  return y.sum()


def _loop(x):
  def body(i, c):
    jax.debug.print("{i}: {c}", i=i, c=c)
    return c * 2

  return jax.lax.fori_loop(0, 12, body, x).sum()


def _scan(x):
  def step(c, row):
    jax.debug.print("{} {}", c, row.astype(jnp.bfloat16))
    return c + row, c * row

  return jax.lax.scan(step, x[0], x)[1].sum()


def _branch(x):
  jax.lax.cond(x.sum() > 0, lambda: jax.debug.print("positive {}", x), lambda: jax.debug.print("negative"))
  return jax.lax.cond(x.sum() > 9, lambda x: x, _first, x).sum()


def _first(x):
  jax.debug.callback(lambda first, n: print("first", first, n), x[0], n=3)
  return x * 2


@jax.checkpoint
def _remat(x):
  jax.debug.print("remat {}", x)
  return jnp.sin(jnp.sin(x)).sum()


@jax.custom_vjp
def _own(x):
  jax.debug.print("primal {}", x)
  return jnp.sin(x).sum()


def _forward(x):
  jax.debug.print("forward {}", x)
  return jnp.sin(x).sum(), x


_own.defvjp(_forward, lambda x, g: (g * jnp.cos(x),))


@jax.custom_vjp
def _backward(x):
  return jnp.sin(x).sum()


_backward.defvjp(lambda x: (_backward(x), x), lambda x, g: (jax.debug.print("backward {}", g), (g * jnp.cos(x),))[1])


FUNCTIONS = {
  "print": _prints,
  "loop": _loop,
  "scan": _scan,
  "branch": _branch,
  "vmap": lambda x: jax.vmap(lambda y: (jax.debug.print("{}", y), y * 2)[1])(x).sum(),
  "remat": _remat,
  "key": lambda x: (jax.debug.print("{}", jax.random.key_data(jax.random.key(3))), x.sum())[1],
  "no_operands": lambda x: (jax.debug.print("here"), x.sum())[1],
}


def _text(capsys, call):
  call()
  jax.effects_barrier()
  return capsys.readouterr().out


@pytest.mark.parametrize("name", FUNCTIONS)
def test_text(name, capsys):
  fun = FUNCTIONS[name]
  expected = _text(capsys, lambda: jax.jit(fun)(X))
  assert expected
  converted = jax2tf.convert(fun)
  function = tf.function(converted, autograph=False)
  assert _text(capsys, lambda: converted(X)) == expected
  for _ in range(2):
    assert _text(capsys, lambda: function(X)) == expected

  def gradient(run=converted):
    with tf.GradientTape() as tape:
      x = tf.constant(X)
      tape.watch(x)
      y = run(x)
    return tape.gradient(y, x)

  expected = _text(capsys, lambda: jax.jit(jax.grad(fun))(X))
  inside, outside = tf.function(gradient, autograph=False), lambda: gradient(function)
  for call in (gradient, inside, outside)[: 2 if name == "remat" else 3]:  # its backward pass prints, and is refused outside: below
    assert sorted(_text(capsys, call).splitlines()) == sorted(expected.splitlines())


def test_a_backward_pass_that_prints_wants_its_tape_in_the_function():
  function, x = tf.function(jax2tf.convert(_remat), autograph=False), tf.constant(X)
  with tf.GradientTape() as tape, pytest.raises(jax2tf.LoweringError, match="a tape outside of a"):
    tape.watch(x)
    function(x)


def test_refused():
  converted = jax2tf.convert(_prints)
  with pytest.raises(jax2tf.LoweringError, match=r"(?s)'debug_print'.*XLA cannot compile.*test_debug\.py:"):
    tf.function(jax2tf.convert(_prints, with_gradient=False), autograph=False, jit_compile=True)(X)
  with tf.Graph().as_default(), pytest.raises(jax2tf.LoweringError, match="TensorFlow 1"):
    converted(tf.compat.v1.placeholder(tf.float32, [3]))


@pytest.mark.parametrize("fun", [_own, _backward, lambda x: _prints(x) ** 2], ids=["forward", "backward", "second order"])
def test_derivatives_that_would_repeat_are_refused(fun):
  x = tf.constant(X)
  with pytest.raises(jax2tf.LoweringError, match=r"(?s)for its effects.*test_debug\.py:"), tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = jax2tf.convert(fun)(x)
    outer.gradient(tape.gradient(y, x), x)
  with pytest.raises(jax2tf.LoweringError, match="for its effects"), tf.autodiff.ForwardAccumulator(x, x) as accumulator:
    accumulator.jvp(jax2tf.convert(_prints)(x))
