"""Graphs for GPUs: every op has a kernel there, and moving elements keeps their bits.

TensorFlow has its GPU kernels in its registry also where there is no GPU. The graphs themselves run
on the CPU here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax, random

import jax2tf
from jax2tf.devices import readiness, report
from jax2tf.lowering._movement import CARRIERS
from jax2tf.placement.devices import Destination

GPU = ("cuda",)
KEY = np.array([7, 42], np.uint32)
# As floats these are zeros, subnormals, infinities, quiet and signalling NaNs.
WORDS = np.array(
  [0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001, 0xFF812345, 0xFFFFFFFF, 5],
  np.uint32,
)
FLOATS = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, 3.0, -3.0], np.float32)
INTS = np.array([0, 1, -1, 7, -7, 2**31 - 1, -(2**31), 100, -100, 3], np.int32)


def keyed(fun: Callable[..., Any], *args: Any) -> Callable[..., Any]:
  return lambda words: fun(random.wrap_key_data(words), *args)


def split_and_folded(key: Any) -> Any:
  first, second = random.split(key)
  return random.key_data(random.fold_in(first, 3)), random.key_data(random.split(second, 5))


def drawn_in_a_loop(key: Any) -> Any:
  """Keys are the rows of a loop, and random bits its results."""
  return lax.map(lambda k: (random.bits(k, (3,)), random.key_data(k)), random.split(key, 12))


def counted_in_a_loop(x: Any) -> Any:
  """An array of int32 in the carry, and among the constants, of a loop."""
  table = x * 2

  def step(i: Any, carry: Any) -> Any:
    return carry.at[i].add(table[i]) + 1

  return lax.fori_loop(0, 5, step, x)


def embedded(table: Any, tokens: Any) -> Any:
  return jnp.take(table, tokens, axis=0), table.at[tokens % 4].add(1.0)


def moved(x: Any) -> Any:
  """Each primitive that moves elements."""
  square = jnp.stack([x, x[::-1]])
  return (
    square,
    jnp.broadcast_to(x, (2, 3, x.size)),
    jnp.tile(x, 2),
    lax.pad(x, x.dtype.type(7), [(2, 2, 0)]),
    x[2:7],
    x[1::2],
    lax.dynamic_slice(x, (x.size // 2,), (4,)),
    x.at[jnp.array([1, 3])].set(x[6]),
    lax.dynamic_update_slice(x, x[6:8], (3,)),
    x[jnp.array([6, 5, 0])],
    square[jnp.array([0, 1]), jnp.array([6, 7])],
    jnp.split(square, [4], axis=1),
    jnp.full((40,), x[6]),
    lax.scan(lambda carry, y: (y, carry), x[6], jnp.tile(x, 3)),
    jnp.take(x, jnp.array([6, 20]), mode="fill", fill_value=9),
  )


RANDOM: dict[str, tuple[Callable[..., Any], list[Any]]] = {
  "split and folded": (keyed(split_and_folded), [KEY]),
  "bits of 8": (keyed(random.bits, (5,), np.uint8), [KEY]),
  "bits of 16": (keyed(random.bits, (3, 5), np.uint16), [KEY]),
  "bits of 32": (keyed(random.bits, (40, 30), np.uint32), [KEY]),
  "dropout": (keyed(lambda key: random.bernoulli(key, 0.5, (4, 8)) * 2.0), [KEY]),
  "normal": (keyed(random.normal, (4, 8)), [KEY]),
  "integers": (keyed(random.randint, (4, 8), 0, 10), [KEY]),
  "categorical": (keyed(random.categorical, FLOATS[2:4]), [KEY]),
  "permutation": (keyed(random.permutation, np.arange(20, dtype=np.float32)), [KEY]),
  "choice": (keyed(random.choice, 10, (4,), False), [KEY]),
  "in a loop": (keyed(drawn_in_a_loop), [KEY]),
}
OTHERS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
  "moved uint32": (moved, [WORDS]),
  "sorted": (lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(x, 4)), [FLOATS]),
  "sorted uint32": (lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(x, 4)), [WORDS]),
  "median": (lambda x: (jnp.median(x), jnp.quantile(x, 0.3)), [FLOATS[7:]]),
  "interpolated": (lambda x: jnp.interp(x, jnp.sort(x), x), [FLOATS[7:]]),
  "searched": (lambda x: jnp.searchsorted(jnp.sort(x), x), [FLOATS[7:]]),
  "ones": (lambda x: (lax.population_count(x), lax.clz(x)), [WORDS]),
  "divided": (lambda x: (lax.div(x, x[::-1]), lax.rem(x, x[::-1]), x // 3, x % 5), [INTS]),
  "remainder": (lambda x: (lax.rem(x, 1.25), lax.rem(x, x[::-1])), [FLOATS]),
  "position": (lambda x: (jnp.argmax(x), jnp.argmin(x)), [INTS]),
  "position of uint32": (lambda x: (jnp.argmax(x), jnp.argmin(x)), [WORDS]),
  "reduced": (lambda x: (x.sum(), x.prod(), x.max(), x.min()), [INTS]),
  "reduced uint32": (lambda x: (x.sum(), x.prod(), x.max(), x.min()), [WORDS]),
  "computed": (lambda x: (x + 1, x * x, -x, abs(x), x < 3, jnp.clip(x, -3, 3), x**3), [INTS]),
  "embedded": (embedded, [np.ones((8, 3), np.float32), np.array([1, -1, 7], np.int32)]),
  "counted": (counted_in_a_loop, [INTS]),
  "triangular": (
    lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    [np.float32([[2, 0, 0], [1, 0, 0], [3, 1, 4]]), FLOATS[7:, np.newaxis]],
  ),
}
ROWS = RANDOM | OTHERS


def concrete(fun: Callable[..., Any], args: list[Any], **options: Any) -> Any:
  """The concrete function for these arguments."""
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in args]
  converted = jax2tf.convert(fun, with_gradient=False, **options)
  return tf.function(converted, autograph=False).get_concrete_function(*specs)


def off_device(function: Any) -> list[tuple[str, str]]:
  """(kind, op) of what has no GPU kernel, and of what is copied to the host and back."""
  found = readiness(function).findings
  kinds = (report.NO_KERNEL, report.HARMLESS, report.BOUNCE, report.INT32)
  return [(finding.kind, finding.op) for finding in found if finding.kind in kinds]


def same(ours: Any, theirs: Any) -> None:
  pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
  for x, y in ((np.asarray(a), np.asarray(b)) for a, b in pairs):
    assert x.dtype == y.dtype
    if x.dtype.kind == "f":
      np.testing.assert_allclose(x, y, rtol=2e-6)  # a few units in the last place of float32
    else:
      np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ROWS)
def test_has_kernels_and_jaxs_values(name):
  fun, args = ROWS[name]
  function = concrete(fun, args, platforms=GPU)
  assert off_device(function) == []
  same(function(*map(tf.constant, args)), jax.jit(fun)(*args))


@pytest.mark.parametrize("name", ["split and folded", "dropout", "normal", "bits of 8"])
def test_random_bits_have_kernels_by_default(name):
  """Also in a graph that was not made for a GPU."""
  fun, args = RANDOM[name]
  assert off_device(concrete(fun, args)) == []


@pytest.mark.parametrize("dtype", [np.uint32, np.uint16, np.int8])
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_moving_keeps_bits(jit_compile, dtype):
  """As floats some elements are signalling NaNs, which arithmetic would make quiet."""
  with jax.enable_x64(True):
    x = np.concatenate([WORDS, WORDS >> 16, WORDS << 3]).view(dtype)
    converted = jax2tf.convert(moved, platforms=GPU, with_gradient=False)
    run = tf.function(converted, autograph=False, jit_compile=jit_compile)
    same(run(tf.constant(x)), jax.jit(moved)(x))


def test_carriers_hold_all_bits():
  """Those of 8 bits are the values of a half."""
  for dtype, carrier in CARRIERS.items():
    assert dtype.size == carrier.size or (dtype.size, carrier) == (1, tf.float16)


def test_sizes_stay_on_the_host():
  """The check that a size fits into an int32 is computed in floating point."""

  def mean(x: Any) -> Any:
    return jnp.mean(x * x.shape[0])

  converted = jax2tf.convert(mean, polymorphic_shapes="b, c", platforms=GPU, with_gradient=False)
  spec = tf.TensorSpec([None, None], tf.float32)
  graph = tf.function(converted, autograph=False).get_concrete_function(spec).graph
  checks = [op for op in graph.get_operations() if op.type in ("Assert", "If", "StatelessIf")]
  assert checks
  assert all(
    "CPU" in op.device and all("CPU" in x.op.device or x.dtype == tf.int32 for x in op.inputs)
    for op in checks
  )


def test_on_gpu():
  """`platforms` decides; without it, whether this machine has a GPU."""
  assert Destination(("rocm",)).on_gpu
  assert Destination(("cpu", "cuda")).on_gpu
  assert not Destination(("cpu", "tpu")).on_gpu
  assert Destination().on_gpu == bool(tf.config.list_physical_devices("GPU"))


@pytest.mark.parametrize(("platforms", "rank"), [(["cuda"], 4), (["cpu"], 0)])
def test_grappler_can_lay_out_selections_of_images_on_gpus(platforms: list[str], rank: int) -> None:
  """Its optimizer of layouts takes operands with the dimensions of images only. On CPUs a number is
  faster."""

  def fun(x: jax.Array) -> jax.Array:
    pooled = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    return jnp.where(pooled > 1, pooled, 0.5)

  converted = tf.function(jax2tf.convert(fun, platforms=platforms), autograph=False)
  graph = converted.get_concrete_function(tf.TensorSpec([2, 5, 5, 3])).graph
  selections = [op for op in graph.get_operations() if op.type == "SelectV2"]
  constants = [x for op in selections for x in op.inputs if x.op.type == "Const"]
  assert {x.shape.rank for x in constants} == {rank}
  assert len(constants) == 6
