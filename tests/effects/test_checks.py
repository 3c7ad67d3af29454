"""checkify: error values of converted functions say what JAX's do, and a check that is no value is
an assertion."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import checkify

import jax2tf
from jax2tf.converters import onnx

X = np.array([np.inf, 1, 2], np.float32)
SPECS = [tf.TensorSpec([3]), tf.TensorSpec([], tf.int32)]


def _f(x, i):
  checkify.check(i >= 0, "index {i} of {x!r}", i=i, x=x)
  return jnp.sin(x[i]) / (x[i] - 2)


def _loop(x, i):
  def body(k, c):
    checkify.check(c < 3, "{k}: {c:.1f}", k=k, c=c)
    return c + x[1]

  return jax.lax.fori_loop(0, 3, body, x[1] * i)


def _while(x, i):
  def predicate(c):
    checkify.check(c < 3, "c = {c}", c=c)
    return c < 4 + i

  return jax.lax.while_loop(predicate, lambda c: c + 1, x[1])


def _scan(x, i):
  def step(c, row):
    checkify.check(row < 2, "row {} after {}", row, c)
    return c + row, row * i

  return jax.lax.scan(step, x[1], x[1:])


def _cond(x, i):
  jax.lax.cond(
    i > 0,
    lambda: checkify.check(x[0] < 2, "first"),
    lambda: checkify.check(x[0] < 2, "second {}", x),
  )
  return x


def _mapped(x, i):
  return jax.vmap(
    lambda y: (checkify.check(y < i + 1, "{y} is not below {i}", y=y, i=i), y * 2)[1]
  )(x)


def _key(x, i):
  checkify.check(i < 0, "{}", jax.random.key(3))
  return x


def _of_the_gradient(x, i):
  return jax.grad(lambda y: jnp.sqrt(y * i).sum())(x - 1)


@pytest.mark.parametrize(
  ("fun", "errors"),
  [
    (_f, checkify.all_checks),
    (_f, checkify.index_checks | checkify.div_checks),
    (_scan, checkify.user_checks),
    (_of_the_gradient, checkify.nan_checks),
  ],
)
def test_error_values(fun, errors):
  checked = checkify.checkify(fun, errors=errors)
  jitted, function = jax.jit(checked), tf.function(jax2tf.convert(checked), autograph=False)
  for i in (-1, 0, 1, 7):
    expected, actual = jitted(X, np.int32(i))[0], function(X, tf.constant(i))[0]
    assert (actual.get(), str(actual)) == (expected.get(), str(expected))
    if expected.get() is None:
      actual.throw()
      continue
    with pytest.raises(ValueError) as raised:
      expected.throw()
    for throw in (actual.throw, lambda error=actual: checkify.check_error(error)):
      with pytest.raises(type(raised.value)) as own:
        throw()
      assert str(own.value) == str(raised.value)


def test_mapped_error_values_pass_through_functions():
  checked = jax.vmap(checkify.checkify(_f, errors=checkify.all_checks), (None, 0))
  at = np.array([-1, 1, 7], np.int32)
  error, _ = jax2tf.convert(checked)(X, at)  # eagerly
  assert error.get() == jax.jit(checked)(X, at)[0].get()
  assert jax2tf.convert(lambda error: error)(error).get() == error.get()
  compiled = tf.function(jax2tf.convert(checked), autograph=False, jit_compile=True)
  assert compiled(X, at)[0].get() == error.get()


def test_an_error_value_of_a_graph_is_thrown_by_an_assertion():
  converted = jax2tf.convert(checkify.checkify(_f))

  @tf.function(autograph=False)
  def function(x, i):
    error, y = converted(x, i)
    error.throw()
    return y

  function(X, tf.constant(1))
  with pytest.raises(
    checkify.JaxRuntimeError, match=r"^index -1 of Array\(\[inf,  1.,  2.\], dtype=float32\)"
  ):
    function(X, tf.constant(-1))
  with pytest.raises(ValueError, match=r"return it from the tf\.function"):
    tf.function(lambda x, i: converted(x, i)[0].get(), autograph=False)(X, tf.constant(1))


@pytest.mark.parametrize(
  ("fun", "i"),
  [(_f, -1), (_loop, 1), (_while, 3), (_scan, 3), (_cond, -1), (_mapped, 0), (_key, 0)],
)
def test_assertions(fun, i):
  converted, args = jax2tf.convert(fun), (X, tf.constant(i))
  expected = jax.jit(checkify.checkify(fun))(X, np.int32(i))[0].get()
  with pytest.raises(ValueError) as raised:
    converted(*args)
  assert (type(raised.value).__name__, str(raised.value)) == ("JaxRuntimeError", expected)
  assert f"({fun.__name__}" in raised.value.__notes__[0]
  # JAX's derivative of a loop has no checks.
  for call in (
    tf.function(converted, autograph=False),
    *([tf.function(_gradient(converted), autograph=False)] if fun is _loop else []),
  ):
    with pytest.raises(checkify.JaxRuntimeError) as raised:
      call(*args)
    assert str(raised.value) == expected
    assert "test_checks.py" in raised.value.__notes__[0]


def _gradient(run):
  def gradient(x, i):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = run(x, i)
    return tape.gradient(y, x)

  return gradient


@jax.custom_vjp
def _negative(x):
  return x


def _backward(_, g):
  checkify.check(g < 0, "gradient needs to be negative!")
  return (g,)


_negative.defvjp(lambda x: (x, None), _backward)


def test_checks_of_gradients():
  converted, x = jax2tf.convert(_negative), tf.constant(-1.0)
  outside = _gradient(lambda x, i: tf.function(converted, autograph=False)(x))
  with pytest.raises(ValueError, match=r"^gradient needs to be negative! \(`check` failed\)"):
    _gradient(lambda x, i: converted(x))(x, 0)
  for call in (outside, tf.function(_gradient(lambda x, i: converted(x)), autograph=False)):
    with pytest.raises(checkify.JaxRuntimeError, match=r"^gradient needs to be negative!"):
      call(x, 0)


def test_keys_that_are_used_twice():
  def fun(x):
    key = jax.random.key(0)
    return jax.random.normal(key) + jax.random.uniform(key) + x

  with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError) as expected:
    jax.jit(fun)(1.0)
  with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError) as raised:
    jax2tf.convert(fun)(1.0)
  assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_checks_that_hold():
  y = jax2tf.convert(_f)(X, np.int32(1))
  np.testing.assert_allclose(y, -np.sin(np.float32(1)), rtol=1e-6)
  jax2tf.convert(lambda x: (checkify.debug_check(x[0] < 0, "for checkify alone"), x)[1])(X)


RELOAD = """
import sys
import tensorflow as tf

