"""Loops: arrays by rows, work before the loop, several steps in a turn; each fires, not on a near miss, and JAX's values stay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.case import HOSTILE_F32, Case, op_types, run

X = np.random.default_rng(0).standard_normal((7, 3), np.float32)
HOSTILE = HOSTILE_F32.reshape(4, 4)
W = np.random.default_rng(1).standard_normal((3, 3), np.float32)
LIGHT = {"eager": "the same ops", "saved": "the same graph"}


def loop(body: Any, first: int = 0, last: int = 7) -> Any:
  return lambda x: lax.fori_loop(first, last, lambda i, c: body(i, c, x), x)


def windows(i: Any, c: Any, x: Any) -> Any:
  return lax.dynamic_update_slice(c, lax.dynamic_slice(x, (i, 0), (1, 3)) * 2, (i, 1))


def two_arrays(x: Any) -> Any:
  return lax.fori_loop(0, 7, lambda i, c: (c[0].at[i].set(c[1]), c[1] * 0.5 + x[i]), (x, x[0]))


def counted(x: Any, **how: Any) -> Any:
  return lax.scan(lambda c, i: (c.at[i].set(c[i] * 2 + i), (i, x[0, 0])), x, jnp.arange(5, dtype=jnp.uint8), **how)


def dense(x: Any) -> Any:
  return lax.scan(lambda h, v: ((h := jnp.tanh(v @ W + h @ W)), (h, v * 2)), x[0], x, reverse=True)


def short(x: Any) -> Any:
  """3 * 4 steps: a carry, rows read, rows stacked."""
  return lax.scan(lambda c, v: (c * 0.5 + v, (c.sum(), v * c)), x[0], jnp.tile(x[:4], (3, 1)), reverse=True)


# name -> (function, loops that are left)
LOOPS = {
  "set": (loop(lambda i, c, x: c.at[i].set(c[i] * 2 + i)), 0),
  "set_some": (loop(lambda i, c, x: c.at[i].set(x[i] * i), 2, 5), 0),
  "add_negative": (loop(lambda i, c, x: c.at[i].add(x[i] * 2), -4, -1), 0),
  "multiply_columns": (loop(lambda i, c, x: c.at[:, i].multiply(c[:, i]), 0, 3), 0),
  "backwards": (loop(lambda i, c, x: c.at[6 - i].set(x[i])), 0),
  "dynamic_slices": (loop(lambda i, c, x: lax.dynamic_update_slice(c, lax.dynamic_slice(c, (i, 0), (1, 3)) * 2, (i, 0))), 0),
  "carry_and_rows": (two_arrays, 1),
  "counted": (counted, 0),
  "counted_reversed": (lambda x: counted(x, reverse=True), 0),
  # Near misses: rows outside, a row of an earlier step, part of a row, the array itself, one row again and again.
  "outside": (loop(lambda i, c, x: c.at[i].set(c[i] * 2), 0, 9), 1),
  "clamped": (loop(windows, 3, 9), 1),
  "earlier": (loop(lambda i, c, x: c.at[i].set(c[i - 1] * 2), 1), 1),
  "element": (loop(lambda i, c, x: c.at[i, 1].set(x[i, 0])), 1),
  "whole": (loop(lambda i, c, x: c.at[i].set(c.sum(0))), 1),
  "same": (loop(lambda i, c, x: c.at[2].add(x[i])), 1),
  "dense": (dense, 1),
  "short": (short, 1),
}

CASES = [
  # A recurrence: what one product rounds otherwise grows.
  *[Case(name, fun, [X], rtol=2e-5 if name == "dense" else None, skip=LIGHT) for name, (fun, _) in LOOPS.items()],
  Case("hostile", loop(lambda i, c, x: c.at[i].add(jnp.where(x[i] > 0, x[i] * i, -x[i])), 0, 4), [HOSTILE], grad=False, skip=LIGHT),
  Case("symbolic", loop(lambda i, c, x: c.at[i].set(c[i] * 2 + i)), [X], poly="7, b", grad=False, skip=LIGHT),
]
test_case, saved = run(CASES)


def body_ops(function: Any, *args: Any) -> list[list[str]]:
  """The op types inside of each loop."""
  graph = tf.function(jax2tf.convert(function), autograph=False).get_concrete_function(*map(tf.constant, args)).graph
  names = [op.get_attr("body").name for op in graph.get_operations() if op.type == "StatelessWhile"]
  functions = {f.signature.name: [node.op for node in f.node_def] for f in graph.as_graph_def().library.function}
  assert len(names) == op_types(graph).count("StatelessWhile")
  return [functions[name] for name in names]


@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_are_left(name: str) -> None:
  fun, left = LOOPS[name]
  program = jax2tf.convert(fun, with_gradient=False)
  graph = tf.function(program, autograph=False).get_concrete_function(tf.constant(X)).graph
  assert sum(op.endswith("While") for op in op_types(graph)) == left


def test_what_does_not_need_the_carry_is_computed_before_the_loop() -> None:
  (ops,) = body_ops(dense, X)
  assert ops.count("MatMul") == 1
  assert "Mul" not in ops


def test_a_turn_of_a_short_loop_makes_several_steps() -> None:
  (ops,) = body_ops(short, X)
  assert ops.count("TensorListGetItem") == 1 < ops.count("Mul") == 6


def test_xla_slices_where_a_start_is_computed() -> None:
  """TF 2.21: XLA pads and masks what a size of -1 leaves open where any start is a tensor, in a loop 400 times as slow."""

  def sums(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 2, c[1] + lax.dynamic_slice(x, (c[0], 0), (1, 3))), (0, x[:1]))[1]

  compiled = tf.function(jax2tf.convert(sums), autograph=False, jit_compile=True)
  hlo = compiled.experimental_get_compiler_ir(X, tf.constant(1))(stage="hlo")
  assert " dynamic-slice(" in hlo
  assert " set-dimension-size(" not in hlo
  assert " pad(" not in hlo


def test_carried_arrays_are_jax_arrays_of_any_dtype() -> None:
  def fun(x: Any) -> Any:
    return [lax.fori_loop(0, 3, lambda i, c: c.at[i].add(c[i]), x.astype(dtype)) for dtype in (jnp.int8, jnp.bfloat16, jnp.uint16)]

  for actual, expected in zip(jax2tf.convert(fun)(X * 99), jax.jit(fun)(X * 99), strict=True):
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))
