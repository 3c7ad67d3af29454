"""tf.Variables where a JAX function takes mutable arrays: read and written as JAX does with its
own."""

from __future__ import annotations

import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import nnx

import jax2tf

X = np.array([0.5, -1.5, 2.0], np.float32)


def _step(state, x):
  state["n"][0] += 1
  state["sum"][...] += x * state["n"][0]
  return jnp.sin(state["sum"][...]) * x


def _state():
  return {"n": np.ones(2, np.float32), "sum": X * 2}


def _variables():
  return jax.tree.map(tf.Variable, _state())


def _given(variables):
  return jax.tree.map(jax2tf.Ref, variables)


@pytest.mark.parametrize("way", ["eager", "graph", "xla", "data", "loop", "shapes"])
def test_variables_are_as_the_refs_of_jax(way):
  refs = jax.tree.map(jax.new_ref, _state())
  expected = [_step(refs, X) for _ in range(3)]
  variables = _variables()
  converted = jax2tf.convert(
    _step, polymorphic_shapes=[{"n": "_", "sum": "b"}, "b"] if way == "shapes" else None
  )

  def call(x):
    return converted(_given(variables), x)

  if way == "data":
    results = list(tf.data.Dataset.from_tensors(X).repeat(3).map(call))
  elif way == "loop":

    @tf.function(autograph=False)
    def loop(x):
      body = lambda i, ys: (i + 1, ys.write(i, call(x)))  # noqa: E731
      return tf.while_loop(lambda i, ys: i < 3, body, (0, tf.TensorArray(tf.float32, 3)))[1].stack()

    results = loop(X)
  else:
    fun = (
      tf.function(call, autograph=False, jit_compile=way == "xla")
      if way in ("graph", "xla")
      else call
    )
    results = [fun(tf.constant(X)) for _ in range(3)]
  np.testing.assert_allclose(results, expected, rtol=1e-6)
  for name, variable in variables.items():
    np.testing.assert_allclose(variable, refs[name][...], rtol=1e-6)


@pytest.mark.parametrize("in_graph", [False, True])
def test_gradients_by_the_first_value_and_by_arguments_write_once(in_graph):
  def values(state, x):
    return _step(jax.tree.map(jax.new_ref, state), x).sum()

  expected = jax.grad(values, (0, 1))(_state(), X)
  second = jax.grad(lambda x: jax.grad(values, 1)(_state(), x).sum())(X)
  variables, x = _variables(), tf.constant(X)
  converted = jax2tf.convert(_step)

  def gradients():
    with tf.GradientTape() as outer:
      outer.watch(x)
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(converted(_given(variables), x))
      found = tape.gradient(y, (variables, x))
    return found, outer.gradient(found[1], x)

  found, found_second = (tf.function(gradients, autograph=False) if in_graph else gradients)()
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, tuple(expected))
  np.testing.assert_allclose(found_second, second, rtol=1e-5)
  assert variables["n"][0].numpy() == 2


def test_saved_with_the_module_that_owns_the_variables(tmp_path):
  module = tf.Module()
  module.n = tf.Variable(np.array([True, False]))
  module.low = tf.Variable(tf.cast(X, tf.bfloat16))

  def flip(n, low):
    n[0] = ~n[0]
    low[...] = low[...] * 2
    return n[...]

  converted = jax2tf.convert(flip)
  module.flip = tf.function(
    lambda: converted(jax2tf.Ref(module.n), low=jax2tf.Ref(module.low)),
    autograph=False,
    input_signature=[],
  )
  module.flip()
  tf.saved_model.save(
    module, tmp_path / "m", signatures={"flip": module.flip.get_concrete_function()}
  )
  loaded = tf.saved_model.load(tmp_path / "m")
  assert [loaded.flip()[0].numpy() for _ in range(3)] == [True, False, True]
  np.testing.assert_array_equal(tf.cast(loaded.low, tf.float32), X * 16)
  assert not module.n[0].numpy()


def _read_in_loop(ref):
  return jax.lax.fori_loop(0, 3, lambda i, s: s + ref[i], 0.0)


def _put(ref):
  ref[1:3] = ref[:2]


@pytest.mark.parametrize(
  ("fun", "writes"),
  [
    (lambda a, b: a[...] + b[0], 0),
    (lambda a, b: _read_in_loop(a) * jax.jit(_read_in_loop)(b), 0),
    (lambda a, b: a, 0),
    (lambda a, b: _put(b) or a[...], 1),
    (lambda a, b: jax.jit(_put)(b) or _read_in_loop(a), 1),
    (lambda a, b: jax.lax.cond(a[0] > 0, _put, lambda ref: None, b), 1),
    (lambda a, b: jax.lax.fori_loop(0, 2, lambda i, s: _put(b) or s + a[i], 0.0), 1),
  ],
)
def test_what_is_only_read_is_not_written(fun, writes):
  a, b = tf.Variable(X), tf.Variable(X)
  converted = jax2tf.convert(
    lambda a, b: jax.tree.map(lambda x: 0.0 if isinstance(x, jax.Ref) else x, fun(a, b))
  )
  call = tf.function(
    lambda: converted(jax2tf.Ref(a), jax2tf.Ref(b)), autograph=False
  ).get_concrete_function()
  assert [op.type for op in call.graph.get_operations()].count("AssignVariableOp") == writes
  call()
  ref = jax.new_ref(X)
  fun(jax.new_ref(X), ref)
  np.testing.assert_array_equal(b, ref[...])
  np.testing.assert_array_equal(a, X)


