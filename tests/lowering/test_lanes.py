"""Loops that vmap makes of a while_loop, run on the lanes that go on: their numbers are those of
all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax, random

import jax2tf
from jax2tf.lowering import _lane_loops
from tests.support.case import Case, run

LANES = 48
RNG = np.random.default_rng(0)
F32 = RNG.uniform(0.1, 30, LANES).astype(np.float32)
COUNTS = RNG.integers(0, 12, LANES).astype(np.int32)


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
  """Lanes are picked from small arrays too."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(_lane_loops, "_FEW_LANES", 3)
    yield


def heavy(x: Any) -> Any:
  """As x; work enough for lanes to be picked."""
  return x + 0 * sum(jnp.sin(x * i) for i in range(1, 8))


def counted(n: Any, x: Any) -> Any:
  """A step for each of n, on values of several dtypes and ranks."""

  def step(state: Any) -> Any:
    i, x, bits, flag, z, key = state
    key, other = random.split(key)
    z = z * (1 + 1j * jnp.float32(0.1)) + lax.complex(x[0], x[1])
    x = heavy(x)[::-1] + random.uniform(other, (3,)) + jnp.concatenate([x[1:], x[:1]])
    return i + jnp.int8(1), x, bits * 3 + jnp.uint32(n), ~flag | (x.max() > 9), z, key

  numbers = jnp.stack([x, x + 1, x + 2]), jnp.uint32(7), n > 3, lax.complex(x, x)
  start = jnp.int8(0), *numbers, random.key(n)
  *results, key = lax.while_loop(lambda state: state[0] < n, step, start)
  return *results, random.key_data(key)


def nested(n: Any, x: Any) -> Any:
  """A loop in the body; a fixed number of steps, with a branch on the counter that all lanes
  share."""

  def inner(state: Any) -> Any:
    i, j, x = state

    def innermost(state: Any) -> Any:
      return state[0] + 1, state[1] + 1, heavy(state[2] * 0.9)

    _, j, x = lax.while_loop(lambda state: state[0] ** 2 < i + n, innermost, (0, j, x))
    x = lax.fori_loop(0, 3, lambda k, x: lax.cond(k == 1, jnp.cos, lambda x: x + 0.5, x), x)
    return i + 1, j, x

  return lax.while_loop(lambda state: state[0] < n, inner, (0, 0, x))[1:]


def shared(n: Any, x: Any, table: Any) -> Any:
  """Constants that are the same for all lanes."""

  def step(state: Any) -> Any:
    i, x = state
    return i + 1, jnp.minimum(heavy(x) * table[0], table.max() + 2 * n)

  return lax.while_loop(lambda state: state[0] < n, step, (0, x))[1]


def largest(x: Any) -> Any:
  """Lanes that look at each other are not independent."""

  def step(state: Any) -> Any:
    i, x = state
    return i + 1, heavy(x) + lax.pmax(x, "lanes") / 2

  return lax.while_loop(lambda state: state[1] < 1000, step, (0, x))


def of_products(n: Any, x: Any) -> Any:
  """Sums round as their kernel adds, which may depend on the number of rows."""

  def step(state: Any) -> Any:
    i, x = state
    return i + 1, heavy(x) @ (x[:, None] * x * 0.1) + x.sum()

  return lax.while_loop(lambda state: state[0] < n, step, (0, jnp.stack([x, x]) / 30))[1]


def gamma(key: Any, a: Any) -> Any:
  return random.loggamma(random.wrap_key_data(key), a)


KEY = np.asarray(random.key_data(random.key(3)))
NEAR = {"grad": False, "rtol": 1e-4, "atol": 1e-5}
ONCE = {"eager": "as in a graph", "saved": "as in a graph"}

CASES = [
  Case("values of all kinds", jax.vmap(counted), [COUNTS, F32], poly=("n", "n"), skip=ONCE, **NEAR),
  Case("nested", jax.vmap(nested), [COUNTS, F32], **NEAR),
  Case(
    "of two axes",
    jax.vmap(jax.vmap(nested)),
    [COUNTS.reshape(8, 6), F32.reshape(8, 6)],
    skip=ONCE,
    **NEAR,
  ),
  Case("constants", jax.vmap(shared, (0, 0, None)), [COUNTS, F32, F32], skip=ONCE, **NEAR),
  Case("no lane goes on", jax.vmap(nested), [0 * COUNTS, F32], skip=ONCE, **NEAR),
  Case("lanes that see each other", jax.vmap(largest, axis_name="lanes"), [F32], skip=ONCE, **NEAR),
  Case("products", jax.vmap(of_products), [COUNTS, F32], skip=ONCE, **NEAR),
  Case(
    "gamma",
    gamma,
    [KEY, F32 / 10],
    poly=(None, "n"),
    skip={"eager": "as in a graph"},
    rtol=1e-4,
    atol=1e-5,
  ),
]

test_case, saved = run(CASES)


def ops_of(fun: Any, *args: Any) -> list[str]:
  """The types of all ops of a graph."""
  function = tf.function(jax2tf.convert(fun, with_gradient=False), autograph=False)
  definition = function.get_concrete_function(*map(tf.constant, args)).graph.as_graph_def()
  return [node.op for f in definition.library.function for node in f.node_def]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_which_loops_pick_lanes(case: Case) -> None:
  assert ("Where" in ops_of(case.fun, *case.args)) == (
    case.name not in ("lanes that see each other", "products")
  )


def test_what_is_little_work_picks_no_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
  """Neither a few lanes nor short steps."""

  def step(x: Any) -> Any:
    return lax.while_loop(lambda x: x < 5, lambda x: x * 1.5, x)

  assert "Where" not in ops_of(jax.vmap(step), F32)
  monkeypatch.setattr(_lane_loops, "_FEW_LANES", LANES)
  assert "Where" not in ops_of(gamma, KEY, F32)


def test_the_bits_are_those_of_all_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
  """Also where the number of lanes that go on fills no vector of the processor."""
  fun = jax.vmap(counted)
  some = jax2tf.convert(fun)(COUNTS, F32)
  monkeypatch.setattr(_lane_loops, "_FEW_LANES", LANES)
  for x, y in zip(some, jax2tf.convert(fun, with_gradient=False)(COUNTS, F32), strict=True):
    np.testing.assert_array_equal(x, y)


def test_pfor_takes_all_lanes() -> None:
  """It has no converter of Where, whose results have a size of their own in each row."""
  fun, numbers = jax.vmap(nested), F32.reshape(2, -1)
  rows = COUNTS.reshape(2, -1)
  assert "Where" in ops_of(fun, rows[0], numbers[0])
  found = tf.vectorized_map(
    lambda args: jax2tf.convert(fun, with_gradient=False)(*args), (rows, numbers)
  )
  for x, y in zip(found, jax.vmap(fun)(rows, numbers), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
