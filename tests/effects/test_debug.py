"""`jax.debug.print` and `jax.debug.callback`: the text of JAX, as often and in the order of the
program."""

from __future__ import annotations

import functools
import io

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
  jax.lax.cond(
    x.sum() > 0, lambda: jax.debug.print("positive {}", x), lambda: jax.debug.print("negative")
  )
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


_own.defvjp(_forward, lambda x, g: (jax.debug.print("backward {}", g), (g * jnp.cos(x),))[1])


@jax.custom_jvp
def _rule(x):
  jax.debug.print("primal {}", x)
  return jnp.sin(x).sum()


_rule.defjvp(
  lambda x, t: (
    jax.debug.print("rule {}", x[0]),
    (jnp.sin(x[0]).sum(), (jnp.cos(x[0]) * t[0]).sum()),
  )[1]
)


def _rows(x):
  # nothing is carried, nothing results
  jax.lax.scan(lambda c, row: (jax.debug.print("{}", row), (c, None))[1], None, x)
  return (x**3).sum()


def _same(x):
  """JAX's derivative takes out of the loop what is the same in each turn."""
  return jax.lax.fori_loop(0, 3, lambda i, c: (jax.debug.print("turn"), c * c)[1], x).sum()


def _predicate(x):
  return jax.vmap(
    lambda y: jax.lax.while_loop(
      lambda c: (jax.debug.print("{}", c), c < 3)[1], lambda c: c + 1.5, y
    )
  )(x).sum()


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

  expected = _lines(capsys, lambda: jax.jit(jax.grad(fun))(X))
  inside = tf.function(functools.partial(_gradient, converted), autograph=False)
  for call in (
    functools.partial(_gradient, converted),
    inside,
    functools.partial(_gradient, function),
  ):
    assert _lines(capsys, lambda call=call: call(tf.constant(X))) == expected


def _lines(capsys, call):
  """What is printed; JAX leaves the order open."""
  return sorted(_text(capsys, call).splitlines())


def _gradient(function, x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)
  return tape.gradient(y, x)


def _tangents(function, x):
  with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
    y = function(x)
  return accumulator.jvp(y)


@pytest.mark.parametrize("fun", [_branch, _rows, _predicate], ids=lambda fun: fun.__name__)
def test_graphs_of_tensorflow_1(fun, capsys):
  converted = jax2tf.convert(fun)
  expected = _text(capsys, lambda: jax.jit(fun)(X))
  wrapped = tf.compat.v1.wrap_function(converted, [tf.TensorSpec([3])])
  assert _text(capsys, lambda: wrapped(tf.constant(X))) == expected
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x = tf.compat.v1.placeholder(tf.float32, [3])
    y = converted(x)
    assert _text(capsys, lambda: session.run(y, {x: X})) == expected
    if fun is not _predicate:  # JAX has no gradient of it
      expected = _text(capsys, lambda: jax.jit(jax.grad(fun))(X))
      found = tf.gradients(y, x)[0]
      assert _text(capsys, lambda: session.run(found, {x: X})) == expected


@pytest.mark.parametrize("fun", [_loop, _remat, _own, _rule, _same], ids=lambda fun: fun.__name__)
def test_derivatives_print_as_often_as_those_of_jax(fun, capsys):
  """What is computed once more is silent; derivative rules print what they do."""
  converted = jax2tf.convert(fun)
  first, second = (
    functools.partial(_gradient, converted),
    functools.partial(_gradient, functools.partial(_gradient, converted)),
  )
  pairs = [(jax.grad(fun), first), (jax.grad(lambda x: jax.grad(fun)(x).sum()), second)]
  if fun not in (_own, _same):  # the one has no tangents in JAX, those of the other are refused
    pairs.append(
      (lambda x: jax.jvp(fun, (x,), (jnp.ones_like(x),)), functools.partial(_tangents, converted))
    )
  for of_jax, ours in pairs:
    expected = _lines(capsys, lambda of_jax=of_jax: jax.jit(of_jax)(X))
    assert expected
    for call in (ours, tf.function(ours, autograph=False)):
      assert _lines(capsys, lambda call=call: call(tf.constant(X))) == expected