def test_refused_in_words():
  converted = jax2tf.convert(lambda a, b: a[...] + b[...])
  variable = tf.Variable(X)
  with pytest.raises(
    ValueError, match=r"only one reference to a mutable array .* at both args\[0\] and args\[1\]"
  ):
    converted(jax2tf.Ref(variable), jax2tf.Ref(variable))
  with pytest.raises(TypeError, match=r"takes a tf.Variable, and args\[1\] has a ndarray"):
    converted(X, jax2tf.Ref(X))
  with pytest.raises(TypeError, match=r"args\[0\] is float64.*a variable of float32"):
    converted(jax2tf.Ref(tf.Variable(X.astype(np.float64))), X)
  with pytest.raises(NotImplementedError, match=r"call it in a tf.function"):
    tf.compat.v1.wrap_function(lambda: converted(jax2tf.Ref(variable), X), [])


def test_a_variable_that_call_tf_captures_too_is_refused() -> None:
  n = tf.Variable(1.0, name="n")

  def fun(ref: Any, x: Any) -> Any:
    ref[...] += 1
    return jax2tf.call_tf(lambda x: x * n)(x) + ref[...]

  with pytest.raises(
    ValueError,
    match=r"'fun' takes n:0 as a jax2tf\.Ref, and a TensorFlow function inside uses the same "
    r"variable",
  ):
    jax2tf.convert(fun)(jax2tf.Ref(n), 2.0)


def test_debug_nans_runs_the_function_of_refs() -> None:
  def fun(ref: Any, x: Any) -> Any:
    ref[...] = jnp.log(x)
    return x

  with jax.debug_nans(True), pytest.raises(FloatingPointError, match="log"):
    jax2tf.convert(fun)(jax2tf.Ref(tf.Variable(1.0)), -1.0)


def test_prints_calls_of_tensorflow_and_writes_are_in_the_order_of_the_program(capfd):
  seen = []
  note = jax2tf.call_tf(
    lambda x: tf.ensure_shape(
      tf.numpy_function(lambda x: (seen.append(float(x)), x)[1], [x], tf.float32), []
    ),
    ordered=True,
  )

  def fun(ref, x):
    jax.debug.print("before {}", ref[0], ordered=True)
    ref[0] += x
    y = note(ref[0])
    jax.debug.print("after {}", ref[0], ordered=True)
    ref[...] *= 2.0
    return y + ref[1]

  ref, variable = jax.new_ref(jnp.asarray(X)), tf.Variable(X)
  run = tf.function(jax2tf.convert(fun, with_gradient=False), autograph=False)
  expected = [float(jax.jit(fun)(ref, jnp.float32(i))) for i in range(2)]
  jax.effects_barrier()
  text, calls = capfd.readouterr().out, seen.copy()
  seen.clear()
  assert [
    float(run(jax2tf.Ref(variable), tf.constant(np.float32(i)))) for i in range(2)
  ] == expected
  assert (capfd.readouterr().out, seen) == (text, calls)
  np.testing.assert_array_equal(variable, ref[...])


def test_the_refs_of_an_nnx_module():
  class Net(nnx.Module):
    def __init__(self):
      self.linear, self.norm = (
        nnx.Linear(3, 2, rngs=nnx.Rngs(0)),
        nnx.BatchNorm(2, rngs=nnx.Rngs(0)),
      )

    def __call__(self, x):
      return self.norm(self.linear(x))

  with nnx.var_defaults(ref=True):
    graph, refs = nnx.split(Net())
  fun = lambda refs, x: nnx.merge(graph, refs)(x)  # noqa: E731
  variables = jax.tree.map(lambda ref: tf.Variable(np.asarray(ref[...])), refs)
  converted = jax2tf.convert(fun)
  # tf.function takes no nnx.State
  run = tf.function(lambda x: converted(_given(variables), x), autograph=False)
  for _ in range(2):  # each moves the statistics
    np.testing.assert_allclose(
      run(np.eye(3, dtype=np.float32)), jax.jit(fun)(refs, jnp.eye(3)), rtol=1e-5, atol=1e-6
    )
  jax.tree.map(
    lambda variable, ref: np.testing.assert_allclose(variable, ref[...], rtol=1e-5), variables, refs
  )


def test_a_key_in_a_process_without_jax(tmp_path, without_jax):
  module = tf.Module()
  module.key = tf.Variable(np.asarray(jax.random.key_data(jax.random.key(0))))

  def draw(words):
    now, after = jax.random.split(jax.random.wrap_key_data(words[...]))
    words[...] = jax.random.key_data(after)
    return jax.random.uniform(now)

  converted = jax2tf.convert(draw, with_gradient=False)
  module.draw = tf.function(
    lambda: converted(jax2tf.Ref(module.key)), autograph=False, input_signature=[]
  )
  tf.saved_model.save(
    module, tmp_path / "m", signatures={"draw": module.draw.get_concrete_function()}
  )
  script = (
    "import sys, tensorflow as tf\nm = tf.saved_model.load(sys.argv[1])\nfor _ in "
    "range(3): print(repr(float(m.draw())))"
  )
  command = [without_jax, "-c", script, str(tmp_path / "m")]
  found = subprocess.run(
    command, capture_output=True, text=True, check=True, timeout=120
  ).stdout.split()
  key, expected = jax.random.key(0), []
  for _ in range(3):
    now, key = jax.random.split(key)
    expected.append(repr(float(jax.random.uniform(now))))
  assert found == expected
