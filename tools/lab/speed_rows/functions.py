"""Single functions and loops, each in JAX, and in TensorFlow as one writes it by hand for the same
values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf.tools.lab.speed_rows import harness
from jax2tf.tools.lab.speed_rows.harness import Row
from tests.support import loop_models


def _normal(*shape: int) -> np.ndarray:
  return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


_KEY = np.array([0, 42], np.uint32)
_MATRIX = _normal(256, 256) + 16 * np.eye(256, dtype=np.float32)
_NUMBERS = 1_000_000
_WITH_IDIOMS = ("ours", "fused", "compiled")
_NAN = "TensorFlow's op loses NaN; the ops that keep it pass over the array again"
_LOST = (
  "TensorFlow's op takes NaN for -inf, and has NaN after two infinities, so the log2(n) "
  "steps are ops of their own"
)
_THREEFRY = (
  "Threefry has 20 rounds, each of which waits for the one before: 121 ops a turn, of 0.35 µs "
  "each, which XLA makes one loop"
)
_SINGULAR = (
  "TensorFlow's op raises for a singular matrix, so a log-determinant comes first; XLA "
  "has no LU, and compiles one by columns"
)


def _layer_norm(x: jax.Array) -> jax.Array:
  return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _layer_norm_tf(x: tf.Tensor) -> tf.Tensor:
  return tf.nn.batch_normalization(x, *tf.nn.moments(x, [-1], keepdims=True), None, None, 1e-5)


def _max_pool(x: jax.Array) -> jax.Array:
  return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _lu_tf(x: tf.Tensor) -> Any:
  return tuple(tf.linalg.lu(x))


def _solve_tf(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  return tf.linalg.solve(a, b)


def _normal_tf(key: tf.Tensor) -> tf.Tensor:
  """As `jax.random.normal` with `jax_threefry_partitionable`: one counter for each number."""
  counters = tf.cast(tf.range(_NUMBERS), tf.uint32)
  first, second = loop_models.threefry_tf(key, tf.zeros_like(counters), counters)
  mantissa = tf.bitwise.right_shift(first ^ second, np.uint32(9)) | np.uint32(0x3F800000)
  least = np.nextafter(np.float32(-1), np.float32(0))
  uniform = (tf.bitcast(mantissa, tf.float32) - 1.0) * (np.float32(1) - least) + least
  return np.float32(np.sqrt(2)) * tf.math.erfinv(tf.maximum(uniform, least))


def _scanned_tf(
  step: Callable[..., tuple[Any, tf.Tensor]], start: Any, xs: tf.Tensor
) -> tuple[Any, tf.Tensor]:
  """A scan as one writes it with tf.while_loop and TensorArrays."""
  length = xs.shape[0]
  rows = tf.TensorArray(xs.dtype, length).unstack(xs)

  def turn(i: tf.Tensor, carry: Any, ys: Any) -> Any:
    carry, y = step(carry, rows.read(i))
    return i + 1, carry, ys.write(i, y)

  ys = tf.TensorArray(start.dtype, length, element_shape=start.shape)
  _, carry, ys = tf.while_loop(
    lambda i, *_: i < length, turn, (tf.constant(0), start, ys), maximum_iterations=length
  )
  return carry, ys.stack()


def _same(step: Callable[..., Any], xp: Any) -> Callable[..., Any]:
  """A step whose carry is its output."""

  def both(carry: Any, x: Any) -> Any:
    carry = step(xp, carry, x)
    return carry, carry

  return both


def _decay(xp: Any, carry: Any, x: Any) -> Any:
  del xp
  return carry * 0.9 + x


def _recurrent(w: Any) -> Callable[..., Any]:
  def step(xp: Any, carry: Any, x: Any) -> Any:
    return xp.tanh((carry[None] @ w)[0] + x)

  return step


def _write_rows(x: jax.Array, rows: jax.Array) -> jax.Array:
  return lax.fori_loop(0, rows.shape[0], lambda i, x: x.at[i].set(rows[i] * 2), x)


def _write_rows_tf(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
  number = rows.shape[0]

  def turn(i: tf.Tensor, x: tf.Tensor) -> Any:
    return i + 1, tf.tensor_scatter_nd_update(x, [[i]], [rows[i] * 2])

  return tf.while_loop(
    lambda i, _: i < number, turn, (tf.constant(0), x), maximum_iterations=number
  )[1]


def _scan_rows() -> dict[str, Row]:
  xs, start, w = _normal(1000, 256), _normal(256), _normal(256, 256) / 16
  decay = functools.partial(lax.scan, _same(_decay, jnp))
  in_jax = lambda c, xs, w: lax.scan(_same(_recurrent(w), jnp), c, xs)  # noqa: E731
  in_tf = lambda c, xs, w: _scanned_tf(_same(_recurrent(w), tf), c, xs)  # noqa: E731
  turn = "TensorFlow's executor takes about 1.8 µs for a turn of six ops, jax.jit 0.2 µs"
  return {
    "loop: scan of 1,000 rows, c * 0.9 + x": Row(
      decay, lambda c, xs: _scanned_tf(_same(_decay, tf), c, xs), [start, xs], reason=turn
    ),
    "loop: scan of 1,000 rows, tanh(c @ w + x)": Row(in_jax, in_tf, [start, xs, w]),
  }


ROWS: dict[str, Row] = {
  "softmax": Row(
    jax.nn.softmax, tf.nn.softmax, [_normal(1000, 1000)], reason=_NAN, ways=_WITH_IDIOMS
  ),
  "layer norm": Row(_layer_norm, _layer_norm_tf, [_normal(1000, 1000)], ways=_WITH_IDIOMS),
  "max pool": Row(
    _max_pool,
    lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
    [_normal(32, 56, 56, 64)],
    reason=_NAN,
    ways=_WITH_IDIOMS,
  ),
  "top_k": Row(
    lambda x: lax.top_k(x, 10),
    lambda x: tuple(tf.math.top_k(x, 10)),
    [_normal(1000, 1000)],
    reason=_NAN,
  ),
  "sort": Row(jnp.sort, tf.sort, [_normal(256, 1000)], reason=_NAN),
  "lu": Row(lambda x: lax.linalg.lu(x)[::2], _lu_tf, [_MATRIX], reason=_SINGULAR),
  "solve": Row(jnp.linalg.solve, _solve_tf, [_MATRIX, _normal(256, 8)], reason=_SINGULAR),
  "cumsum": Row(lambda x: jnp.cumsum(x, -1), lambda x: tf.cumsum(x, -1), [_normal(1000, 1000)]),
  "cumlogsumexp": Row(
    lambda x: lax.cumlogsumexp(x, axis=1),
    lambda x: tf.math.cumulative_logsumexp(x, -1),
    [_normal(256, 1000)],
    reason=_LOST,
  ),
  # TensorFlow's erfinv near 1
  "normal, 1e6": Row(
    lambda key: jax.random.normal(key, (_NUMBERS,)), _normal_tf, [_KEY], rtol=1e-3
  ),
  "loop: 200 writes of rows into 512 x 512": Row(
    _write_rows, _write_rows_tf, [_normal(512, 512), _normal(200, 512)]
  ),
  **_scan_rows(),
  "loop: 100 steps that split a key": Row(
    loop_models.keys_jax, loop_models.keys_tf, [_KEY], reason=_THREEFRY
  ),
}


def rows() -> list[str]:
  """The functions."""
  return [*ROWS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, harness.Numbers]]:
  """The times of each function."""
  for name in names:
    yield name, harness.measured(ROWS[name], seconds=4.0)
