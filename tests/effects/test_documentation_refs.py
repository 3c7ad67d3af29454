"""What JAX's pages on refs, on autodiff with refs, on stateful computations and on key reuse show:
values, refs and errors of `jax.jit`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import close

X = np.arange(3, dtype=np.float32)
M = np.arange(12, dtype=np.float32).reshape(3, 4)
ONE, ZERO = np.float32(1), np.float32(0)
NEW = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)


class _Ref:
  """An argument that is a mutable array: of JAX, or a variable."""

  def __init__(self, value: Any):
    self.value = np.asarray(value)


@dataclass(frozen=True)
class Row:
  """A program of the documentation.

  Attributes:
    name: of the page, and what it shows.
    make: -> (a program like it, the refs that it closes over): each way has its own.
    args: its arguments.
    raises: whether JAX raises an error.
    differentiable: whether JAX has a derivative of it, which a tape outside asks for.
    times: how often it is called.
  """

  name: str
  make: Callable[[], tuple[Callable[..., Any], list[Any]]]
  args: tuple[Any, ...] = ()
  raises: bool = False
  differentiable: bool = True
  times: int = 1


def _pure(fun):
  return lambda: (fun, [])


def _adds_to_one():
  ref = jax.new_ref(jnp.zeros(3))
  return lambda: ref.__setitem__(1, ref[1] + 1.0), [ref]


def _of_sine(x):
  ref = jax.new_ref(0.0)
  ref[...] = jnp.sin(x)
  return ref[...]


def _indexing(ref):
  row, value, column, values = (
    ref[0],
    ref[1, 2],
    ref[:, 1],
    ref[jnp.array([0, 0, 1]), jnp.array([1, 2, 3])],
  )
  ref[1] = row + 1
  ref[2, 3] = value
  ref[0, :3] = column
  ref[jnp.array([1, 2, 1]), jnp.array([0, 0, 1])] = values
  ref[jnp.array([0, 9])] += 1.0  # one of them is outside
  return row, value, column, values


def _copies(to, of):
  to[...] = of[...]


def _is_set():
  ref = jax.new_ref(jnp.float32(0))
  return lambda x: ref.__setitem__(..., x), [ref]


def _doubles(x):
  ref = jax.new_ref(x)
  ref[...] = ref[...] + ref[...]
  return ref[...]


def _returns_it(ref):
  ref[...] = 5.0
  return ref


def _freezes(ref):
  return jax.jit(jax.freeze)(ref)


def _distances(vectors, out):
  def distance(x, y, out):
    out[...] = jnp.sum((x - y) ** 2)

  jax.vmap(jax.vmap(distance, (0, None, 0)), (None, 0, 0))(vectors, vectors, out)


def _mapped_over_what_it_closes_over():
  ref = jax.new_ref(jnp.float32(0))
  return jax.vmap(lambda x: ref.__setitem__(..., x)), [ref]


def _plumbing(x, ref):
  def fun(x):
    y = x + x
    ref[...] += jax.lax.stop_gradient(y)
    return y

  return jax.grad(fun)(x)


@jax.custom_vjp
def _stash(ref, x):
  return x


_stash.defvjp(lambda ref, x: (x, ref), lambda ref, g: (ref.__setitem__(..., g), (None, g))[1])


def _stashed(x, ref):
  return jax.grad(lambda x, ref: jnp.sin(_stash(ref, x)))(x, ref)


def _by_a_ref(value, gradient):
  def fun(ref):
    ref[...] = jnp.sin(ref[...])
    return ref[...] ** 2

  jax.vjp(fun, jax.new_ref(value))[1].with_refs(gradient)(1.0)


def _one_gradient_of_several(x, gradient):
  for i in (0, 2, 0):
    jax.vjp(lambda x, i=i: jnp.sin(x * i).sum(), x)[1].with_refs(gradient)(jnp.float32(1))


def _threaded(state, x):
  """A counter and the statistics of a normalisation, as arguments and results."""
  n, mean = state
  return (n + 1, 0.9 * mean + 0.1 * x.mean()), (x - mean) * n


def _counted(n, mean, x):
  """The same of refs."""
  y = (x - mean[...]) * n[...]
  n[...] += 1.0
  mean[...] = 0.9 * mean[...] + 0.1 * x.mean()
  return y


def _sgd(params, x, y):
  loss = lambda params: jnp.mean((params["w"] * x + params["b"] - y) ** 2)  # noqa: E731
  value, gradient = jax.value_and_grad(loss)({name: ref[...] for name, ref in params.items()})
  for name, ref in params.items():
    ref[...] -= 0.1 * gradient[name]
  return value


def _rows_in_any_order(x, order):
  """A scan that reads and writes where it likes."""
  ref = jax.new_ref(jnp.zeros_like(x))

  def step(total, i):
    ref[i] += x[order[i]]
    return total + ref[i], None

  total, _ = jax.lax.scan(step, 0.0, jnp.arange(3))
  return total, ref[...]


def _draws(key):
  now, after = jax.random.split(key[...])
  key[...] = after
  return jax.random.normal(now, (2,))


def _closes_over_its_argument():
  ref = jax.new_ref(jnp.float32(0))
  return jax.jit(lambda: jax.jit(lambda other: other.__setitem__(..., ref[...]))(ref)), [ref]


ORDER = np.array([2, 0, 1], np.int32)
ROWS = [
  Row("refs: indexed add of what is closed over", _adds_to_one, times=2),
  Row("refs: of a sine", _pure(_of_sine), (ONE,)),
  Row("refs: gradient", _pure(jax.grad(_of_sine)), (ONE,)),
  Row("refs: indexing", _pure(_indexing), (_Ref(M),)),
  Row("refs: impure, arguments", _pure(_copies), (_Ref(X), _Ref(X + 1))),
  Row("refs: impure, closed over", _is_set, (ONE,)),
  Row("refs: pure", _pure(jax.jit(_doubles)), (X,)),
  Row(
    "refs: gradient of pure", _pure(jax.grad(lambda x: _doubles(x).sum())), (X,), differentiable=NEW
  ),
  Row("refs: returned", _pure(jax.jit(_returns_it)), (_Ref(ZERO),), raises=True),
  Row("refs: frozen elsewhere", _pure(_freezes), (_Ref(ZERO),), raises=True),
  Row("refs: passed and closed over", _closes_over_its_argument, raises=True),
  Row("refs: vmap over arguments", _pure(_distances), (M, _Ref(np.zeros((3, 3), np.float32)))),
  Row("refs: vmap of what is closed over", _mapped_over_what_it_closes_over, (X,), raises=True),
  Row("autodiff: plumbing", _pure(_plumbing), (ONE, _Ref(ONE))),
  Row("autodiff: stashed gradient", _pure(_stashed), (ONE, _Ref(ZERO))),
  Row(
    "autodiff: by a ref", _pure(_by_a_ref), (np.float32(2), _Ref(np.float32(100))), raises=not NEW
  ),
  Row(
    "autodiff: one gradient of several calls",
    _pure(_one_gradient_of_several),
    (X, _Ref(np.zeros(3, np.float32))),
  ),
  Row("autodiff: scan in any order", _pure(_rows_in_any_order), (X, ORDER)),
  Row("state: threaded", _pure(_threaded), ((ONE, ZERO), X)),
  Row("state: refs", _pure(_counted), (_Ref(ZERO), _Ref(ONE), X), times=3),
  Row(
    "state: steps of SGD", _pure(_sgd), ({"w": _Ref(ZERO), "b": _Ref(ZERO)}, X, 2 * X + 1), times=3
  ),
  Row(
    "keys: a stateful key", _pure(_draws), (_Ref(jax.random.key_data(jax.random.key(0))),), times=2
  ),
]


WAYS = ("JAX", "eager", "graph", "a tape outside")


def _given(args: Any, of: Callable[[Any], Any]) -> Any:
  return jax.tree.map(lambda x: of(x.value) if isinstance(x, _Ref) else x, args)


def _of_words(fun):
  """A variable has the words of a key, and the function wraps them."""

  def of_words(words):
    key = jax.new_ref(jax.random.wrap_key_data(words[...]))
    result = fun(key)
    words[...] = jax.random.key_data(key[...])
    return result

  return of_words


def _run(row: Row, way: str) -> Any:
  """(the results of each call, what the refs hold then)."""
  fun, closed_over = row.make()
  fun = _of_words(fun) if row.name.startswith("keys") else fun
  args = _given(
    row.args, jax.new_ref if way == "JAX" else lambda value: jax2tf.Ref(tf.Variable(value))
  )
  if way == "a tape outside":  # which asks about what is a variable
    args = jax.tree.map(
      lambda x: tf.Variable(x) if isinstance(x, np.ndarray) else x,
      args,
      is_leaf=lambda x: isinstance(x, jax2tf.Ref),
    )
  run = jax.jit(fun) if way == "JAX" else jax2tf.convert(fun)
  if way in ("graph", "a tape outside"):
    run = tf.function(run, autograph=False)
  with tf.GradientTape() if way == "a tape outside" else contextlib.nullcontext():
    found = [jax.tree.map(np.asarray, run(*args)) for _ in range(row.times)]
  leaves = jax.tree.leaves(args, is_leaf=lambda x: isinstance(x, jax2tf.Ref))
  refs = [
    x.variable if isinstance(x, jax2tf.Ref) else x[...]
    for x in leaves
    if isinstance(x, jax2tf.Ref | jax.Ref)
  ]
  return found, [np.asarray(x) for x in refs] + [
    np.asarray(r[...] if way == "JAX" else jax2tf.variable_of(r)) for r in closed_over
  ]


def _in_a_graph_of_tensorflow_1(row: Row) -> Any:
  fun, _ = row.make()
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    return [session.run(jax2tf.convert(fun)(*jax.tree.map(tf.constant, row.args)))], []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_program(row: Row) -> None:
  ways: dict[str, Callable[[], Any]] = {
    way: functools.partial(_run, row, way)
    for way in WAYS
    if row.differentiable or "tape" not in way
  }
  # there TensorFlow keeps no order of writes
  if not (row.make()[1] or any(isinstance(x, _Ref) for x in jax.tree.leaves(row.args))):
    ways["TensorFlow 1"] = functools.partial(_in_a_graph_of_tensorflow_1, row)
  if row.raises:
    said = {}
    for way, run in ways.items():
      with pytest.raises(Exception) as caught:
        run()
      said[way] = type(caught.value), str(caught.value).splitlines()[0]
    assert set(said.values()) == {said["JAX"]}
    return
  expected = ways["JAX"]()
  for run in ways.values():
    close(run(), expected, rtol=2e-6)  # float32, in another order of sums


def test_a_key_that_is_used_twice_is_named() -> None:
  """As JAX's page shows, under its own setting."""
  fun = jax.jit(lambda key: jax.random.normal(key) + jax.random.uniform(key))
  with jax.debug_key_reuse(True), pytest.raises(Exception, match=r"consumed|reuse"):
    fun(jax.random.key(0))
  with jax.debug_key_reuse(True), pytest.raises(Exception, match=r"consumed|reuse"):
    jax2tf.convert(lambda words: fun(jax.random.wrap_key_data(words)))(np.zeros(2, np.uint32))
