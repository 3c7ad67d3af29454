"""Random bits: JAX's counter-based generators word by word, so that every sample is JAX's own.

A typed key is its physical data here: key<fry>[3] is u32[3,2]. What a key implementation does with
its words (seed, split, fold_in, bits) is JAX's own code, lowered through the primitives below it;
the hashes are those of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.extend.core import primitives as P

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.lowering._movement import carried
from jax2tf.registry import lowers

Dims = Sequence[Any]

# --- typed keys ---


@lowers(_jax_compat.random_wrap_p, on_keys=True)
def _random_wrap(ctx: RuleContext, data: tf.Tensor, *, impl: Any) -> tf.Tensor:
  """data u32[3,2] -> key<fry>[3]."""
  return data


@lowers(_jax_compat.random_unwrap_p, _jax_compat.random_clone_p, on_keys=True)
def _random_unwrap(ctx: RuleContext, keys: tf.Tensor) -> tf.Tensor:
  """keys key<fry>[3] -> u32[3,2]."""
  return keys


@lowers(P.random_seed_p, on_keys=True)
def _random_seed(ctx: RuleContext, seeds: tf.Tensor, *, impl: Any) -> tf.Tensor:
  """seeds i32[3] -> key<fry>[3]."""
  return ctx.lower_fun(functools.partial(_seed, impl=impl), seeds)


@lowers(P.random_split_p, on_keys=True)
def _random_split(ctx: RuleContext, keys: tf.Tensor, *, shape: Dims) -> tf.Tensor:
  """keys key<fry>[3], shape=(5,) -> key<fry>[3,5]."""
  return _on_words(ctx, functools.partial(_split, shape=tuple(shape)), keys)


@lowers(P.random_fold_in_p, on_keys=True)
def _random_fold_in(ctx: RuleContext, keys: tf.Tensor, messages: tf.Tensor) -> tf.Tensor:
  """keys key<fry>[3,1], messages u32[1,4] -> key<fry>[3,4]."""
  return _on_words(ctx, functools.partial(_fold_in, shape=ctx.aval_out.shape), keys, messages)


@lowers(P.random_bits_p, on_keys=True)
def _random_bits(ctx: RuleContext, keys: tf.Tensor, *, bit_width: int, shape: Dims) -> tf.Tensor:
  """keys key<fry>[3], bit_width=16, shape=(5,) -> u16[3,5]."""
  return _on_words(ctx, functools.partial(_bits, bit_width=bit_width, shape=tuple(shape)), keys)


@lowers(P.random_gamma_p, on_keys=True)
def _random_gamma(
  ctx: RuleContext, keys: tf.Tensor, alpha: tf.Tensor, *, log_space: bool
) -> tf.Tensor:
  """keys key<fry>[3], alpha f32[3,4] -> f32[3,4]; rejection sampling of all elements at once."""
  return ctx.lower_fun(
    functools.partial(_jax_compat.random_gamma_impl, log_space=log_space, use_vmap=True),
    keys,
    alpha,
  )


def _on_words(
  ctx: RuleContext, fun: functools.partial[Any], keys: tf.Tensor, *operands: tf.Tensor
) -> tf.Tensor:
  """Lowers a function of raw key data, batched over all keys; it gets the implementation as an
  argument."""
  keys_aval, *others = ctx.avals_in
  impl = _jax_compat.key_implementation(keys_aval.dtype)
  fun = functools.partial(fun.func, impl=impl, ndim=keys_aval.ndim, **fun.keywords)
  return ctx.lower_fun(fun, keys, *operands, avals=[_jax_compat.physical_aval(keys_aval), *others])


def _vmap(fun: Callable[..., jax.Array], ndim: int) -> Callable[..., jax.Array]:
  return functools.reduce(lambda f, _: jax.vmap(f), range(ndim), fun)


def _seed(seeds: jax.Array, *, impl: Any) -> jax.Array:
  return _vmap(impl.seed, seeds.ndim)(seeds)


def _split(keys: jax.Array, *, shape: Dims, impl: Any, ndim: int) -> jax.Array:
  return _vmap(lambda key: impl.split(key, shape), ndim)(keys)


def _bits(keys: jax.Array, *, bit_width: int, shape: Dims, impl: Any, ndim: int) -> jax.Array:
  return _vmap(lambda key: impl.random_bits(key, bit_width, shape), ndim)(keys)


def _fold_in(
  keys: jax.Array, messages: jax.Array, *, shape: Dims, impl: Any, ndim: int
) -> jax.Array:
  keys = jnp.broadcast_to(keys, (*shape, *impl.key_shape))
  return _vmap(impl.fold_in, len(shape))(keys, jnp.broadcast_to(messages, shape))


# --- counters ---


@lowers(_jax_compat.iota_2x32_shape_p)
def _iota_2x32_shape(ctx: RuleContext, *, shape: Dims) -> list[tf.Tensor]:
  """-> u32[shape] twice: the high and the low words of a 64-bit iota."""
  sizes = ctx.shape(shape)
  if isinstance(sizes, list) and math.prod(sizes) < 2**31:
    low = tf.range(math.prod(sizes))
    low = tf.cast(low if len(sizes) == 1 else tf.reshape(low, sizes), tf.uint32)
    return [carried(ctx, tf.zeros_like, low), low]  # the bits of 0.0 are those of 0
  with ctx.destination.sizes():  # where Range reads its bounds
    count = tf.range(tf.cast(_size(ctx, shape), tf.int64))
  count = tf.reshape(count, sizes)
  return [tf.cast(tf.bitwise.right_shift(count, 32), tf.uint32), tf.cast(count, tf.uint32)]


# --- hashes: each body is one function of the graph, however often it is called ---

_U32 = tf.TensorSpec(None, tf.uint32)


def _hash(words: int) -> Callable[..., Any]:
  return tf.function(autograph=False, input_signature=[_U32] * words)


@lowers(P.threefry2x32_p)
def _threefry2x32(
  ctx: RuleContext, key0: tf.Tensor, key1: tf.Tensor, x0: tf.Tensor, x1: tf.Tensor
) -> list[tf.Tensor]:
  """key0 u32[], key1 u32[], x0 u32[n], x1 u32[n] -> u32[n], u32[n]."""
  return list(_threefry2x32_hash(key0, key1, x0, x1))


@_hash(words=4)
def _threefry2x32_hash(
  key0: tf.Tensor, key1: tf.Tensor, x0: tf.Tensor, x1: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  keys = [key0, key1, key0 ^ key1 ^ 0x1BD11BDA]
  rotations = [
    [tf.constant(r, tf.uint32) for r in group] for group in ((13, 15, 26, 6), (17, 29, 16, 24))
  ]
  x0, x1 = x0 + keys[0], x1 + keys[1]
  for i in range(5):
    x0, x1 = _four_rounds(
      x0,
      x1,
      keys[(i + 1) % 3],
      keys[(i + 2) % 3] + tf.constant(i + 1, tf.uint32),
      *rotations[i % 2],
    )
  return x0, x1


@_hash(words=8)
def _four_rounds(
  x0: tf.Tensor, x1: tf.Tensor, key0: tf.Tensor, key1: tf.Tensor, *rotations: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  for rotation in rotations:
    x0, x1 = _round(x0, x1, rotation)
  return x0 + key0, x1 + key1


@_hash(words=3)
def _round(x0: tf.Tensor, x1: tf.Tensor, rotation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  x0 = x0 + x1
  return x0, _rotate_left(x1, rotation) ^ x0


def _rotate_left(x: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
  # The bits do not meet, so the sum is the union. TF 2.21: Add is one of Eigen's vectorised ops,
  # BitwiseOr is not.
  return tf.bitwise.left_shift(x, by) + tf.bitwise.right_shift(x, 32 - by)


@lowers(_jax_compat.threefry4x32_p)
def _threefry4x32(ctx: RuleContext, *words: tf.Tensor) -> list[tf.Tensor]:
  """key u32[] * 4, x u32[n] * 4 -> u32[n] * 4."""
  return list(_threefry4x32_hash(*words))


@_hash(words=8)
def _threefry4x32_hash(*words: tf.Tensor) -> list[tf.Tensor]:
  keys = [*words[:4], words[0] ^ words[1] ^ words[2] ^ words[3] ^ 0x1BD11BDA]
  rotations = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
  x = [word + key for word, key in zip(words[4:], keys, strict=False)]
  for i in range(20):
    for (a, b), rotation in zip(
      [(0, 1), (2, 3)] if i % 2 == 0 else [(0, 3), (2, 1)], rotations[i % 8], strict=True
    ):
      x[a] = x[a] + x[b]
      x[b] = _rotate_left(x[b], tf.constant(rotation, tf.uint32)) ^ x[a]
    if i % 4 == 3:
      x = [word + keys[(i // 4 + 1 + j) % 5] for j, word in enumerate(x)]
      x[3] = x[3] + tf.constant(i // 4 + 1, tf.uint32)
  return x


@lowers(_jax_compat.philox2x32_p)
def _philox2x32(ctx: RuleContext, key: tf.Tensor, x0: tf.Tensor, x1: tf.Tensor) -> list[tf.Tensor]:
  """key u32[], x u32[n] * 2 -> u32[n] * 2."""
  return list(_philox2x32_hash(key, *_broadcast(ctx, x0, x1)))


@_hash(words=3)
def _philox2x32_hash(key: tf.Tensor, x0: tf.Tensor, x1: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  for _ in range(10):
    high, low = _multiply(x0, 0xD256D193)
    x0, x1 = high ^ x1 ^ key, low
    key = key + 0x9E3779B9
  return x0, x1


@lowers(_jax_compat.philox4x32_p)
def _philox4x32(
  ctx: RuleContext, key0: tf.Tensor, key1: tf.Tensor, *x: tf.Tensor
) -> list[tf.Tensor]:
  """key u32[] * 2, x u32[n] * 4 -> u32[n] * 4."""
  return list(_philox4x32_hash(key0, key1, *_broadcast(ctx, *x)))


@_hash(words=6)
def _philox4x32_hash(key0: tf.Tensor, key1: tf.Tensor, *x: tf.Tensor) -> tuple[tf.Tensor, ...]:
  for _ in range(10):
    (high0, low0), (high1, low1) = _multiply(x[0], 0xD2511F53), _multiply(x[2], 0xCD9E8D57)
    x = (high1 ^ x[1] ^ key0, low1, high0 ^ x[3] ^ key1, low0)
    key0, key1 = key0 + 0x9E3779B9, key1 + 0xBB67AE85
  return x


def _multiply(x: tf.Tensor, factor: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The high and the low word of the 64-bit product."""
  product = tf.cast(x, tf.uint64) * factor
  return tf.cast(tf.bitwise.right_shift(product, 32), tf.uint32), tf.cast(product, tf.uint32)


