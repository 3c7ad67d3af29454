"""A value that a branch or a loop body computes is not used outside of it, though the same is
computed there too.

In a graph, residuals are computed when a tape asks for them, from the values that the function has
computed already. These functions have no loops and branches, so that they wait, but the rules of
their derivatives have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf.derivative_jaxprs import Derivative

X = np.array([0.5, 2.0, 3.0], np.float32)


def with_factor(factor: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """f32[n] -> f32[], the sum of x and of sin(x), which has `factor` as the derivative of the
  former."""

  @jax.custom_jvp
  def total(x: Any) -> Any:
    return x.sum()

  @total.defjvp
  def _(primals: Any, tangents: Any) -> Any:
    return total(*primals), (factor(*primals) * tangents[0]).sum()

  return lambda x: total(x) + jnp.sin(x).sum()


def bisection(f: Callable[[Any], Any], start: Any) -> Any:
  """The zero of an increasing function between `start` and 8 more."""

  def halve(_: Any, ends: Any) -> Any:
    low, high = ends
    middle = (low + high) / 2
    return jnp.where(f(middle) > 0, low, middle), jnp.where(f(middle) > 0, middle, high)

  return lax.fori_loop(0, 30, halve, (start, start + 8))[0]


def root(x: Any) -> Any:
  """x ** 1.5, as the zero of y ** 2 - x ** 3."""
  zeros = jnp.zeros_like(x)
  return lax.custom_root(
    lambda y: y**2 - x**3, zeros, bisection, lambda g, y: y / g(jnp.ones_like(y))
  )


def matrix(x: Any) -> Any:
  """f32[n] -> f32[n,n], singular without the ones."""
  return jnp.outer(x, x) + jnp.eye(x.shape[0])


def widened(x: Any) -> Any:
  """Of a symbolic size, which a body may compute first."""
  return jnp.broadcast_to(jnp.cos(x), (2 * x.shape[0] + 1, x.shape[0])).sum(0)


def steps(x: Any, length: int) -> Any:
  return lax.scan(lambda c, _: (jnp.tanh(c) + jnp.cos(x), None), x, None, length=length)[0]


def raised(x: Any) -> Any:
  return lax.while_loop(
    lambda c: c[0] < 5, lambda c: c + jnp.abs(jnp.cos(x)) + 1, jnp.zeros_like(x)
  )


def passed(x: Any) -> Any:
  return lax.while_loop(
    lambda c: (c < jnp.cos(x)).any(), lambda c: c + jnp.exp(-x), jnp.zeros_like(x)
  )


ROWS = {
  "in_a_branch": with_factor(
    lambda x: lax.cond(x[0] > 0, lambda x: jnp.cos(x) * 2, lambda x: x, x) * jnp.cos(x)
  ),
  "in_both_branches": with_factor(
    lambda x: lax.cond(x[0] > 0, lambda x: jnp.cos(x) * 2, jnp.cos, x)
  ),
  "in_a_branch_of_several": with_factor(
    lambda x: (
      lax.switch(jnp.int32(x[1]), [jnp.exp, jnp.cos, lambda x: jnp.cos(x) * jnp.exp(x)], x)
      * jnp.exp(x)
    )
  ),
  "in_a_body": with_factor(lambda x: raised(x) * jnp.cos(x)),
  "in_a_condition": with_factor(lambda x: passed(x) * jnp.cos(x) * jnp.exp(-x)),
  "in_a_body_in_a_branch": with_factor(
    lambda x: (
      lax.cond(x[0] > 0, lambda x: steps(x, 99) * jnp.cos(x), lambda x: jnp.cos(x), x) * jnp.cos(x)
    )
  ),
  "a_size": with_factor(lambda x: lax.cond(x[0] > 0, widened, lambda x: x, x) * widened(x)),
  "numbers": with_factor(
    lambda x: lax.cond(x[0] > 0, lambda x: x * jnp.arange(3.0), jnp.cos, x) * jnp.arange(3.0)
  ),
  "det_2": lambda x: jnp.linalg.det(matrix(x[:2])),
  "det_3": lambda x: jnp.linalg.det(matrix(x)),
  "det_4": lambda x: jnp.linalg.det(matrix(jnp.concatenate([x, x[:1] + 1]))),
  "det_of_a_singular_matrix": lambda x: jnp.linalg.det(jnp.outer(x, x)),
  "custom_root": lambda x: (root(x) * x).sum(),
  "checkpoint_of_cond": jax.checkpoint(
    lambda x: (lax.cond(x[0] > 0, jnp.sin, jnp.cos, x) * jnp.sin(x)).sum()
  ),
  "checkpoint_of_scan": jax.checkpoint(lambda x: (steps(x, 99) * jnp.cos(x)).sum()),
}
# The same with one symbolic size.
SYMBOLIC = ["in_both_branches", "in_a_body", "in_a_condition", "a_size"]
ANY_WAY = ["in_both_branches", "in_a_body", "in_a_condition", "det_3"]


def several(names: list[str]) -> Callable[[Any], Any]:
  return lambda x: sum(ROWS[name](x) for name in names)


def gradient(f: Callable[..., Any]) -> Callable[[tf.Tensor], tf.Tensor]:
  def of(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = f(x)
    return tape.gradient(y, x)

  return of


def agrees(actual: Any, f: Callable[[Any], Any], x: np.ndarray = X) -> None:
  expected = jax.jit(jax.grad(f))(x)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ROWS)
def test_a_tape_in_a_graph(name: str) -> None:
  check_in_a_graph(ROWS[name])


def check_in_a_graph(f: Callable[[Any], Any]) -> None:
  of = tf.function(gradient(jax2tf.convert(f)), autograph=False)
  agrees(of(tf.constant(X)), f)


@pytest.mark.parametrize("name", ["checkpoint_of_cond", "checkpoint_of_scan"])
def test_the_new_rematerialisation(name: str) -> None:
  """It is a primitive that defines itself, so nothing shows that it holds a branch."""
  before = jax.config.jax_remat3
  jax.config.update("jax_remat3", True)
  try:
    check_in_a_graph(jax.checkpoint(ROWS[name].__wrapped__))
  finally:
    jax.config.update("jax_remat3", before)


def test_symbolic_sizes() -> None:
  converted = jax2tf.convert(several(SYMBOLIC), polymorphic_shapes="b")
  of = tf.function(gradient(converted), autograph=False, input_signature=[tf.TensorSpec([None])])
  for x in (X, X[:2]):
    agrees(of(tf.constant(x)), several(SYMBOLIC), x)


@pytest.mark.parametrize("way", ["eager", "around", "compiled", "saved"])
def test_other_ways(way: str, tmp_path: Path) -> None:
  converted = jax2tf.convert(several(ANY_WAY))
  if way == "compiled":
    run = tf.function(gradient(converted), autograph=False, jit_compile=True)
  elif way == "eager":
    run = gradient(converted)
  else:
    module = tf.Module()
    module.f = tf.function(converted, autograph=False, input_signature=[tf.TensorSpec(X.shape)])
    run = gradient(module.f)
  if way == "saved":
    run(tf.constant(X))  # a graph that was made before
    tf.saved_model.save(
      module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    )
    run = gradient(tf.saved_model.load(str(tmp_path)).f)
  agrees(run(tf.constant(X)), several(ANY_WAY))


@pytest.fixture
def control_flow_of_tensorflow_1() -> Any:
  """Branches and bodies are in the graph around them, not graphs of their own."""
  tf.compat.v1.disable_control_flow_v2()
  yield
  tf.compat.v1.enable_control_flow_v2()


@pytest.mark.usefixtures("control_flow_of_tensorflow_1")
@pytest.mark.parametrize("x", [X, -X])
def test_control_flow_of_tensorflow_1(x: np.ndarray) -> None:
  names = ["in_a_branch", "in_both_branches", "in_a_body", "a_size"]
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    argument = tf.compat.v1.placeholder(tf.float32, [None])
    result = jax2tf.convert(several(names), polymorphic_shapes="b")(argument)
    agrees(session.run(tf.gradients(result, argument)[0], {argument: x}), several(names), x)


def test_what_is_outside_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
  """A product that the function has computed is not computed once more in a body."""

  def product(x: Any) -> Any:
    return jnp.outer(x, x) @ x

  @jax.custom_jvp
  def f(x: Any) -> Any:
    return product(x).sum()

  @f.defjvp
  def _(primals: Any, tangents: Any) -> Any:
    (x,) = primals
    last = lax.fori_loop(0, 99, lambda _, c: jnp.tanh(c * product(x)), x)
    return f(x), (last * tangents[0]).sum()

  def products() -> int:
    of = tf.function(gradient(jax2tf.convert(f)), autograph=False)
    agrees(of(tf.constant(X)), f)
    definition = of.get_concrete_function(tf.TensorSpec(X.shape)).graph.as_graph_def()
    nodes = [*definition.node, *(n for g in definition.library.function for n in g.node_def)]
    return sum(node.op in ("MatMul", "MatVec", "BatchMatMulV2") for node in nodes)

  assert products() == 1
  monkeypatch.setattr(Derivative, "residuals_can_be_lazy", False)
  assert products() == 2
