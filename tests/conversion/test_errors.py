"""Bad input: the type of each error and its words."""

from __future__ import annotations

import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf

X = np.arange(4, dtype=np.float32)


def raises(error, *words):
  return pytest.raises(error, match="(?s)" + ".*".join(re.escape(w) for w in words))


def test_not_callable():
  with raises(TypeError, "Expected a callable value", "42", "int"):
    jax2tf.convert(42)
  with raises(TypeError, "Expected a callable value"):
    jax2tf.eval_polymorphic_shape("f")


@pytest.mark.parametrize(
  "bad", [object(), "text", X.__class__, [object()]], ids=["object", "str", "class", "nested"]
)
def test_argument_that_is_not_an_array(bad):
  with raises(
    TypeError,
    "Argument args[1]",
    "is not a valid JAX type",
    "should be NumPy array, scalar, tf.Variable, or tf.Tensor",
  ):
    jax2tf.convert(lambda x, y: x)(X, bad)


def test_argument_path_is_named():
  with raises(TypeError, "Argument kwargs['params']['w'][0]"):
    jax2tf.convert(lambda x, params: x)(X, params={"w": [object()]})


def test_ragged_and_sparse_tensors():
  with raises(TypeError, "args[0]", "is not a valid JAX type"):
    jax2tf.convert(lambda x: x)(tf.ragged.constant([[1.0], [1.0, 2.0]]))
  with raises(TypeError, "args[0]", "is not a valid JAX type"):
    jax2tf.convert(lambda x: x)(tf.sparse.from_dense(X))


@pytest.mark.parametrize(
  "value",
  [tf.constant("text"), np.array(["text"]), np.array([object()])],
  ids=["tensor", "numpy", "object"],
)
def test_strings(value):
  with raises(
    TypeError,
    "args[0]",
    "is not a valid JAX array type. Only arrays of numeric types are supported by JAX",
  ):
    jax2tf.convert(lambda x: x)(value)


@pytest.mark.parametrize("in_graph", [False, True])
def test_tree_that_does_not_fit_polymorphic_shapes(in_graph):
  converted = jax2tf.convert(lambda x: x["a"], polymorphic_shapes=[["b"]])
  function = tf.function(converted) if in_graph else converted
  with raises(ValueError, "pytree structure error: different types", "polymorphic_shapes[0]"):
    function({"a": tf.constant(X)})


def test_spec_that_is_not_a_string():
  with raises(ValueError, "polymorphic shape spec should be None or a string"):
    jax2tf.convert(lambda x: x, polymorphic_shapes=[3])(X)


def test_unknown_rank():
  with raises(
    ValueError,
    "Cannot iterate over a shape with unknown rank",
    "args[0]",
    "give its tf.TensorSpec a rank",
  ):
    tf.function(jax2tf.convert(lambda x: x)).get_concrete_function(tf.TensorSpec(None))


def test_unknown_dimension_without_a_spec():
  with raises(
    ValueError, "syntax error in symbolic shape", "unexpected placeholder for unknown dimension"
  ):
    tf.function(jax2tf.convert(lambda x: x)).get_concrete_function(tf.TensorSpec([None, 3]))


def test_inside_a_jax_transformation():
  converted = jax2tf.convert(jnp.sin)
  for transformed in (
    jax.jit(converted),
    jax.grad(lambda x: converted(x).sum()),
    jax.vmap(converted),
  ):
    with raises(ValueError, "convert must be used outside all JAX transformations"):
      transformed(X)


def test_leaked_tracer():
  leaked = []
  jax2tf.convert(lambda x: leaked.append(x) or x)(X)
  with raises(jax.errors.UnexpectedTracerError, "leaked"):
    jax2tf.convert(lambda x: x + leaked[0])(X)


