"""Formulas of sizes that do not fit into 32 bits: TensorFlow's shapes are i32[n], a value may be
i64[]."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.extend.core import jaxpr_as_fun

import jax2tf
from jax2tf import dims
from jax2tf.dims import DimensionValues

X = np.ones(300, np.float32)


def graph_of(fun, spec, *shapes, **options):
  converted = jax2tf.convert(fun, polymorphic_shapes=spec)
  return tf.function(
    converted,
    autograph=False,
    input_signature=[tf.TensorSpec(s, tf.float32) for s in shapes],
    **options,
  )


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=["graph", "xla"])
def test_a_value_of_64_bits(options):
  def fun(x):
    n = x.shape[0]
    return x.sum() / n**4, jnp.asarray(n**4 - n), jnp.asarray(n**4 // n), jnp.arange(n**4 // n**3)

  with jax.enable_x64(True):
    expected = fun(X)
    results = graph_of(fun, "b", [None], **options)(X)
    for y, e in zip(results, expected, strict=True):
      assert y.numpy().dtype == e.dtype
      np.testing.assert_allclose(y, e, rtol=1e-7)


def test_a_size_that_follows_from_a_product_beyond_32_bits():
  def fun(x):
    n = x.shape[0]
    return jnp.zeros((n**4 // (n**3 + 1), 2)), x[: n**4 % 7919]

  for y, e in zip(graph_of(fun, "b", [None])(X), fun(X), strict=True):
    assert y.shape == e.shape


@pytest.mark.parametrize("n", [215, 216, 256])  # 215**4 is the last that fits, 256**4 wraps to 0
def test_a_value_that_does_not_fit_is_an_error(n):
  fun = graph_of(lambda x: x * (x.shape[0] ** 4), "b", [None])
  x = tf.ones(n)
  if n == 215:
    assert fun(x)[0] == np.float32(215**4)
    return
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=r"a size, b\^4, does not fit into int32; enable jax_enable_x64",
  ):
    fun(x)
  compiled = graph_of(lambda x: x * (x.shape[0] ** 4), "b", [None], jit_compile=True)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"a_size_b_4_does_not_fit_into_int32"):
    compiled(x)


def test_a_value_beyond_all_numbers_is_an_error():
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=r"a size, b\^10, does not fit into int32"
  ):
    # 2**160, infinite in f32, and 0 in 32 and 64 bits
    graph_of(lambda x: x * (x.shape[0] ** 10), "b", [None])(tf.ones(65536))


def test_a_known_size_that_does_not_fit_is_an_error_with_the_line():
  converted = jax2tf.convert(lambda x: x * (x.shape[0] ** 4), polymorphic_shapes="b")
  with pytest.raises(
    jax2tf.LoweringError,
    match=r"size b\^4 = 8100000000 does not fit into int32(.|\n)*test_large_sizes",
  ):
    tf.function(converted, autograph=False)(X)
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=r"a size, b\^4, does not fit into int32"
  ):
    converted(X)


def test_a_constraint_on_a_product_beyond_32_bits():
  fun = jax2tf.convert(
    lambda x, y: x.sum() + y.sum(),
    polymorphic_shapes=["a", "b"],
    polymorphic_constraints=["a*b <= 1000"],
  )
  signature = [tf.TensorSpec([None]), tf.TensorSpec([None])]
  concrete = tf.function(fun, autograph=False).get_concrete_function(*signature)
  assert concrete(tf.ones(10), tf.ones(100)) == 110
  with pytest.raises(tf.errors.InvalidArgumentError, match="a\\*b <= 1000"):
    concrete(tf.ones(65536), tf.ones(65536))  # in 32 bits the product is 0


FORMULAS = {
  "b*floordiv(t - 1, 2) + b": lambda a, b, t: b * ((t - 1) // 2) + b,
  "floordiv(a*b, 2)": lambda a, b, t: a * b // 2,
  "mod(2*a, 3)": lambda a, b, t: 2 * a % 3,
  "min(a*b, 4)": lambda a, b, t: min(a * b, 4),
  "max(a, b)*t - 3*a": lambda a, b, t: max(a, b) * t - 3 * a,
  "a^4": lambda a, b, t: a**4,
  "floordiv(a^2, 7)*b": lambda a, b, t: a**2 // 7 * b,
  "a + 3": lambda a, b, t: a + 3,
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_formulas_of_64_bits(formula):
  random = np.random.default_rng(0)
  dim, *variables = jax.export.symbolic_shape(f"{formula}, a, b, t")
  for _ in range(20):
    sizes = [int(size) for size in random.integers(1, 40_000, len(variables))]
    values = DimensionValues(
      {str(v): tf.constant(size) for v, size in zip(variables, sizes, strict=True)}, lower
    )
    assert int(values.wide_value(dim)) == FORMULAS[formula](*sizes)


def lower(jaxpr, *tensors):
  """JAX runs the jaxpr."""
  sizes = [x.numpy().astype(a.dtype) for x, a in zip(tensors, jaxpr.in_avals, strict=True)]
  with jax.enable_x64(True):
    return [tf.constant(np.asarray(y)) for y in jaxpr_as_fun(jaxpr)(*sizes)]


def test_products_of_quotients_divide_in_32_bits():
  """LiteRT has no division of 64 bits."""

  def fun(x):
    y = x[:, ::2].reshape(-1)
    return y.sum() / y.size

  types = {
    op.outputs[0].dtype
    for op in _operations(graph_of(fun, "b, t", [None, None]))
    if re.search("Div|Mod|Sign", op.type)
  }
  assert types == {tf.int32, tf.float32}


def _operations(function):
  graph = function.get_concrete_function().graph
  return [
    op
    for each in [graph, *(f.graph for f in graph._functions.values())]
    for op in each.get_operations()
  ]


@pytest.mark.parametrize(
  ("formula", "is_wide"),
  [
    ("(2*floordiv(h + 1, 2) - h)//2", False),
    ("floordiv(h, 2)*3//2", True),
    ("floordiv(-h, 2)", False),
    ("(2*h)//3", True),
  ],
)
def test_a_product_of_a_quotient_fits_where_the_size_does(formula: str, is_wide: bool) -> None:
  (h,) = jax.export.symbolic_shape("h")
  dim = eval(formula, {"h": h, "floordiv": lambda x, y: x // y})
  assert dims._needs_products(dim) == is_wide
