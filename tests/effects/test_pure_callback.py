"""`jax.pure_callback`: Python functions that a graph calls when it runs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import Case, close, run

X = np.array([0.5, -1.5, 2.0], np.float32)
Y = np.float32(3)


def _on_host(fun, like=None, method="broadcast_all"):
  """`fun` in NumPy, for results that are like its first argument."""

  def call(*xs):
    x = xs[0]
    return jax.pure_callback(
      fun, jax.ShapeDtypeStruct(x.shape, like or x.dtype), *xs, vmap_method=method
    )

  return call


_sin = _on_host(np.sin)
_product = functools.partial(_on_host, lambda x, y: np.asarray(x) * np.asarray(y), None)


@jax.custom_jvp
def _known(x):
  return _sin(x)


_known.defjvp(lambda primals, tangents: (_known(*primals), jnp.cos(primals[0]) * tangents[0]))


@jax.custom_vjp
def _tripled(x):
  return _sin(x)


# The derivative is a callback too, and not that of the sine: JAX uses it all the same.
_tripled.defvjp(lambda x: (_sin(x), x), lambda x, g: (_on_host(lambda x, g: 3 * x * g)(x, g),))


def _loop(x):
  return jax.lax.fori_loop(0, 3, lambda i, c: _sin(c) + i, x)


def _step(carry, row):
  return carry + _sin(row), _sin(carry)


def _tree(x):
  shapes = {
    "sum": jax.ShapeDtypeStruct((), np.float32),
    "sign": jax.ShapeDtypeStruct(x.shape, np.bool_),
  }
  return jax.pure_callback(
    lambda x, *, y: {"sum": x.sum() + y["z"], "sign": x > 0}, shapes, x, y={"z": x[0]}
  )


def _doubled(x):
  return jax.pure_callback(
    lambda x: np.concatenate([x, x]), jax.ShapeDtypeStruct((2 * x.shape[0],), x.dtype), x
  )


def _of_key(x):
  return jax.pure_callback(
    lambda k: np.asarray(k), jax.ShapeDtypeStruct((2,), np.uint32), jax.random.key(7)
  ), x


WHY = "TensorFlow's XLA compiles no Python, a SavedModel holds none: test_refused"
row = functools.partial(Case, skip={"xla": WHY, "saved": WHY})

test_case, _ = run(
  [
    row("callback", _sin, [X], poly="b", grad=False),
    row("custom_jvp", _known, [X], poly="b"),
    row("custom_jvp_of_grad", jax.grad(lambda x: _known(x).sum()), [X]),
    row("custom_vjp", _tripled, [X]),
    row("loop", _loop, [X], grad=False),
    row("scan", lambda x: jax.lax.scan(_step, Y, x), [X], poly="b", grad=False),
    row(
      "predicate",
      lambda y: jax.lax.while_loop(
        lambda c: _on_host(lambda c: c < 9, np.bool_)(c), lambda c: c + 2, y
      ),
      [Y],
      grad=False,
    ),
    row("branch", lambda x: jax.lax.cond(x.sum() > 0, _sin, lambda x: x, x), [X], grad=False),
    row("tree", _tree, [X], poly="b", grad=False),
    row("another_shape", _doubled, [X], poly="b", grad=False),
    row("key", _of_key, [X], grad=False),
    *(
      row(f"vmap_{method}", jax.vmap(_product(method), (0, None)), [X, Y], grad=False)
      for method in ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")
    ),
    row(
      "vmap_symbolic",
      jax.vmap(_product("sequential"), (0, None)),
      [X, Y],
      poly=("b", None),
      grad=False,
    ),
    row("x64", _sin, [X.astype(np.float64)], x64=True, grad=False),
    *(
      row(f"of_{dtype}", _on_host(np.copy), [np.ones(3, jnp.dtype(dtype))], grad=False)
      for dtype in ("bool", "bfloat16", "int8", "int4")
    ),
  ]
)


@pytest.mark.parametrize(
  ("result", "message"),
  [
    (
      np.zeros(2, np.float32),
      "Incorrect output shape for return value #0: Expected: (3,), Actual: (2,)",
    ),
    (
      np.zeros(3, np.int32),
      "Incorrect output dtype for return value #0: Expected: float32, Actual: int32",
    ),
    ((X, X), "Mismatched number of outputs from callback. Expected: 1, Actual: 2"),
  ],
)
def test_results_are_checked_in_the_words_of_jax(result, message):
  def fun(x):
    return jax.pure_callback(lambda x: result, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

  with pytest.raises(jax.errors.JaxRuntimeError) as said:
    jax.jit(fun)(X)
  assert message in str(said.value)
  for call in (jax2tf.convert(fun), tf.function(jax2tf.convert(fun), autograph=False)):
    with pytest.raises(RuntimeError) as raised:
      call(X)
    assert str(raised.value) == message


class TooLargeError(Exception):
  pass


def test_an_exception_arrives_as_itself():
  def refuse(x):
    raise TooLargeError(f"the sum is {x.sum()}")

  converted = jax2tf.convert(_on_host(refuse))
  for call in (converted, tf.function(converted, autograph=False)):
    with pytest.raises(
      TooLargeError,
      match=r"^the sum is 1\.0\ncalled back by pure_callback \(.*refuse\) at .*test_pure_callback",
    ) as raised:
      call(X)
    assert raised.traceback[-1].name == "refuse"


def test_it_is_called_in_each_run():
  calls = []

  def count(x):
    calls.append(1)
    return np.asarray(x)

  # Of a constant: TensorFlow would call an op without state once, for all runs.
  function = tf.function(
    jax2tf.convert(lambda x: x + _on_host(count)(jnp.ones(3))), autograph=False
  )
  for _ in range(3):
    function(X)
  assert len(calls) == 3


def test_without_a_rule_there_is_no_derivative():
  with pytest.raises(
    ValueError, match=r"Pure callbacks do not support JVP\. Please use `jax.custom_jvp`"
  ):
    jax.grad(lambda x: _sin(x).sum())(X)
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = jax2tf.convert(_sin)(x)
  close(y, np.sin(X))
  with pytest.raises(
    ValueError, match=r"Pure callbacks do not support JVP\. Please use `jax.custom_jvp`"
  ):
    tape.gradient(y, x)


def test_refused():
  converted = jax2tf.convert(_known)
  with pytest.raises(
    jax2tf.LoweringError,
    match=r"(?s)'pure_callback'.*XLA cannot compile.*test_pure_callback\.py:\d+:\d+ .*jit_compile",
  ):
    tf.function(converted, autograph=False, jit_compile=True)(X)


def test_without_its_process_a_graph_names_what_is_missing():
  """A GraphDef that leaves the process by another way than a SavedModel calls no unrelated
  function."""
  concrete = tf.function(jax2tf.convert(_sin), autograph=False).get_concrete_function(
    tf.TensorSpec([3])
  )
  (op,) = (op for op in concrete.graph.get_operations() if op.type == "PyFunc")
  assert op.get_attr("token").startswith(b"jax2tf pure_callback (sin) at ")