def _broadcast(ctx: RuleContext, *words: tf.Tensor) -> list[tf.Tensor]:
  """The counters in the shape of the result, which the low words of a product keep to the end."""
  shape = ctx.avals_out[0].shape
  return [
    x
    if tuple(aval.shape) == tuple(shape)
    else carried(ctx, lambda x: tf.broadcast_to(x, ctx.shape(shape)), x)
    for x, aval in zip(words, ctx.avals_in[-len(words) :], strict=True)
  ]


# --- XLA's generators ---


@lowers(P.rng_bit_generator_p)
def _rng_bit_generator(
  ctx: RuleContext, key: tf.Tensor, *, shape: Dims, dtype: Any, algorithm: int
) -> list[tf.Tensor]:
  """key u32[4] or u64[2] -> (the next key, bits u8|u16|u32|u64[shape]).

  Bits of 8 and 16 are the low ones of 32. RNG_DEFAULT is Philox, as on XLA's CPU and GPU backends.
  """
  state = key if key.dtype == tf.uint32 else tf.reshape(tf.bitcast(key, tf.uint32), [4])
  dtype = tf.as_dtype(dtype)
  wide = tf.uint64 if dtype == tf.uint64 else tf.uint32
  generate = _threefry_bits if algorithm == jax.lax.RandomAlgorithm.RNG_THREE_FRY else _philox_bits
  bits, blocks = generate(ctx, state, shape, wide)
  following = tf.concat([state[:2], tf.stack(_counter_after(state, *_words(blocks)))], 0)
  if key.dtype == tf.uint64:
    following = tf.bitcast(tf.reshape(following, [2, 2]), tf.uint64)
  return [following, tf.cast(bits, dtype)]


