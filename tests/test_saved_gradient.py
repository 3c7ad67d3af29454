"""First and second derivatives of a SavedModel, taken in a process without JAX, are JAX's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.test_gradient import FUNCTIONS, X, forever, jax_gradient

READER = """
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

module, results = tf.saved_model.load(sys.argv[1]), {}
x = tf.constant(np.load(sys.argv[2])["x"])
for name in dir(module):
  if isinstance(getattr(module, name), tf.types.experimental.PolymorphicFunction):
    for order in (1, 2, 3):
      for way, mode in (("eager", lambda f: f), ("graph", tf.function)):
        try:
          results[f"{name} {order} {way}"] = mode(gradient(getattr(module, name), order))(x).numpy()
        except tf.errors.InvalidArgumentError as error:
          results[f"{name} {order} {way}"] = np.array(error.message)
np.savez(sys.argv[3], **results)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
  """{"function order way": gradient, or the message of an InvalidArgumentError}."""
  folder = tmp_path_factory.mktemp("saved_gradient")
  module = tf.Module()
  for name, f in {**FUNCTIONS, "forever": forever}.items():
    converted = jax2tf.convert(f, polymorphic_shapes="b")
    setattr(module, name, tf.function(converted, autograph=False, input_signature=[tf.TensorSpec([None])]))
  with pytest.warns(UserWarning, match=r"without the gradient of 'forever', which has none: .*convert with with_gradient=False"):
    tf.saved_model.save(module, str(folder / "model"), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True))
  np.savez(folder / "x.npz", x=X)
  subprocess.run([sys.executable, "-c", READER, folder / "model", folder / "x.npz", folder / "results.npz"], check=True, cwd=folder)
  return np.load(folder / "results.npz")


@pytest.mark.parametrize("way", ["eager", "graph"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_orders(found, name, order, way):
  np.testing.assert_allclose(found[f"{name} {order} {way}"], jax_gradient(FUNCTIONS[name], order)(X), rtol=1e-4, atol=1e-6)


def test_third_order_is_refused(found):
  assert "a SavedModel holds derivatives up to order 2" in str(found["sin_exp 3 eager"])


def test_function_without_a_derivative_is_refused_in_jaxs_words(found):
  assert "Reverse-mode differentiation does not work for lax.while_loop" in str(found["forever 1 graph"])
