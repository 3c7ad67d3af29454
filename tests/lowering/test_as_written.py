"""Rows for `jax2tf/lowering/_as_written.py`: what TensorFlow's graph optimiser, Grappler, would
change."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.support.case import Case, close, executed_op_types, run


def f32(*values):
  return np.array(values, np.float32)


def signed(x):
  """The values, and the signs of zeros, which a comparison of values passes over."""
  return x, jnp.copysign(1.0, jnp.where(jnp.isnan(x), 1.0, x))


def rounded(x):
  """To whole numbers, by way of a number whose last digit is 1."""
  return (x + 12582912.0) - 12582912.0


def in_a_loop(x):
  return lax.fori_loop(0, 2, lambda i, x: rounded(x) + 0.3, x)


INF, NAN = np.inf, np.nan
LEAST = np.array([-5, -(2**31), 0, 7, 9], np.int32)
FAST_MIN_MAX = "TensorFlow's XLA runs with fast min and max, which lose NaN"
CASES = [
  Case(
    "constant times product",
    lambda x, y: 1e30 * (x * y),
    [f32(1e-30, 0), f32(1e30, 1e30)],
    poly="b",
    grad=False,
  ),
  Case(
    "sums in JAX's order",
    lambda a, b, c, d: (a + b) + (c + d),
    [f32(1), f32(1e30), f32(-1e30), f32(1)],
  ),
  Case(
    "sums of different sizes",
    lambda a, s, b: ((a + s) + b, b - (-(a + s))),
    [f32(1e30, 1), np.float32(-1e30), f32(1, 1)],
  ),
  Case(
    "products of different sizes",
    lambda a, s, b: b * (a * s),
    [f32(1e30, 0), np.float32(1e30), f32(1e-30, 1)],
    grad=False,
  ),
  Case(
    "zero minus x",
    lambda x: (signed(0.0 - x), signed(jnp.zeros_like(x) - x)),
    [f32(0.0, -0.0, 2)],
    poly="b",
    grad=False,
  ),
  *[
    Case(
      f"extremum of {i}",
      lambda x, f=f: jnp.max(f(x)),
      [f32(1, -2, 0.5)],
      grad=False,
      skip={"xla": FAST_MIN_MAX},
    )
    for i, f in enumerate(
      (
        jnp.log,
        jnp.sqrt,
        jnp.arcsin,
        jnp.arccos,
        jnp.arctanh,
        jnp.arccosh,
        lax.rsqrt,
        lambda x: jnp.log1p(x - 1),
      )
    )
  ],
  *[
    Case(f"extremum over {name}", fun, [f32(1, -2, 0.5)], grad=False, skip={"xla": FAST_MIN_MAX})
    for name, fun in {
      "a window": lambda x: lax.reduce_window(jnp.log(x), -INF, lax.max, (3,), (1,), "VALID"),
      "an axis": lambda x: lax.reduce(jnp.sqrt(x), INF, lax.min, (0,)),
    }.items()
  ],
  *[
    Case(f"{f.__name__} of {g.__name__} of integers", lambda x, f=f, g=g: f(g(x)), [LEAST])
    for f in (jnp.max, jnp.min, jnp.argmax, jnp.argmin)
    for g in (lax.neg, lax.sign)
  ],
  Case(
    "powers that are roots",
    lambda x: (
      *signed(x**0.5),
      *signed(lax.pow(x, jnp.float32(-0.5))),
      x ** jnp.full(x.shape, 0.5),
    ),
    [f32(-INF, -0.0, 0.0, -1, 4, INF, NAN)],
    poly="b",
    grad=False,
  ),
  Case(
    "powers that are roots f16",
    lambda x: (x**0.5, x**-0.5),
    [np.array([-INF, 4, 0.25], np.float16)],
    grad=False,
  ),
  Case("gradient of powers that are roots", lambda x: (x**0.5, x**1.5, x**-0.5), [f32(4, 0.3)]),
  Case(
    "logarithm of a sum, exponential minus one",
    lambda x: (jnp.log(1 + x), jnp.log2(x + 1), jnp.exp(x) - 1),
    [f32(1e-9, -3e-9)],
    grad=False,
  ),
]
test_case, saved = run(CASES)


# (function, arguments). The reference is JAX op by op: the XLA of JAX 0.10 moves constants too,
# that of 0.12 does not.
OP_BY_OP = {
  "sums": (rounded, [f32(0.3, 1.7, -2.4)]),
  "constant_minus_sums": (
    lambda x, y: (1 - (x + y), 1.0 - (1e8 - x), (1e8 - x) - 1.0),
    [f32(1e8, 3e7), f32(-1e8, -3e7)],
  ),
  "sum_behind_product_with_1": (
    lambda x: lax.mul(x - 1.0, np.float32(1)) + 0.001,
    [np.linspace(1, 2, 99, dtype=np.float32)],
  ),
  "products": (
    lambda x: ((x * 1e30) * 1e30, (x / 1e30) * 1e30, (x * 1e-30) / 1e-30),
    [f32(1e-30, 1e-25, 1, 0)],
  ),
  "loop": (in_a_loop, [np.linspace(-3, 3, 20, dtype=np.float32)]),
}


@pytest.mark.parametrize("size", [None, "b"], ids=["static", "symbolic"])
@pytest.mark.parametrize(("fun", "args"), OP_BY_OP.values(), ids=OP_BY_OP)
def test_constants_stay_where_they_are(fun, args, size):
  converted = jax2tf.convert(fun, polymorphic_shapes=size)
  function = tf.function(
    converted,
    autograph=False,
    input_signature=[tf.TensorSpec([None] if size else x.shape) for x in args],
  )
  with jax.disable_jit():
    expected = fun(*map(jnp.asarray, args))
  for found in (function(*args), converted(*args)):
    close(found, expected, rtol=0)


def test_quotients_by_constants_are_those_of_xla():
  """Both libraries take the product with the reciprocal."""
  x = np.arange(1, 3000, dtype=np.float32)
  close(jax2tf.convert(lambda x: jnp.floor(x / 41))(x), jax.jit(lambda x: jnp.floor(x / 41))(x))


DIVISORS = np.array([1, 8, 16, 32, 3, 41, 0.1, -7, 1e30, 2**-100, np.inf, 1], np.float32)
QUOTIENTS = {
  "floor_of_multiples": lambda x: jnp.floor(x / DIVISORS),
  "by_zeros": lambda x: x / jnp.concatenate([jnp.zeros(8), DIVISORS[8:]]),
  "of_one": lambda x: (1 / x, jnp.ones_like(x) / x),
  "powers": lambda x: (x**-1, x**-2, x**-1.0, lax.reciprocal(x)),
  "bfloat16": lambda x: (
    x.astype(jnp.bfloat16) / jnp.bfloat16(3),
    x.astype(jnp.bfloat16) / DIVISORS.astype(jnp.bfloat16),
  ),
}


@pytest.mark.parametrize("size", [None, "b, _"], ids=["static", "symbolic"])
@pytest.mark.parametrize("fun", QUOTIENTS.values(), ids=QUOTIENTS)
def test_quotients_have_the_bits_of_xla(fun, size):
  """Grappler's own reciprocals of 8 and more elements are wrong in the last places, and floor then
  is off by one."""
  multiples = np.arange(1, 41, dtype=np.float32)[:, np.newaxis] * DIVISORS
  x = np.where(np.isfinite(multiples), multiples, 5)
  function = tf.function(
    jax2tf.convert(fun, polymorphic_shapes=size),
    autograph=False,
    input_signature=[tf.TensorSpec([None if size else 40, 12])],
  )
  close(function(x), jax.jit(fun)(x), rtol=0)


def test_quotients_by_huge_numbers_are_exact():
  """XLA flushes them to 0: see docs/limitations.md."""
  divisors = np.full(12, 2e38, np.float32)
  x = np.linspace(1, 3e38, 12, dtype=np.float32)
  close(tf.function(jax2tf.convert(lambda x: x / divisors))(x), x / divisors, rtol=2e-7)


def test_a_sum_of_constants_is_computed_once():
  """Constant folding still works where all operands are constants."""
  function = tf.function(
    jax2tf.convert(lambda x: x * ((jnp.arange(40.0) + 3.0) + 1.0) / 2.0), autograph=False
  )
  assert {"AddV2", "Range", "Cast"}.isdisjoint(executed_op_types(function, np.ones(40, np.float32)))
