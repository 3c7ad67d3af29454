"""What TensorFlow does on a GPU with products that ask for more precision than it gives there."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf

X = np.ones([4, 4], np.float32)
IMAGE = np.ones([1, 1, 4, 4], np.float32)


def convolved(x):
  return lax.conv(x, x, (1, 1), "SAME", precision="highest")


def in_a_loop(x):
  return lax.fori_loop(0, 3, lambda _, x: jnp.matmul(x, x, precision="highest"), x)


@jax.default_matmul_precision("float32")
def by_configuration(x):
  return x @ x


def by_algorithm(x):
  return jnp.matmul(x, x, precision="F32_F32_F32")


def warnings_of(fun, *args, **options):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    tf.function(jax2tf.convert(fun, **options)).get_concrete_function(*args)
  return [str(w.message) for w in caught]


@pytest.mark.parametrize(
  ("fun", "x"),
  [(convolved, IMAGE), (in_a_loop, X), (by_configuration, X), (by_algorithm, X)],
  ids=lambda x: getattr(x, "__name__", ""),
)
def test_names_the_product_and_the_switch(fun, x):
  (message,) = warnings_of(fun, x, platforms=["cuda"])
  assert "enable_tensor_float_32_execution(False)" in message
  assert f"'{fun.__name__}'" in message
  assert "test_precision.py:" in message


@pytest.mark.parametrize("precision", [None, "high", "tensorfloat32", "TF32_TF32_F32"])
def test_what_jax_itself_multiplies_so_does_not_warn(precision):
  assert not warnings_of(lambda x: jnp.matmul(x, x, precision=precision), X, platforms=["cuda"])


@pytest.mark.parametrize("dtype", [np.float64, np.int32, jnp.bfloat16])
def test_only_32_bit_floats_are_rounded(dtype):
  with jax.enable_x64(True):
    x = X.astype(dtype)
    assert not warnings_of(lambda x: jnp.matmul(x, x, precision="highest"), x, platforms=["cuda"])


def test_cpus_have_all_bits():
  assert not warnings_of(by_configuration, X)
  assert not warnings_of(by_configuration, X, platforms=["cpu", "tpu"])


def test_with_the_switch_off_nothing_is_lost():
  tf.config.experimental.enable_tensor_float_32_execution(False)
  try:
    assert not warnings_of(by_configuration, X, platforms=["cuda"])
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(
  ("platforms", "multiplied_in"),
  [(["cuda"], None), (["cpu", "cuda"], "float32"), (None, "float32")],
)
def test_gpus_multiply_halves_themselves(dtype, platforms, multiplied_in):
  """In kernels that add in float32: a GPU has them, and a CPU rounds each sum otherwise."""
  converted = jax2tf.convert(lambda x: (x @ x, jnp.einsum("ij,kj->ik", x, x)), platforms=platforms)
  x = tf.constant(X.astype(dtype))
  graph = tf.function(converted, autograph=False).get_concrete_function(x).graph
  products = [op for op in graph.get_operations() if "MatMul" in op.type]
  assert {op.outputs[0].dtype for op in products} == {tf.as_dtype(multiplied_in or x.dtype)}
