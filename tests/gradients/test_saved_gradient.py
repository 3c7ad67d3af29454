"""The derivatives of a SavedModel that it was asked to hold, taken in a process without JAX, are
JAX's; others are refused in words."""

from __future__ import annotations

import re
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import jax2tf
from tests.gradients.test_gradient import FUNCTIONS, X, forever, jax_gradient
from tests.support.archives import npz

READER = """
import itertools
import sys
sys.modules["jax"] = None
import numpy as np
import tensorflow as tf

def gradient(f, order):
  def first(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = f(x) if order == 1 else gradient(f, order - 1)(x)
    return tape.gradient(y, x)
  return first

MODES = {
  "eager": lambda f: f,
  "graph": tf.function,
  "xla": lambda f: tf.function(f, jit_compile=True),
}
module, results = tf.saved_model.load(sys.argv[1]), {}
x = tf.constant(np.load(sys.argv[2])["x"])
for name in dir(module):
  if isinstance(getattr(module, name), tf.types.experimental.PolymorphicFunction):
    modes = MODES if name in ("sin_exp", "forever", "once") else ("eager", "graph")
    for order, way in itertools.product((1, 2, 3), modes):
      derivative = MODES[way](gradient(getattr(module, name), order))
      try:
        results[f"{name} {order} {way}"] = derivative(x).numpy()
      except tf.errors.InvalidArgumentError as error:
        results[f"{name} {order} {way}"] = np.array(error.message)
np.savez(sys.argv[3], **results)
"""


def saved(f, orders=2):
  converted = jax2tf.convert(f, polymorphic_shapes="b", gradient_orders=orders)
  return tf.function(converted, autograph=False, input_signature=[tf.TensorSpec([None])])


@pytest.fixture(scope="module")
def found(tmp_path_factory, without_jax):
  """{"function order way": gradient, or the message of an InvalidArgumentError}."""
  folder = tmp_path_factory.mktemp("saved_gradient")
  module = tf.Module()
  for name, f in {**FUNCTIONS, "forever": forever}.items():
    setattr(module, name, saved(f))
  module.once = saved(FUNCTIONS["sin_exp"], orders=1)
  with pytest.warns(
    UserWarning,
    match=r"without the gradient of 'forever', which has none: .*give with_gradient=False",
  ):
    tf.saved_model.save(
      module,
      str(folder / "model"),
      options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
    )
  np.savez(folder / "x.npz", x=X)
  subprocess.run(
    [without_jax, "-c", READER, folder / "model", folder / "x.npz", folder / "results.npz"],
    check=True,
    cwd=folder,
  )
  return npz(folder / "results.npz")


@pytest.mark.parametrize("way", ["eager", "graph"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_orders(found, name, order, way):
  np.testing.assert_allclose(
    found[f"{name} {order} {way}"], jax_gradient(FUNCTIONS[name], order)(X), rtol=1e-4, atol=1e-6
  )


def test_first_derivatives_alone(found):
  np.testing.assert_allclose(
    found["once 1 eager"], jax_gradient(FUNCTIONS["sin_exp"], 1)(X), rtol=1e-4, atol=1e-6
  )


def test_what_is_saved_takes_all_derivatives_itself(tmp_path):
  converted = jax2tf.convert(FUNCTIONS["sin_exp"])  # a SavedModel would hold its first derivative

  def second(x):
    with tf.GradientTape() as outer:
      outer.watch(x)
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = converted(x)
      first = tape.gradient(y, x)
    return outer.gradient(first, x)

  module = tf.Module()
  # which is traced by the save
  module.f = tf.function(second, autograph=False, input_signature=[tf.TensorSpec([len(X)])])
  tf.saved_model.save(
    module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  )
  found = tf.saved_model.load(str(tmp_path)).f(tf.constant(X))
  np.testing.assert_allclose(found, jax_gradient(FUNCTIONS["sin_exp"], 2)(X), rtol=1e-4, atol=1e-6)


_FURTHER = "the SavedModel holds no derivative of this order: save it with a larger gradient_orders"
REFUSED = {
  "sin_exp 3": _FURTHER,
  "once 2": _FURTHER,
  "forever 1": "Reverse-mode differentiation does not work for lax.while_loop",
}


@pytest.mark.parametrize("way", ["eager", "graph", "xla"])
@pytest.mark.parametrize("name", REFUSED)
def test_missing_derivatives_are_refused_in_words(found, name, way):
  """XLA, which drops Asserts, says them in the name of an op that it cannot compile."""
  words = REFUSED[name]
  assert (re.sub(r"[^\w.]+", "_", words) if way == "xla" else words) in str(found[f"{name} {way}"])


def test_a_saved_gradient_takes_residuals_without_copies(tmp_path):
  module = tf.Module()
  module.f = saved(lambda x: jnp.sin(jnp.sin(jnp.sin(jnp.sin(jnp.sin(x))))), orders=1)
  tf.saved_model.save(
    module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  )
  library = (
    saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    .meta_graphs[0]
    .graph_def.library
  )
  backward = [f for f in library.function if sum(node.op == "Mul" for node in f.node_def) == 5]
  assert [sum("jax2tf_r" in arg.name for arg in f.signature.input_arg) for f in backward] == [5]
  # Those of the size, of x, of the cotangent, and two of the result, of which TensorFlow makes one.
  assert sum(node.op == "Identity" for node in backward[0].node_def) <= 5


def test_a_file_holds_equal_constants_once(tmp_path):
  module = tf.Module()
  module.f = tf.function(
    jax2tf.convert(lambda x: [jnp.sin(x.reshape(6, 1) + i).reshape(2, 3) for i in range(5)]),
    autograph=False,
    input_signature=[tf.TensorSpec([2, 3])],
  )
  tf.saved_model.save(
    module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  )
  definition = saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
  for function in definition.meta_graphs[0].graph_def.library.function:
    if any("jax2tf" in node.name for node in function.node_def):
      values = [
        node.attr["value"].SerializeToString(deterministic=True)
        for node in function.node_def
        if node.op == "Const"
      ]
      assert len(values) == len(set(values)) > 1
  x = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
  loaded = tf.saved_model.load(str(tmp_path))
  np.testing.assert_allclose(loaded.f(x)[4], np.sin(x + 4), rtol=1e-6)