@pytest.mark.parametrize("fun", [_own, _rule, _same], ids=lambda fun: fun.__name__)
def test_what_the_derivative_prints_alone_wants_its_tape_inside(fun, capsys):
  """The graph of the function prints one thing or the other; which, only a tape inside of it can
  say."""
  function = tf.function(jax2tf.convert(fun), autograph=False)
  assert _text(capsys, lambda: function(X)) == _text(capsys, lambda: jax.jit(fun)(X))
  with pytest.raises(
    jax2tf.LoweringError,
    match=r"(?s)other effects than the function.*test_debug\.py:.*the tape inside",
  ):
    _gradient(function, tf.constant(X))


def test_tangents_of_other_effects_than_the_results(capsys):
  """JAX's gradients print once here, its tangents in each turn; a tape may ask for the one and an
  accumulator for the other."""
  with pytest.raises(
    jax2tf.LoweringError,
    match=r"(?s)other effects than the results.*test_debug\.py:.*jax.jvp before convert",
  ):
    _tangents(jax2tf.convert(_same), tf.constant(X))


@pytest.mark.xfail(
  strict=True, reason="TensorFlow runs the backward pass once more, with cotangents of zeros"
)
def test_tapes_of_tapes_outside_of_a_function_whose_backward_pass_prints(capsys):
  expected = _lines(capsys, lambda: jax.jit(jax.grad(lambda x: jax.grad(_remat)(x).sum()))(X))
  function = tf.function(jax2tf.convert(_remat), autograph=False)
  assert (
    _lines(capsys, lambda: _gradient(functools.partial(_gradient, function), tf.constant(X)))
    == expected
  )


@pytest.mark.parametrize("with_gradient", [True, False])
def test_vectorized_map_is_refused(with_gradient):
  converted = jax2tf.convert(_prints, with_gradient=with_gradient)
  with pytest.raises(
    ValueError,
    match=r"tf\.vectorized_map.*once, for one of the rows\. Use jax\.vmap before convert",
  ):
    tf.vectorized_map(converted, tf.constant([X, X]))


def test_a_jacobian_prints_once(capsys):
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = jax2tf.convert(_first)(x)
  assert _text(capsys, lambda: tape.jacobian(y, x)) == "first 0.5 3\n"


def test_xla_leaves_prints_out(capsys):
  function = tf.function(jax2tf.convert(_branch), autograph=False, jit_compile=True)
  words = (
    r"(?s)jit_compile=True omits prints and checks:\n.*debug_print at "
    r".*test_debug\.py:\d+.*debug_callback \(_first.*at .*\(_first\)$"
  )
  with pytest.warns(UserWarning, match=words) as warned:
    assert _text(capsys, lambda: function(X)) == ""
  assert len(warned) == 1
  np.testing.assert_allclose(function(X), _branch(X))


def _nonfinite(x, typed):
  """As `breakpoint_if_nonfinite` of JAX's documentation."""

  def stop(x):
    y = x + 1
    jax.debug.breakpoint(stdin=io.StringIO(typed), backend="cli")
    return y

  return jax.lax.cond(jnp.isfinite(x).all(), lambda x: x, stop, x)


def test_breakpoints(capsys):
  """One debugger, which says what it does for JAX; in a branch that is not taken there is none."""
  fun = functools.partial(_nonfinite, typed="p y\nbt\nc\n")
  said = []
  for run in (jax.jit(fun), tf.function(jax2tf.convert(fun), autograph=False)):
    assert _text(capsys, lambda run=run: run(X)) == ""
    said.append(_text(capsys, lambda run=run: run(X * np.inf)))
  assert said[0] == said[1]
  assert said[0].startswith(
    "Entering jdb:\n(jdb) Array([ inf, -inf,  inf], dtype=float32)\n(jdb) Traceback:"
  )