def branch_on_value(x):
  if x > 0:  # the user's line
    return x
  return -x


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
  ("fun", "error"),
  [
    (branch_on_value, jax.errors.TracerBoolConversionError),
    (lambda x: X[int(x)], jax.errors.ConcretizationTypeError),
    (lambda x: range(x), jax.errors.TracerIntegerConversionError),
    (lambda x: np.sin(x), jax.errors.TracerArrayConversionError),
    (lambda x: jnp.arange(4)[jnp.arange(4) > x], jax.errors.NonConcreteBooleanIndexError),
    (lambda x: jnp.ones(x), TypeError),
  ],
  ids=["bool", "int", "index", "array", "mask", "shape"],
)
def test_jax_errors_come_through(fun, error, in_graph):
  converted = jax2tf.convert(fun)
  with pytest.raises(error) as caught:
    (tf.function(converted) if in_graph else converted)(1)
  frames = traceback.extract_tb(caught.value.__traceback__)
  assert any(
    frame.filename == __file__ and frame.name in (fun.__name__, "<lambda>") for frame in frames
  )
  assert not any("/autograph/operators" in frame.filename for frame in frames)


def test_users_own_exception_is_unchanged_in_a_graph():
  class CustomError(Exception):
    def __init__(self, a, b):
      super().__init__(a, b)

  def fun(x):
    raise CustomError(1, 2)

  with pytest.raises(CustomError):
    tf.function(jax2tf.convert(fun))(X)


def inspects(x):
  jax.debug.inspect_array_sharding(x, callback=print)
  return x


def calls_a_kernel(x):
  return jax.ffi.ffi_call("kernel", x)(x)


@pytest.mark.parametrize(
  ("fun", "line"),
  [
    (inspects, "(inspects)"),
    (calls_a_kernel, "(calls_a_kernel)"),
    (lambda x: jax.debug.inspect_array_sharding(x, callback=print) or x, "(<lambda>)"),
  ],
  ids=["inspect_sharding", "ffi_call", "no results"],
)
def test_what_has_no_rule_is_named_with_its_line(fun, line):
  with raises(
    NotImplementedError,
    "TensorFlow interpretation rule for '",
    "' not implemented",
    "test_errors.py",
    line,
  ):
    jax2tf.convert(fun)(X)


def test_all_gaps_in_one_error_each_with_its_line():
  def inner(x):
    return jax.lax.cond(x[0] > 0, inspects, calls_a_kernel, x)

  with raises(jax2tf.LoweringError, "cannot lower 'inner'") as caught:
    jax2tf.convert(inner)(X)
  text = str(caught.value)
  assert "'inspect_sharding'" in text
  assert "'ffi_call'" in text
  assert re.search(r"test_errors\.py:\d+:\d+ \(inspects\)", text)
  assert re.search(r"test_errors\.py:\d+:\d+ \(calls_a_kernel\)", text)


def test_bad_platforms():
  with raises(
    ValueError,
    "native_serialization_platforms must be a sequence containing a subset of",
    "'cpu'",
    "gpu",
  ):
    jax2tf.convert(jnp.sin, native_serialization_platforms=["gpu"])
  with raises(ValueError, "native_serialization_platforms must be a sequence"):
    jax2tf.convert(jnp.sin, native_serialization_platforms="cpu")
  with pytest.warns(
    UserWarning, match="using native_serialization_platforms without native_serialization"
  ):
    jax2tf.convert(jnp.sin, native_serialization_platforms=["cpu"])
  with raises(ValueError, "native_serialization is not supported with enable_xla=False"):
    jax2tf.convert(jnp.sin, native_serialization=True, enable_xla=False)


def test_bad_destinations():
  with raises(ValueError, "platforms must be a sequence containing a subset of", "'gpu'"):
    jax2tf.convert(jnp.sin, platforms=["gpu"])
  for key in ("npu:0", 3, "cpu:x", None):
    with raises(ValueError, "device_map = ", f": {key!r} is not a JAX device"):
      jax2tf.convert(jnp.sin, device_map={key: "CPU:0"})
  for device in ("nowhere/at/all", 0):
    with raises(ValueError, f"device_map['host'] = {device!r}: it is not a TensorFlow device"):
      jax2tf.convert(jnp.sin, device_map={"host": device})


def test_poly_shape_is_deprecated_but_works():
  with pytest.warns(DeprecationWarning, match="PolyShape is deprecated"):
    spec = jax2tf.PolyShape("b", ...)
  assert jax2tf.convert(jnp.sin, polymorphic_shapes=[spec])(X).shape == (4,)
  with pytest.warns(DeprecationWarning), raises(ValueError, "Invalid polymorphic shape element"):
    jax2tf.PolyShape([1])
