"""What a user wraps in `jax.jit` costs nothing and hides nothing; equal equations are computed
once."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf.jaxprs import replaced
from jax2tf.normalise import normalised

X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)

doubled = jax.jit(lambda x: x * 2)
product = jax.jit(lambda x, w: x @ w)


def op_counts(fun: Callable[..., Any]) -> collections.Counter[str]:
  """Of the gradient of a function of X, those in loops and branches included."""
  converted = jax2tf.convert(fun)

  def gradient(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.reduce_sum(converted(x))
    return y, tape.gradient(y, x)

  graph = (
    tf.function(gradient, autograph=False)
    .get_concrete_function(tf.TensorSpec(X.shape))
    .graph.as_graph_def()
  )
  nodes = [
    *graph.node,
    *(node for function in graph.library.function for node in function.node_def),
  ]
  return collections.Counter(node.op for node in nodes)


def cell(h: Any, x: Any) -> Any:
  return jnp.tanh(x + h @ W)


def over_rows(read: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
  return lambda a: lax.fori_loop(0, 5, lambda i, s: jnp.tanh(s + read(a, i)), jnp.zeros(8))


READ_BY_INDEX = over_rows(lambda a, i: a[i])
SAME_GRAPHS = {
  "dynamic_index_in_dim": (
    READ_BY_INDEX,
    over_rows(lambda a, i: lax.dynamic_index_in_dim(a, i, keepdims=False)),
  ),
  "a read in jit": (READ_BY_INDEX, over_rows(jax.jit(lambda a, i: a[i]))),
  "a step of a scan in jit": (
    lambda xs: lax.scan(lambda h, x: (cell(h, x), None), jnp.zeros(8), xs)[0],
    lambda xs: lax.scan(lambda h, x: (jax.jit(cell)(h, x), None), jnp.zeros(8), xs)[0],
  ),
  "a product in jit": (lambda x: x @ W + X[0], lambda x: product(x, W) + X[0]),
  "a branch in jit": (
    lambda x: lax.cond(x[0, 0] > 0, lambda x: x * 2 @ W, lambda x: x, x),
    lambda x: lax.cond(x[0, 0] > 0, lambda x: product(doubled(x), W), lambda x: x, x),
  ),
}
# Names differ, and so does what TensorFlow repeats for them.
_PLUMBING = ("Const", "Identity", "NoOp", "Placeholder")


@pytest.mark.parametrize("name", SAME_GRAPHS)
def test_a_call_costs_nothing(name: str) -> None:
  plain, called = SAME_GRAPHS[name]
  np.testing.assert_array_equal(jax2tf.convert(called)(X), jax2tf.convert(plain)(X))
  counts = [
    {op: n for op, n in op_counts(fun).items() if op not in _PLUMBING} for fun in (plain, called)
  ]
  assert counts[0] == counts[1]


def primitives(fun: Callable[..., Any], *args: Any) -> list[str]:
  return [eqn.primitive.name for eqn in normalised(jax.make_jaxpr(fun)(*args)).eqns]


@pytest.mark.parametrize(
  ("fun", "left"),
  [
    (lambda x: doubled(doubled(x)), ["mul", "mul"]),
    (lambda x: (jnp.sin(x), jax.jit(jnp.sin)(x)), ["sin"]),
    (lambda x: doubled(x) * 0 + x.size, ["mul", "mul", "add"]),
    (lambda x: (jnp.cos(x), x)[1], []),
    (lambda x: x + jnp.float32(np.int32(3)), ["add"]),
    # an effect stays where it is
    (lambda x: jax.jit(lambda x: jax.debug.print("{}", x) or x)(x), ["jit"]),
  ],
  ids=["calls in calls", "twice", "used", "dead", "number", "effect"],
)
def test_normal_form(fun: Callable[..., Any], left: list[str]) -> None:
  assert primitives(fun, X) == left


def test_draws_without_a_key_stay_apart() -> None:
  def draws(low: Any, high: Any) -> Any:
    return [P.rng_uniform_p.bind(low, high, shape=(2,)) for _ in range(2)]

  assert primitives(draws, np.float32(0), np.float32(1)) == ["rng_uniform"] * 2


scaled_p = jax.extend.core.Primitive("scaled")
scaled_p.def_abstract_eval(lambda x, *, by: x)


@pytest.mark.parametrize(
  ("numbers", "count"),
  [
    ((0.0, -0.0), 2),
    ((1, 1.0), 2),
    ((True, 1), 2),
    ((np.nan, np.nan), 1),
    ((2.0, 2.0), 1),
    (((0.0,), (0.0,)), 1),
  ],
)
def test_params_are_equal_by_their_bits(numbers: tuple[Any, Any], count: int) -> None:
  assert len(primitives(lambda x: [scaled_p.bind(x, by=number) for number in numbers], X)) == count


def test_a_normal_form_is_kept() -> None:
  jaxpr = jax.make_jaxpr(lambda x: doubled(x) + 1)(X)
  once = normalised(jaxpr)
  assert normalised(once) is once
  assert normalised(jaxpr).eqns is once.eqns or normalised(jaxpr).jaxpr is once.jaxpr


def test_branches_in_normal_form_stay() -> None:
  jaxpr = jax.make_jaxpr(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x))(X)
  assert normalised(jaxpr) is jaxpr


@pytest.mark.parametrize(
  ("value", "dtype", "is_folded"),
  [
    (0, np.float32, True),
    (2**24 + 1, np.float32, True),  # rounded to even
    (1.5, np.int32, False),
    (np.nan, np.int32, False),
    (300.0, np.uint8, False),
    (3.0, np.int8, True),
    (1e-45, jnp.bfloat16, False),  # XLA flushes it
    (np.inf, jnp.bfloat16, True),
    (1.1, np.complex64, False),
  ],
)
def test_conversions_of_numbers(value: Any, dtype: Any, is_folded: bool) -> None:
  number = np.int32(value) if isinstance(value, int) else np.float32(value)
  literal = jax.extend.core.Literal(number, jax.core.ShapedArray((), number.dtype))
  jaxpr = jax.make_jaxpr(lambda x: lax.convert_element_type(x, dtype))(number)
  jaxpr = replaced(jaxpr, eqns=[jaxpr.eqns[0].replace(invars=[literal])])
  found = normalised(jaxpr)
  assert (not found.eqns) == is_folded
  if is_folded:
    want = lax.convert_element_type(number, dtype)
    np.testing.assert_array_equal(np.asarray(found.outvars[0].val, dtype), want, strict=True)


@pytest.mark.parametrize("x", [X, np.array([-0.0, np.nan, np.inf, 1e-45], np.float32)])
def test_what_changes_nothing_is_left_out(x):
  def fun(x):
    return jnp.mean(x * 1.0, ()) / 1, 1 * x

  assert not {"Mul", "RealDiv"} & op_counts(lambda x: fun(x)[0]).keys()
  for got, wanted in zip(jax2tf.convert(fun)(x), jax.jit(fun)(x), strict=True):
    np.testing.assert_array_equal(got.numpy().view(np.int32), np.asarray(wanted).view(np.int32))


def test_a_product_with_1_may_be_of_another_shape():
  x = np.float32(3)
  assert jax2tf.convert(lambda x: x * jnp.ones((2, 1)))(x).shape == (2, 1)
