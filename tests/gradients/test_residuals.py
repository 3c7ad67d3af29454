"""Residuals in a graph are computed when a tape asks for them, from what the function itself has
computed."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.derivative_jaxprs import Derivative

X = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 8, 8)).astype(np.float32)


def attention(w: Any, x: Any) -> Any:
  """With duplicates (elu compares twice), with what idioms compute in one op (transposes before
  products), with inner calls."""
  query, key, value = (jnp.reshape(x @ m, (*x.shape[:2], 2, 4)) for m in w)
  mixed = jax.nn.dot_product_attention(query, key, jax.nn.elu(value))
  return jnp.var(jax.nn.gelu(mixed.reshape(x.shape)) + x, axis=-1)


def value_and_gradient(w: tf.Tensor) -> Any:
  converted = jax2tf.convert(attention)
  with tf.GradientTape() as tape:
    tape.watch(w)
    y = tf.reduce_sum(converted(w, X))
  return y, tape.gradient(y, w)


def op_counts() -> collections.Counter[str]:
  """Of the ops that value and gradient need."""
  graph = (
    tf.function(value_and_gradient, autograph=False)
    .get_concrete_function(tf.TensorSpec(W.shape))
    .graph
  )
  needed: set[tf.Operation] = set()
  waiting = [y.op for y in graph.outputs]
  while waiting:
    if (op := waiting.pop()) not in needed:
      needed.add(op)
      waiting += [x.op for x in op.inputs]
  return collections.Counter(op.type for op in needed)


def test_nothing_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
  """Next to residuals that are computed with the results, from one jaxpr."""
  late = op_counts()
  monkeypatch.setattr(Derivative, "residuals_can_be_lazy", False)
  early = op_counts()
  assert early["MatMul"] + early["BatchMatMulV2"] >= 10
  assert not {
    op: n for op, n in (late - early).items() if op not in ("Const", "Identity", "Transpose")
  }
  # that of a residual, which an idiom did without
  assert late["Transpose"] <= early["Transpose"] + 1


def test_a_graph_without_a_tape_traces_no_pullback(monkeypatch: pytest.MonkeyPatch) -> None:
  traced: list[Any] = []
  vjp = Derivative._vjp
  monkeypatch.setattr(
    Derivative, "_vjp", lambda self, *args: traced.append(self) or vjp(self, *args)
  )
  converted = tf.function(jax2tf.convert(attention), autograph=False)
  expected, pull = jax.vjp(attention, W, X)
  np.testing.assert_allclose(converted(W, X), expected, rtol=1e-5)
  assert not traced
  for _ in range(2):  # the second finds the residuals of the first
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(w := tf.constant(W))
      y = converted(w, X)
    np.testing.assert_allclose(
      tape.gradient(y, w), pull(np.ones_like(expected))[0], rtol=1e-4, atol=1e-5
    )
  assert len(traced) <= 4  # forward, backward, and the pullback that TensorFlow may differentiate


def test_a_function_saved_after_it_was_traced_has_its_gradient(tmp_path: Path) -> None:
  module = tf.Module()
  module.f = tf.function(
    jax2tf.convert(attention),
    autograph=False,
    input_signature=[tf.TensorSpec(W.shape), tf.TensorSpec(X.shape)],
  )
  module.f(W, X)
  tf.saved_model.save(
    module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  )
  loaded = tf.saved_model.load(str(tmp_path))
  with tf.GradientTape() as tape:
    tape.watch(w := tf.constant(W))
    y = loaded.f(w, X)
  expected, pull = jax.vjp(attention, W, X)
  np.testing.assert_allclose(y, expected, rtol=1e-5)
  np.testing.assert_allclose(
    tape.gradient(y, w), pull(np.ones_like(expected))[0], rtol=1e-4, atol=1e-5
  )


def _two_draws(x: Any) -> Any:
  u, v = (jax.lax.rng_uniform(np.float32(0), np.float32(1), (3,)) for _ in range(2))
  return x * u + x**2 * v, u, v


def _two_implementations(x: Any) -> Any:
  draws = []
  for flag in (False, True):
    with jax.threefry_partitionable(flag):
      draws.append(jax.random.normal(jax.random.key(7), (3,)))
  return x * draws[0] + x**2 * draws[1], *draws


@pytest.mark.parametrize("fun", [_two_draws, _two_implementations])
def test_equal_equations_with_different_results_are_two_values(fun: Any) -> None:
  converted, x = jax2tf.convert(fun), tf.constant([1.0, 2.0, 3.0])

  @tf.function(autograph=False)
  def gradient(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch(x)
      y, u, v = converted(x)
    return tape.gradient(y, x), u + 2 * x * v

  np.testing.assert_allclose(*gradient(x), rtol=1e-6)


def _with_rule(factor: Any) -> Any:
  """A function whose derivative is `factor`, which runs where a tape asks for it."""

  @jax.custom_jvp
  def total(x: Any) -> Any:
    return x.sum()

  total.defjvp(lambda primals, tangents: (total(*primals), (factor(*primals) * tangents[0]).sum()))
  return total


def _without_a_key(x: Any) -> Any:
  return jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), x.shape)


RANDOM = {
  "rng_uniform": _without_a_key,
  "in_a_call": jax.jit(_without_a_key),
  "call_tf": jax2tf.call_tf(lambda x: x + tf.random.uniform(x.shape)),
}


def _gradient(fun: Any) -> Any:
  @tf.function(autograph=False)
  def gradient(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = jax2tf.convert(fun)(x)
    return tape.gradient(y, x)

  return gradient


@pytest.mark.parametrize("draw", RANDOM.values(), ids=RANDOM)
def test_two_draws_of_a_rule_are_two_values(draw: Any) -> None:
  assert np.all(_gradient(_with_rule(lambda x: draw(x) - draw(x)))(tf.constant([1.0, 2.0])) != 0)


@pytest.mark.parametrize("in_a_branch", [False, True])
def test_effects_of_a_rule_are_kept(in_a_branch: bool, capfd: pytest.CaptureFixture[str]) -> None:
  called: list[float] = []

  def note(x: np.ndarray) -> np.ndarray:
    called.append(float(x[0]))
    return np.asarray(x)

  def factor(x: Any) -> Any:
    jax.debug.print("at {}", x[0])
    twice = [jax.experimental.io_callback(note, x, x, ordered=False) for _ in range(2)]
    return twice[0] + twice[1]

  branches = lambda x: jax.lax.cond(x[0] > 0, factor, jnp.sin, x)  # noqa: E731
  fun = _with_rule(branches if in_a_branch else factor)
  np.testing.assert_array_equal(_gradient(fun)(tf.constant([1.0, 2.0])), [2, 4])
  jax.effects_barrier()
  assert called == [1.0, 1.0]
  assert capfd.readouterr().out.count("at 1.0") == 1


def test_effects_of_a_rule_are_refused_in_a_graph_that_is_the_same_without_a_tape() -> None:
  def factor(x: Any) -> Any:
    jax.debug.print("at {}", x[0])
    return x

  converted = tf.function(jax2tf.convert(_with_rule(factor)), autograph=False)
  words = r"other effects than the function, .*\n.*\n +put the tape inside of the tf\.function"
  with tf.GradientTape() as tape, pytest.raises(jax2tf.LoweringError, match=words):
    tape.watch(x := tf.constant([1.0, 2.0]))
    converted(x)  # TensorFlow makes the gradient of the graph now


def test_both_zeros_are_two_values() -> None:
  def fun(w: Any) -> Any:
    x, i = jnp.cos(jnp.arange(3.0)), np.array([0, 9])
    plus, minus = (x.at[i].get(mode="fill", fill_value=zero) for zero in (0.0, -0.0))
    return minus * w, plus

  @tf.function(autograph=False)
  def gradient(w: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch(w)
      y, _ = jax2tf.convert(fun)(w)
    return tape.gradient(y, w)

  assert np.signbit(gradient(tf.constant([1.0, 2.0]))).tolist() == [False, True]


def test_a_gradient_asked_for_outside_of_x64_has_64_bits() -> None:
  x = tf.constant([1.0, 2.0], tf.float64)
  with jax.enable_x64(True), tf.GradientTape() as tape:
    tape.watch(x)
    y = jax2tf.convert(lambda x: jnp.sum(jnp.sin(x) * 1e-12 + x))(x)
  np.testing.assert_allclose(tape.gradient(y, x), np.cos(x) * 1e-12 + 1, rtol=1e-15)
