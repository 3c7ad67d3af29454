"""AutoGraph, which rewrites what a tf.function calls, leaves jax2tf and JAX as they are."""

from __future__ import annotations

import importlib
import inspect
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api, conversion

import jax2tf
import jax2tf.keras
from tests.support.case import close

X = np.array([0.25, 0.5], np.float32)
VARIABLE = tf.Variable([1.0, 2.0])
REF = jax.new_ref(jnp.zeros(2))
APPLY, VALUES = jax2tf.functional(lambda y: y * VARIABLE, jax.ShapeDtypeStruct((2,), "float32"))
LAYER = jax2tf.keras.Layer(lambda p, x: x * p, X, inputs={"x": "f32[2]"})


def counted(x):
  def count(ref, x):
    ref[...] += x

  jax2tf.convert(count)(jax2tf.Ref(VARIABLE), x)
  return x


def of_shapes(x):
  specs, _ = jax2tf.eval_polymorphic_shape(jnp.sin, polymorphic_shapes="b")(
    jax.ShapeDtypeStruct((2,), "float32")
  )
  return x + float(len(specs.shape))


CALLS = {
  "convert": lambda x: jax2tf.convert(jnp.cos)(x),
  "convert of a transformed function": lambda x: jax2tf.convert(jax.vmap(jax.grad(jnp.cos)))(x),
  "call_tf": lambda x: jax2tf.convert(jax2tf.call_tf(tf.sin))(x),
  "functional": lambda x: jax2tf.convert(APPLY)(VALUES, x),
  "Ref": counted,
  "variable_of": lambda x: x + jax2tf.variable_of(REF),
  "eval_polymorphic_shape": of_shapes,
  "dtype_of_val": lambda x: tf.cast(x, jax2tf.dtype_of_val(1.0)),
  "split_to_logical_devices": lambda x: jax2tf.split_to_logical_devices(x, None),
  "a Keras layer": lambda x: LAYER(x),
}


@pytest.fixture
def rewritten(monkeypatch):
  """What AutoGraph rewrites."""
  found = []
  convert_actual = api._convert_actual

  def noting(entity, context):
    found.append(entity)
    return convert_actual(entity, context)

  monkeypatch.setattr(api, "_convert_actual", noting)
  return found


@pytest.mark.parametrize("name", CALLS)
def test_only_the_user_s_function_is_rewritten(name, rewritten, caplog):
  call = CALLS[name]
  with caplog.at_level(logging.WARNING):
    found = tf.function(call).get_concrete_function(tf.TensorSpec([2]))
  assert [
    entity for entity in rewritten if not inspect.getmodule(entity).__name__.startswith(__name__)
  ] == []
  assert not [
    record for record in caplog.records if "AutoGraph could not transform" in record.getMessage()
  ]
  if name != "Ref":
    close(found(X), tf.function(call, autograph=False)(X))


def test_in_a_dataset(rewritten):
  dataset = tf.data.Dataset.from_tensor_slices([X, X]).map(lambda x: jax2tf.convert(jnp.arcsin)(x))
  for y in dataset:
    close(y, np.arcsin(X), rtol=1e-6)
  assert all(inspect.getmodule(entity).__name__ == __name__ for entity in rewritten)


@pytest.mark.parametrize(
  "module",
  [
    "",
    ".keras",
    ".converters.saved_model",
    ".converters.onnx",
    ".converters.tflite",
    ".converters.verify",
  ],
)
def test_public_names(module):
  package = importlib.import_module(f"jax2tf{module}")
  functions = [
    getattr(package, name) for name in package.__all__ if inspect.isfunction(getattr(package, name))
  ]
  assert functions or module == ".keras"
  assert [f for f in functions if not conversion.is_allowlisted(f)] == []


def test_control_flow_of_the_user_is_still_rewritten():
  @tf.function
  def function(x):
    if tf.reduce_sum(x) > 0:
      x = jax2tf.convert(jnp.cos)(x)
    return x

  close(function(X), np.cos(X), rtol=1e-6)
  close(function(-X), -X)
