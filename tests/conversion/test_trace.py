"""When the user's Python runs, and what it may do: the behaviours that JAX's own documentation
teaches."""

from __future__ import annotations

import functools
import gc
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.caches import BoundedCache
from tests.support.case import close

X = np.arange(4, dtype=np.float32)


def counted(fun):
  @functools.wraps(fun)
  def wrapper(*args, **kwargs):
    wrapper.calls += 1
    return fun(*args, **kwargs)

  wrapper.calls = 0
  return wrapper


def test_a_second_call_with_the_same_shapes_does_not_trace_again():
  fun = counted(jnp.sin)
  converted = jax2tf.convert(fun)
  converted(X)
  converted(X + 1)
  tf.function(converted)(X)
  assert fun.calls == 1
  converted(X[:2])
  converted(X.astype(np.int32))
  assert fun.calls == 3


def test_polymorphic_calls_share_one_trace():
  fun = counted(lambda x: x.sum(0) * x.shape[0])
  converted = jax2tf.convert(fun, polymorphic_shapes="b, _")
  for n in (1, 2, 5):
    x = np.ones((n, 3), np.float32)
    close(converted(x), x.sum(0) * n)
  assert fun.calls == 1


def test_gradient_does_not_trace_the_user_again():
  fun = counted(lambda x: jnp.sin(x).sum())
  converted = jax2tf.convert(fun)
  x = tf.constant(X)
  for _ in range(2):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = converted(x)
    close(tape.gradient(y, x), jnp.cos(X))
  assert fun.calls == 1


def test_a_setting_that_changes_the_trace_is_part_of_the_key():
  converted = jax2tf.convert(lambda x: x * 2)
  assert converted(np.ones(2, np.float64)).dtype == tf.float32
  with jax.enable_x64(True):
    assert converted(np.ones(2, np.float64)).dtype == tf.float64
  assert converted(np.ones(2, np.float64)).dtype == tf.float32


def test_the_cache_is_bounded():
  cache = BoundedCache(maxsize=3)
  for i in range(10):
    cache.get(i, lambda i=i: i)
  assert len(cache) == 3
  assert cache.get(9, lambda: "made again") == 9
  assert cache.get(0, lambda: "made again") == "made again"


def test_the_first_conversion_to_go_makes_a_warning():
  fun = counted(lambda x: x + 1)
  converted = jax2tf.convert(fun, max_conversions=2)
  converted(X[:1]), converted(X[:2])
  with pytest.warns(
    UserWarning, match=r"more than 2 combinations of shapes.*polymorphic_shapes"
  ) as warned:
    converted(X[:3])
  assert warned[0].filename == __file__
  close(converted(X[:1]), X[:1] + 1)  # the only warning


@pytest.mark.parametrize(
  ("options", "args"),
  [
    ({}, (X,)),
    ({"polymorphic_shapes": ["b"], "polymorphic_constraints": ["b <= 8"]}, (X,)),
    ({"native_serialization": True}, (X,)),
    ({"static_argnums": 1}, (X, 3)),
  ],
  ids=["graph", "symbolic", "native", "static"],
)
@pytest.mark.parametrize("jit_first", [False, True])
def test_a_converted_function_is_pickled_with_its_options(options, args, jit_first):
  offset = np.float32(2)

  def fun(x, n=1):
    return jnp.sin(x) * n + offset

  if jit_first:
    fun = jax.jit(fun, static_argnums=1 if "static_argnums" in options else None)
    options = {name: value for name, value in options.items() if name != "static_argnums"}
  converted = jax2tf.convert(fun, **options)
  expected = converted(*args)
  copied = cloudpickle.loads(cloudpickle.dumps(converted))
  close(copied(*args), expected)
  if "polymorphic_constraints" in options:
    with pytest.raises(ValueError, match="b <= 8"):
      copied(np.ones(9, np.float32))