# The state is u32[4] here, key and counter with the low word of each first, because most formats of
# files have no integers of 64 bits.


def _counter_after(
  state: tf.Tensor, low: tf.Tensor, high: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """The words of the counter and so many more, the low one first."""
  total = state[2] + low
  return total, state[3] + high + tf.cast(total < low, tf.uint32)


def _words(numbers: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """An int or i64[n] -> its low and high words, u32[n]."""
  if isinstance(numbers, int):
    return tf.constant(numbers % 2**32, tf.uint32), tf.constant(numbers >> 32, tf.uint32)
  return tf.cast(numbers, tf.uint32), tf.cast(tf.bitwise.right_shift(numbers, 32), tf.uint32)


def _size(ctx: RuleContext, shape: Dims) -> Any:
  """The number of elements: an int, or i64[] where it is symbolic."""
  sizes = ctx.shape(shape)
  return math.prod(sizes) if isinstance(sizes, list) else tf.reduce_prod(tf.cast(sizes, tf.int64))


def _philox_bits(
  ctx: RuleContext, state: tf.Tensor, shape: Dims, dtype: tf.DType
) -> tuple[tf.Tensor, Any]:
  """Philox 4x32-10 on the counters state[2:], state[2:] + 1 ...: TensorFlow's own generator. One
  counter is 128 bits, of which the key is the upper half."""
  key, counter = state[:2], tf.concat([state[2:], state[:2]], 0)
  bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=ctx.shape(shape),
    key=tf.bitcast(key[tf.newaxis], tf.uint64),
    counter=tf.bitcast(tf.reshape(counter, [2, 2]), tf.uint64),
    alg=tf.random.Algorithm.PHILOX.value,
    dtype=dtype,
  )
  per_block = 16 // dtype.size
  return bits, (_size(ctx, shape) + (per_block - 1)) // per_block


def _threefry_bits(
  ctx: RuleContext, state: tf.Tensor, shape: Dims, dtype: tf.DType
) -> tuple[tf.Tensor, Any]:
  """Threefry 2x32-20 on the counters state[2:], state[2:] + 1 ...; one counter is 64 bits.

  For 32-bit results XLA halves the first even dimension, or else the largest
  (xla/hlo/builder/lib/prng.cc): both words of the hash are then neighbours along it.
  """
  if dtype == tf.uint64:
    blocks = _size(ctx, shape)
    high, low = (tf.cast(word, tf.uint64) for word in reversed(_threefry_words(state, blocks)))
    return tf.reshape(tf.bitwise.left_shift(high, 32) | low, ctx.shape(shape)), blocks
  before, size, after = _split_for_halves(ctx, shape)
  half = (size + 1) // 2
  blocks = before * half * after
  halves = [
    tf.reshape(word, tf.stack([before, half, 1, after])) for word in _threefry_words(state, blocks)
  ]
  bits = tf.reshape(tf.concat(halves, 2), tf.stack([before, 2 * half, after]))
  return tf.reshape(bits[:, :size], ctx.shape(shape)), blocks


def _threefry_words(state: tf.Tensor, count: Any) -> list[tf.Tensor]:
  is_narrow = isinstance(count, int) and count < 2**31
  positions = tf.range(count if is_narrow else tf.cast(count, tf.int64))
  words = (tf.cast(positions, tf.uint32), tf.constant(0, tf.uint32))
  low, high = _counter_after(state, *(words if is_narrow else _words(positions)))
  return list(_threefry2x32_hash(state[0], state[1], low, high))


def _split_for_halves(ctx: RuleContext, shape: Dims) -> list[Any]:
  """The sizes before, of and after the dimension that is halved: ints, or i64[] if any is
  symbolic."""
  sizes = ctx.shape(shape or (1,))
  if isinstance(sizes, list):
    axis = next((i for i, size in enumerate(sizes) if size % 2 == 0), sizes.index(max(sizes)))
    return [math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])]
  sizes = tf.cast(sizes, tf.int64)
  rank = len(shape)  # of equal values the first: tf.argmax does not specify which
  axis = tf.argmax(
    tf.where(tf.equal(sizes % 2, 0), sizes.dtype.max, sizes * rank) - tf.range(rank, dtype=tf.int64)
  )
  return [tf.reduce_prod(sizes[:axis]), sizes[axis], tf.reduce_prod(sizes[axis + 1 :])]


@lowers(P.rng_uniform_p)
def _rng_uniform(ctx: RuleContext, low: tf.Tensor, high: tf.Tensor, *, shape: Dims) -> tf.Tensor:
  """low f32[], high f32[] -> f32[shape] in [low, high); the numbers are the platform's own, as XLA
  documents."""
  if low.dtype.is_floating or low.dtype in (tf.int32, tf.int64):
    return tf.random.uniform(ctx.shape(shape), low, high, low.dtype)
  wide = tf.random.uniform(
    ctx.shape(shape), tf.cast(low, tf.int64), tf.cast(high, tf.int64), tf.int64
  )
  return tf.cast(wide, low.dtype)
