"""Random bits are JAX's own, bit for bit: keys of all implementations, generators, samplers."""

from __future__ import annotations

import collections
import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax, random

import jax2tf
from tests.support.case import Case, run

KEY = np.array([0, 42], np.uint32)
SEED = np.int32(7)
STATE = np.array([1, 2, 0xFFFFFFFF, 0xFFFFFFFF], np.uint32)  # the counter overflows
IMPLS = ("threefry2x32", "rbg", "unsafe_rbg", "philox2x32", "philox4x32", "threefry4x32")
ALGORITHMS = {
  "default": lax.RandomAlgorithm.RNG_DEFAULT,
  "threefry": lax.RandomAlgorithm.RNG_THREE_FRY,
  "philox": lax.RandomAlgorithm.RNG_PHILOX,
}


def key_of(seed: Any, impl: str) -> Any:
  return random.key(seed, impl=impl)


def all_of_an_impl(seed: Any, *, impl: str) -> Any:
  """Every operation on keys, of scalars and of batches."""
  key = key_of(seed, impl)
  keys = random.split(key, (2, 3))
  folded = jax.vmap(random.fold_in, (None, 0))(key, jnp.arange(3, dtype=jnp.uint32))
  bits = [random.bits(key, (3,), dtype) for dtype in (jnp.uint8, jnp.uint16, jnp.uint32)]
  batch = jax.vmap(lambda k: random.bits(k, (2,)))(keys[0])
  return (
    random.key_data(keys),
    random.key_data(folded),
    random.key_data(random.clone(key)),
    bits,
    batch,
    random.bits(key, ()),
  )


def original(fun: Any) -> Any:
  """`fun` with the threefry of before JAX 0.5."""

  def with_original(*args: Any) -> Any:
    with jax.threefry_partitionable(False):
      return fun(*args)

  return with_original


def compared(data: Any) -> Any:
  keys = random.split(random.wrap_key_data(data), 3)
  others = keys.at[1].set(random.key(7))
  return (
    keys == others,
    keys != others,
    keys[0] == keys,
    jnp.isclose(keys, others),
    jnp.array_equal(keys[0], others[0]),
  )


def bits_like(x: Any, key: Any, dtype: Any) -> Any:
  return random.bits(key, x.shape, dtype)


def generate(state: Any, *, shape: Any, algorithm: str, dtype: Any = jnp.uint32) -> Any:
  return lax.rng_bit_generator(state, shape, dtype=dtype, algorithm=ALGORITHMS[algorithm])


def generate_like(x: Any, state: Any, *, algorithm: str) -> Any:
  return generate(state, shape=x.shape, algorithm=algorithm)


GAMMA = np.array([0.003, 0.3, 1.0, 5.0, 1e4], np.float32)
SAMPLERS = {
  "normal": lambda k: random.normal(k, (8,)),
  "normal bf16": lambda k: random.normal(k, (8,), jnp.bfloat16),
  "normal c64": lambda k: random.normal(k, (8,), jnp.complex64),
  "uniform": lambda k: random.uniform(k, (8,), minval=-1),
  "randint": lambda k: random.randint(k, (8,), -5, 100),
  "permutation": lambda k: random.permutation(k, 10),
  "bernoulli": lambda k: random.bernoulli(k, 0.3, (8,)),
  "categorical": lambda k: random.categorical(k, jnp.log(jnp.arange(1.0, 5)), shape=(5,)),
  "truncated_normal": lambda k: random.truncated_normal(k, -1, 2, (5,)),
  "poisson": lambda k: random.poisson(k, jnp.array([0.5, 4.0, 40.0])),
  "choice": lambda k: random.choice(k, 10, (4,), replace=False),
  "dirichlet": lambda k: random.dirichlet(k, jnp.array([0.3, 1, 5])),
}
ONCE = {"eager": "as in a graph", "saved": "as in a graph"}