def test_a_failed_trace_leaves_nothing_behind():
  attempts = []

  def fun(x):
    attempts.append(1)
    if len(attempts) == 1:
      raise KeyError("first time")
    return x

  converted = jax2tf.convert(fun)
  with pytest.raises(KeyError, match="first time"):
    converted(X)
  close(converted(X), X)


def test_conversions_are_released_with_the_function():
  class Payload:
    pass

  payload = Payload()
  alive = weakref.ref(payload)
  converted = jax2tf.convert(lambda x, p=payload: x + 1)
  converted(X)
  del converted, payload
  jax.clear_caches()  # JAX keeps the functions that it has traced, within bounds of its own
  gc.collect()
  assert alive() is None


def test_side_effects_happen_once_and_are_frozen():
  state = {"n": 0}

  def fun(x):
    state["n"] += 1
    return x + state["n"]

  converted = jax2tf.convert(fun)
  close(converted(X), X + 1)
  state["n"] = 100
  close(converted(X), X + 1)


@pytest.mark.parametrize("jit_first", [False, True])
def test_static_arguments(jit_first):
  def power(x, n, *, negate):
    assert isinstance(n, int)
    assert isinstance(negate, bool)
    y = x
    for _ in range(n - 1):
      y = y * x
    return -y if negate else y

  fun = counted(power)
  static = {"static_argnums": (1,), "static_argnames": ("negate",)}
  converted = jax2tf.convert(jax.jit(fun, **static)) if jit_first else jax2tf.convert(fun, **static)
  close(converted(X, 3, negate=True), -(X**3))
  close(converted(X, 2, negate=False), X**2)
  close(converted(X, 3, negate=True), -(X**3))
  assert fun.calls == 2
  close(tf.function(lambda x: converted(x, 2, negate=False))(X), X**2)


def test_static_argument_by_name_and_position_together_with_jit():
  @functools.partial(jax.jit, static_argnames=("mode",))
  def g(x, mode, k):
    return x * k if mode == "scale" else x + k

  close(jax2tf.convert(g, static_argnums=2)(X, "scale", 3), X * 3)
  close(jax2tf.convert(g, static_argnums=2)(X, mode="shift", k=3), X + 3)


def test_a_call_has_the_trace_of_the_specs_of_its_arguments():
  fun = counted(lambda x, y: {"sum": x["a"] + y})
  converted = jax2tf.convert(fun, polymorphic_shapes={"x": "b", "y": None})
  traced = converted.trace({"a": tf.TensorSpec([None], tf.float32)}, y=np.float32(2))
  assert str(traced.results["sum"]) == "float32[b]"
  assert [str(v.aval) for v in traced.jaxpr.jaxpr.invars] == ["float32[b]", "float32[]"]
  close(converted({"a": X}, y=np.float32(2))["sum"], X + 2)
  assert fun.calls == 1


def test_equal_static_values_of_different_type_are_different():
  converted = jax2tf.convert(lambda x, n: x * n, static_argnums=1)
  ints = np.arange(3, dtype=np.int32)
  assert converted(ints, 1).dtype == tf.int32
  assert converted(ints, 1.0).dtype == tf.float32


def test_static_argument_that_is_not_hashable():
  with pytest.raises(
    ValueError,
    match=r"(?s)Non-hashable static arguments.*argument 1 = \[1, 2\] of type list.*tuple",
  ):
    jax2tf.convert(lambda x, n: x, static_argnums=1)(X, [1, 2])


def test_callable_objects_and_partials():
  class Model:
    def __init__(self, w):
      self.w = w

    def __call__(self, x):
      return x @ self.w

  w = np.ones((4, 2), np.float32)
  close(jax2tf.convert(Model(w))(X), X @ w)
  close(jax2tf.convert(functools.partial(jnp.multiply, 2.0))(X), 2 * X)
  close(jax2tf.convert(jax.vmap(jnp.sin))(X), jnp.sin(X))
  close(jax2tf.convert(jax.grad(lambda x: jnp.sin(x).sum()))(X), jnp.cos(X))