f, x = tf.saved_model.load(sys.argv[1]).f, tf.constant([5.0, 1.0, 2.0])
print(f(x, tf.constant(1)).numpy())
try:
  f(x, tf.constant(-1))
except tf.errors.InvalidArgumentError as error:
  print(error.message)
"""


def test_checks_are_saved(tmp_path, without_jax):
  module = tf.Module()
  module.f = tf.function(jax2tf.convert(_f), autograph=False, input_signature=SPECS)
  tf.saved_model.save(module, str(tmp_path))
  done = subprocess.run(
    [without_jax, "-c", RELOAD, str(tmp_path)],
    check=True,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.stdout.startswith("-0.84147")
  assert "assertion failed: [index -1 of [5 1 2] (`check` failed)\\n  at " in done.stdout
  assert "test_checks.py" in done.stdout
  module.f = tf.function(
    jax2tf.convert(checkify.checkify(_f)), autograph=False, input_signature=SPECS
  )
  with pytest.raises(ValueError, match=r"jax\.tree\.leaves\(err\)"):
    tf.saved_model.save(module, str(tmp_path / "error"))


def test_exporters_leave_checks_out(tmp_path):
  with pytest.warns(UserWarning, match=r"omits prints and checks.*\n.*check at .*test_checks\.py"):
    onnx.save(lambda _, x: _loop(x, 2), {}, tmp_path / "f.onnx", inputs={"x": "f32[3]"})


def test_graphs_of_tensorflow_1():
  with tf.Graph().as_default() as graph:
    y = jax2tf.convert(_f)(X, at := tf.compat.v1.placeholder(tf.int32, []))
    with tf.compat.v1.Session(graph=graph) as session:
      np.testing.assert_allclose(session.run(y, {at: 1}), -np.sin(np.float32(1)), rtol=1e-6)
      with pytest.raises(tf.errors.InvalidArgumentError, match="JaxRuntimeError: index -1 of"):
        session.run(y, {at: -1})


def test_xla_leaves_checks_out():
  function = tf.function(jax2tf.convert(_f, with_gradient=False), autograph=False, jit_compile=True)
  with pytest.warns(
    UserWarning, match=r"omits prints and checks:\n.*check at .*test_checks\.py:\d+:\d+ \(_f\)$"
  ):
    function(X, tf.constant(1))