CASES = [
  *[Case(f"key {impl}", functools.partial(all_of_an_impl, impl=impl), [SEED]) for impl in IMPLS],
  *[
    Case(f"key {impl} original", original(functools.partial(all_of_an_impl, impl=impl)), [SEED])
    for impl in IMPLS[:2]
  ],
  *[
    Case(
      f"key {impl} x64",
      lambda s, impl=impl: (
        random.bits(key_of(s, impl), (3,), jnp.uint64),
        random.key_data(key_of(s, impl)),
      ),
      [np.int64(-(2**40) + 3)],
      x64=True,
      skip=ONCE,
    )
    for impl in IMPLS
  ],
  Case(
    "key original x64",
    original(lambda s: random.bits(random.key(s), (3,), jnp.uint64)),
    [SEED],
    x64=True,
    skip=ONCE,
  ),
  Case(
    "seeds",
    lambda s: random.key_data(jax.vmap(random.key)(s)),
    [np.array([0, -1, 2**31 - 1], np.int32)],
    poly="b",
  ),
  Case(
    "raw keys",
    lambda k: (
      random.split(k),
      random.fold_in(k, np.uint32(2**32 - 1)),
      random.bits(random.wrap_key_data(k), (3,)),
    ),
    [KEY],
  ),
  Case("keys compared", compared, [KEY], poly="..."),
  Case(
    "key array is data",
    lambda k: random.key_data(
      jnp.where(
        jnp.array([True, False, True]), random.split(random.wrap_key_data(k), 3), random.key(0)
      )
    ),
    [KEY],
  ),
  Case(
    "bits of symbolic size",
    lambda x, k: bits_like(x, k, jnp.uint32),
    [np.zeros((3, 4), np.float32), KEY],
    poly=["b, c", None],
    grad=False,
  ),
  Case(
    "bits of symbolic size, original",
    original(lambda x, k: bits_like(x, k, jnp.uint32)),
    [np.zeros((3, 5), np.float32), KEY],
    poly=["b, c", None],
    grad=False,
  ),
  Case(
    "bits of size 0", lambda k: (random.bits(k, (0,)), random.bits(k, (3, 0))), [KEY], skip=ONCE
  ),
  *[
    Case(
      f"generator {name} {np.dtype(dtype)}",
      functools.partial(generate, shape=(3, 5), algorithm=name, dtype=dtype),
      [STATE],
      x64=True,
      skip=ONCE,
    )
    for name in ALGORITHMS
    for dtype in (jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64)
  ],
  *[
    Case(
      f"generator {name} {shape}",
      functools.partial(generate, shape=shape, algorithm=name),
      [STATE],
      skip=ONCE,
    )
    for name in ("threefry", "philox")
    for shape in [(), (7,), (5, 3, 4), (3, 0)]
  ],
  *[
    Case(
      f"generator {name} of symbolic size",
      functools.partial(generate_like, algorithm=name),
      [np.zeros((5, 3, 3), np.float32), STATE],
      poly=["b, c, b - 2", None],
      grad=False,
    )
    for name in ("threefry", "philox")
  ],
  Case(
    "generator u64 key",
    functools.partial(generate, shape=(5,), algorithm="threefry"),
    [np.array([1, 2**64 - 2], np.uint64)],
    x64=True,
  ),
  # logarithms of neighbours
  *[Case(name, fun, [KEY], skip=ONCE, rtol=1e-5) for name, fun in SAMPLERS.items()],
  # The gradient is JAX's series; its terms round differently.
  Case("gamma", lambda k, a: random.gamma(k, a), [KEY, GAMMA], rtol=1e-4, poly=[None, "b"]),
  Case(
    "loggamma of a batch of keys",
    lambda k, a: jax.vmap(random.loggamma)(random.split(k, 5), a),
    [KEY, GAMMA],
    rtol=1e-4,
  ),
]

test_case, saved = run(CASES)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8])
def test_rng_uniform_is_in_range(dtype: Any) -> None:
  """The numbers of `lax.rng_uniform` are the platform's own."""
  low, high = dtype(2), dtype(7)
  sample = jax2tf.convert(lambda a, b: lax.rng_uniform(a, b, (1000,)))(low, high)
  values = np.asarray(sample).astype(np.float64)
  assert sample.shape == (1000,) and 2 <= values.min() < 3 and 6 <= values.max() <= 7


def test_config_is_part_of_the_trace() -> None:
  """The same function, converted under both settings of jax_threefry_partitionable."""
  for context in (
    contextlib.nullcontext(),
    jax.threefry_partitionable(False),
    contextlib.nullcontext(),
  ):
    with context:
      np.testing.assert_array_equal(
        jax2tf.convert(lambda k: random.split(k, 3))(KEY), random.split(KEY, 3)
      )


def test_inside_a_dataset() -> None:
  """The hash functions are called while tf.data traces."""
  converted = jax2tf.convert(lambda k: random.normal(k, (3,)), with_gradient=False)
  (sample,) = tf.data.Dataset.from_tensors(KEY).map(converted).as_numpy_iterator()
  np.testing.assert_allclose(sample, random.normal(KEY, (3,)), rtol=1e-5)


def test_normal_is_small() -> None:
  """Bodies of functions are counted once."""
  graph = (
    tf.function(jax2tf.convert(lambda k: random.normal(k, (8,))))
    .get_concrete_function(tf.TensorSpec((2,), tf.uint32))
    .graph
  )
  definition = graph.as_graph_def()
  ops = collections.Counter(
    node.op
    for nodes in (definition.node, *(f.node_def for f in definition.library.function))
    for node in nodes
  )
  assert sum(ops.values()) <= 150, ops
