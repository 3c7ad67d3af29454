"""Mutable arrays that a converted function closes over: variables, which begin with the value of
the array."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.converters import saved_model

X = np.array([0.5, -1.5, 2.0], np.float32)


def counter():
  """(a function that writes what it closes over in a loop, a call and at the end, its arrays)."""
  n, total = jax.new_ref(jnp.int32(0)), jax.new_ref(jnp.zeros(3))

  @jax.jit
  def add(x):
    total[...] += jnp.sin(x)

  def count(x):
    jax.lax.fori_loop(0, 2, lambda i, _: n.__setitem__(..., n[...] + i), None)
    add(x)
    total[0] *= 2
    return total[...] * x, n[...]

  return count, (n, total)


@pytest.mark.parametrize("how", ["eager", "function", "xla", "native", "data"])
def test_values_and_writes_are_those_of_jax(how: str) -> None:
  fun, refs = counter()
  converted = jax2tf.convert(fun, native_serialization=how == "native")
  jax.jit(fun)(X)  # the variables begin where the arrays are
  run = converted
  if how in ("function", "xla", "native"):
    run = tf.function(converted, autograph=False, jit_compile=how == "xla")
  elif how == "data":
    run = lambda x: next(iter(tf.data.Dataset.from_tensors(x).map(converted)))  # noqa: E731
  found = [run(tf.constant(X)) for _ in range(3)]
  for step in found:
    for y, expected in zip(step, jax.jit(fun)(X), strict=True):
      np.testing.assert_allclose(y, expected, rtol=1e-6)
  for ref in refs:
    np.testing.assert_allclose(jax2tf.variable_of(ref), ref[...], rtol=1e-6)


def test_each_side_has_its_own_value_and_all_functions_share_it() -> None:
  ref = jax.new_ref(jnp.float32(1))
  double, read = (
    jax2tf.convert(lambda: ref.__setitem__(..., 2.0 * ref[...])),
    jax2tf.convert(lambda x: x + ref[...]),
  )
  double()
  assert read(tf.constant(0.0)) == 2 and ref[...] == 1
  ref[...] = 7.0
  assert read(tf.constant(0.0)) == 2
  jax2tf.variable_of(ref).assign(5)
  assert read(tf.constant(0.0)) == 5
  with pytest.raises(
    TypeError, match=r"ref = 3: it is of type int; pass the result of jax.new_ref"
  ):
    jax2tf.variable_of(3)


def test_gradients_are_of_the_value_before_the_call() -> None:
  total = jax.new_ref(jnp.ones(3))

  def fun(x):
    total[...] += jnp.sin(x)
    return total[...] * x

  x, converted = tf.Variable(X), jax2tf.convert(fun)
  with tf.GradientTape() as tape:
    y = converted(x)
  np.testing.assert_allclose(
    tape.gradient(y, x), jax.grad(lambda x: ((1 + jnp.sin(x)) * x).sum())(X), rtol=1e-5
  )
  np.testing.assert_allclose(jax2tf.variable_of(total), 1 + np.sin(X), rtol=1e-6)  # written once


@pytest.mark.parametrize("with_gradient", [True, False])
def test_two_refs_change_places(with_gradient: bool) -> None:
  """TF 2.21 loses control dependencies on what comes out of a custom gradient, often but not
  always: hence the repetitions."""
  for _ in range(12):
    ref = jax.new_ref(jnp.float32(1))

    def swap(other, x, ref=ref):
      other[...], ref[...] = ref[...] + x, other[...]
      return x

    variable = tf.Variable(3.0)
    tf.function(jax2tf.convert(swap, with_gradient=with_gradient), autograph=False)(
      jax2tf.Ref(variable), tf.constant(10.0)
    )
    assert (variable.numpy(), jax2tf.variable_of(ref).numpy()) == (11, 3)


def test_two_leaves_of_a_state_change_places() -> None:
  state = {"a": np.float32(3), "b": np.float32(1)}
  model = saved_model.Model({}, state=state, with_gradient=True)
  model.add(
    lambda p, s, x: ({"a": s["b"] + x, "b": s["a"]}, x * s["b"]),
    inputs={"x": "f32[]"},
    stateful=True,
  )
  a, b = 3.0, 1.0
  for _ in range(20):
    a, b, y = b + 10, a, b * 10
    assert model.signatures["serving_default"](x=tf.constant(10.0))["output"] == y
    assert [float(v) for v in model.state_variables] == [a, b]


def test_a_typed_key_and_a_symbolic_size() -> None:
  ref = jax.new_ref(jax.random.key(0))

  def draw(x):
    now, after = jax.random.split(ref[...])
    ref[...] = after
    return x + jax.random.normal(now, (3,))

  run = jax2tf.convert(draw, polymorphic_shapes="b, 3")
  for _ in range(2):
    np.testing.assert_allclose(run(np.stack([X, X])), jax.jit(draw)(np.stack([X, X])), rtol=1e-6)


def test_a_saved_model_keeps_it(tmp_path: Path) -> None:
  fun, (n, _) = counter()
  model = saved_model.Model({}).add(
    lambda params, x: fun(x), inputs={"x": "f32[3]"}, outputs=["y", "n"]
  )
  loaded = tf.saved_model.load(str(model.save(tmp_path)))
  run = loaded.signatures["serving_default"]
  assert [int(run(x=X)["n"]) for _ in range(3)] == [1, 2, 3]
  assert len(loaded.captured_variables) == 2 and not loaded.trainable_variables
  assert jax2tf.variable_of(n) == 0


def test_a_graph_of_tensorflow_1_is_refused() -> None:
  fun, _ = counter()
  with (
    tf.Graph().as_default(),
    pytest.raises(NotImplementedError, match="does not order reads and writes"),
  ):
    jax2tf.convert(fun)(tf.constant(X))


def test_shapes_are_those_of_the_results() -> None:
  fun, _ = counter()
  shapes = jax2tf.eval_polymorphic_shape(fun, polymorphic_shapes="3")
  assert shapes(jax.ShapeDtypeStruct((3,), jnp.float32))[1] == ("(3,)", "()")


def test_a_checkpoint_differentiates_with_a_ref_of_its_kind() -> None:
  ref = jax.new_ref(jnp.float32(1), kind="no_grad_no_remat")

  @jax.checkpoint
  def scaled(x):
    y = jnp.sin(x) * ref[...]
    ref[...] += 1
    return y

  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = jax2tf.convert(scaled)(x)
  np.testing.assert_allclose(tape.gradient(y, x), jax.grad(lambda x: scaled(x).sum())(X), rtol=1e-6)
  assert jax2tf.variable_of(ref).numpy() == ref[...] == 2
