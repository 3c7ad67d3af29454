"""TensorFlow functions by call_tf against the same functions in JAX: values and derivatives under
jit and for a batch, values after a SavedModel."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.call_tf.table_rows import ROWS, TRACKED

# Of the largest value, or of 1: sums and products in another order, in float32.
TOLERANCE = 1e-5
# Not tf.linalg.det and tf.math.cumprod: TF 2.21's own gradients of these lack a conjugate
# (docs/guide/call-tf.md).
COMPLEX = ("tf.linalg.inv", "tf.linalg.solve", "tf.einsum", "tf.custom_gradient")
WITHOUT_DERIVATIVES = {
  "tf.image.adjust_contrast": "No gradient defined",
  "tf.numpy_function": "PyFunc has no gradient",
}
WITHOUT_TANGENTS = {
  "tf.image.resize, bicubic": "No gradient defined",
  "tf.image.resize, bilinear": "ResizeBilinearGrad has no gradient",
}
WITHOUT = WITHOUT_DERIVATIVES | WITHOUT_TANGENTS

Fun = Callable[[Any], Any]


def _weighted(y: Any) -> Any:
  return jnp.sum(jnp.cos(jnp.arange(y.size)).reshape(y.shape) * y)


def _grad(f: Fun) -> Fun:
  return jax.grad(lambda x: _weighted(f(x)))


def _complex(f: Fun) -> Fun:
  return jax.grad(lambda x: _weighted(f(x + 0.1j * jnp.cos(x))).imag)


DERIVATIVES: dict[str, Callable[[Fun], Fun]] = {
  "value": lambda f: f,
  "grad": _grad,
  "grad of grad": lambda f: _grad(_grad(f)),
  "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
  "complex grad": _complex,
}


def derivatives_of(name: str) -> list[str]:
  """All that a row has."""
  if name in WITHOUT_DERIVATIVES:
    return ["value"]
  if name in WITHOUT_TANGENTS:
    return ["value", "grad"]
  return [d for d in DERIVATIVES if d != "complex grad" or name in COMPLEX]


def all_of(f: Fun, names: Sequence[str]) -> Fun:
  """A function from x to {name of a derivative: its value}."""
  return lambda x: {name: DERIVATIVES[name](f)(x) for name in names}


def callback(name: str, derivatives: Sequence[str]) -> Any:
  f, _, x = ROWS[name]
  return jax.jit(all_of(jax2tf.call_tf(f, under_jit="callback"), derivatives))(x)


def vmap(name: str, derivatives: Sequence[str]) -> Any:
  f, _, x = ROWS[name]
  batch = np.stack([x, 1.1 * x])
  of_batch = jax.jit(jax.vmap(all_of(jax2tf.call_tf(f), derivatives)))(batch)
  return jax.tree.map(lambda y: y[0], of_batch)


def saved(name: str, derivatives: Sequence[str]) -> Any:
  """By a SavedModel that was saved and loaded again."""
  f, _, x = ROWS[name]
  module = tf.Module()
  converted = jax2tf.convert(all_of(jax2tf.call_tf(f), derivatives), with_gradient=False)
  spec = tf.TensorSpec(x.shape, x.dtype)
  module.f = tf.function(converted, autograph=False, input_signature=[spec])
  module.tracked = TRACKED[name]() if name in TRACKED else None
  with tempfile.TemporaryDirectory() as folder:
    tf.saved_model.save(module, folder)
    loaded = tf.saved_model.load(folder)  # it holds the variables
    return loaded.f(x)


def check(name: str, answers: Any, derivatives: Sequence[str]) -> None:
  """Compares with the function in JAX."""
  _, in_jax, x = ROWS[name]
  expected = jax.jit(all_of(in_jax, derivatives))(jnp.asarray(x))
  for derivative, e in expected.items():
    largest = max(1.0, float(np.abs(e).max()))
    np.testing.assert_allclose(
      answers[derivative], e, rtol=0, atol=TOLERANCE * largest, err_msg=derivative
    )


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
  there = derivatives_of(name)
  check(name, callback(name, there), there)
  check(name, vmap(name, there[:2]), there[:2])


@pytest.mark.parametrize("name", ROWS)
def test_row_of_a_saved_model(name: str) -> None:
  check(name, saved(name, ["value"]), ["value"])


@pytest.mark.parametrize("name", WITHOUT)
def test_a_derivative_that_tensorflow_lacks_is_an_error(name: str) -> None:
  f, _, x = ROWS[name]
  with pytest.raises(LookupError, match=WITHOUT[name]):
    all_of(jax2tf.call_tf(f), ["jvp"])(x)
