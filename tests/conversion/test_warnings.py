"""A warning names the user's line, whatever lies between; a cache that forgets says so."""

from __future__ import annotations

import inspect
import itertools
import re
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf import conversion, derivative_jaxprs, tf_calls, trace
from jax2tf.converters import saved_model
from jax2tf.converters.export.source import Source

X = np.ones(8, np.float32)
SPEC = tf.TensorSpec([8])
LARGE = "closes over"
REPOSITORY = Path(__file__).resolve().parents[2]


def large(x):
  return x + X


def read(ref):
  ref[...] += X


def autographed():
  @tf.function
  def function(x):
    return jax2tf.convert(large)(x)

  function.get_concrete_function(SPEC)


class Module(tf.Module):
  @tf.function(input_signature=[SPEC], autograph=False)
  def call(self, x):
    return jax2tf.convert(large)(x)


def many():
  converted = jax2tf.convert(lambda x: x + 1, max_conversions=1)
  for n in (1, 2, 3):
    converted(np.ones(n, np.float32))


def nans():
  with jax.debug_nans(True):
    tf.function(jax2tf.convert(jnp.sin), jit_compile=True, autograph=False).get_concrete_function(
      SPEC
    )


def prints():
  def fun(x):
    jax.debug.print("{}", x)
    return x

  tf.function(jax2tf.convert(fun), jit_compile=True, autograph=False).get_concrete_function(SPEC)


def shadows():
  variable = tf.Variable(X, shape=tf.TensorShape([None]))
  called = jax2tf.call_tf(
    lambda x: x * variable, output_shape_dtype=jax.ShapeDtypeStruct((8,), np.float32)
  )
  jax2tf.convert(lambda x: called(x) + 1)(X)


def without_gradient():
  module = tf.Module()
  fun = lambda x: jax.lax.while_loop(lambda y: y[0] < 2, lambda y: y * 2, x)  # noqa: E731
  module.call = tf.function(jax2tf.convert(fun), input_signature=[SPEC], autograph=False)
  with tempfile.TemporaryDirectory() as folder:
    tf.saved_model.save(module, folder)


def exported_prints():
  def fun(params, x):
    jax.debug.print("{}", x)
    return x * params

  model = saved_model.Model(X).add(fun, inputs={"x": "f32[8]"})
  Source.of(model)


ROUTES = {
  "eager": (lambda: jax2tf.convert(large)(X), LARGE),
  "tf.function": (
    lambda: tf.function(jax2tf.convert(large), autograph=False).get_concrete_function(SPEC),
    LARGE,
  ),
  "in a tf.function": (
    lambda: tf.function(lambda x: jax2tf.convert(large)(x), autograph=False).get_concrete_function(
      SPEC
    ),
    LARGE,
  ),
  "in an autographed tf.function": (autographed, LARGE),
  "in a method of a module": (lambda: Module().call(X), LARGE),
  "in a dataset": (
    lambda: tf.data.Dataset.from_tensors(X).map(lambda x: jax2tf.convert(large)(x)),
    LARGE,
  ),
  "eval_polymorphic_shape": (lambda: jax2tf.eval_polymorphic_shape(large)(X), LARGE),
  "Ref": (lambda: jax2tf.convert(read)(jax2tf.Ref(tf.Variable(X))), LARGE),
  "SavedModel": (
    lambda: saved_model.Model({}).add(lambda _, x: large(x), inputs={"x": "f32[8]"}),
    LARGE,
  ),
  "many conversions": (many, "was called with more than 1 combinations"),
  "nans": (nans, "omits the assertions of jax_debug_nans"),
  "prints": (prints, "compiles no callbacks"),
  "exported prints": (exported_prints, "the export omits prints"),
  "variables": (shadows, "gradients by the variables"),
  "a file without a gradient": (without_gradient, "is written without the gradient"),
  "platforms": (
    lambda: jax2tf.convert(large, native_serialization_platforms=["cpu"]),
    "has no effect",
  ),
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_warning_names_the_user_s_line(name, monkeypatch):
  monkeypatch.setattr(trace, "_LARGE_CONSTANTS", 8)
  route, words = ROUTES[name]
  lines, first = inspect.getsourcelines(Module if "module" in name else route)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    route()
  found = [w for w in caught if words in str(w.message)]
  assert found
  for warning in found:
    assert (warning.filename, warning.category) == (__file__, UserWarning)
    assert warning.lineno in range(first, first + len(lines))


def test_no_stack_level_is_counted():
  files = [
    f for folder in ("jax2tf", "converters", "tools") for f in (REPOSITORY / folder).rglob("*.py")
  ]
  counted = [
    str(f)
    for f in files
    if re.search(r"stacklevel=|warnings\.warn\(", f.read_text(encoding="utf-8"))
  ]
  assert len(files) > 100
  assert counted == []


def many_results(x):
  return [x * i for i in range(5)]


def differentiated(converted):
  """Gradients of all subsets of the results."""
  x = tf.constant(X)
  for count in (1, 2):
    for some in itertools.combinations(range(5), count):
      with tf.GradientTape() as tape:
        tape.watch(x)
        ys = converted(x)
        y = sum(ys[i] for i in some)
      tape.gradient(y, x)


FORGETTING = {
  "results with a cotangent": (derivative_jaxprs, "_MOST_DERIVATIVES", 4),
  "eager functions": (conversion, "_MOST_EAGER_FUNCTIONS", 4),
}


@pytest.mark.parametrize("name", FORGETTING)
def test_a_cache_of_derivatives_that_forgets_warns_once(name, monkeypatch):
  module, bound, count = FORGETTING[name]
  monkeypatch.setattr(module, bound, count)
  converted = jax2tf.convert(many_results)
  words = (
    f"'many_results' was differentiated for more than {count} combinations .* inside a tf.function"
  )
  with pytest.warns(UserWarning, match=words) as caught:
    differentiated(converted)
  assert [w.filename for w in caught if "differentiated for" in str(w.message)] == [__file__]


def test_watched_arguments(monkeypatch):
  monkeypatch.setattr(derivative_jaxprs, "_MOST_DERIVATIVES", 2)
  converted = jax2tf.convert(lambda a, b: a * b)
  a, b = tf.constant(X), tf.constant(X)
  with pytest.warns(
    UserWarning, match="was differentiated for more than 2 combinations of watched arguments"
  ):
    for watched in ([a], [b], [a, b]):
      with tf.GradientTape() as tape:
        tape.watch(watched)
        converted(a, b)


def test_few_combinations_are_kept_in_silence():
  converted = jax2tf.convert(many_results)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    differentiated(converted)


def test_many_signatures_of_call_tf(monkeypatch):
  monkeypatch.setattr(tf_calls, "_MAX_SIGNATURES", 2)
  called = jax2tf.call_tf(tf.sin)
  with pytest.warns(UserWarning, match="'sin' was called from JAX with more than 2 combinations"):
    for n in (1, 2, 3):
      called(X[:n])
