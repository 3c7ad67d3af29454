"""Loops, each in plain JAX and in hand-written TensorFlow for the same values: an LSTM, a GRU, and
a chain of split keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

# -----------------------------------------------------------------------------------------------
# LSTM


def lstm_params(size: int) -> dict[str, np.ndarray]:
  """Weights of inputs, of the state, and biases of the four gates."""
  rng = np.random.default_rng(0)
  weights = {
    name: rng.standard_normal((size, 4 * size), np.float32) / np.float32(size**0.5) for name in "wu"
  }
  return weights | {"b": rng.standard_normal(4 * size, np.float32) / 10}


def lstm_jax(params: Any, xs: Any) -> Any:
  """params, xs f32[t,b,n] -> the states f32[t,b,n]."""

  def step(state: Any, x: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(x @ params["w"] + h @ params["u"] + params["b"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h

  zeros = jnp.zeros(xs.shape[1:])
  return lax.scan(step, (zeros, zeros), xs)[1]


def lstm_tf(params: Any, xs: Any) -> Any:
  """As `lstm_jax`, as in Keras' RNN and LSTMCell."""
  w, u, b = (tf.convert_to_tensor(params[name]) for name in "wub")
  steps = xs.shape[0]
  inputs = tf.TensorArray(tf.float32, steps).unstack(xs)

  def step(t: Any, h: Any, c: Any, outputs: Any) -> Any:
    z = tf.nn.bias_add(tf.matmul(inputs.read(t), w) + tf.matmul(h, u), b)
    i, f, g, o = tf.split(z, 4, -1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    h = tf.sigmoid(o) * tf.tanh(c)
    return t + 1, h, c, outputs.write(t, h)

  zeros = tf.zeros(xs.shape[1:])
  outputs = tf.TensorArray(tf.float32, steps, element_shape=xs.shape[1:])
  start = (tf.constant(0), zeros, zeros, outputs)
  return tf.while_loop(lambda t, *_: t < steps, step, start, maximum_iterations=steps)[-1].stack()


# -----------------------------------------------------------------------------------------------
# GRU


def gru_params(size: int) -> dict[str, np.ndarray]:
  """Weights of inputs, of the state, and biases of the three gates."""
  rng = np.random.default_rng(0)
  weights = {
    name: rng.standard_normal((size, 3 * size), np.float32) / np.float32(size**0.5) for name in "wu"
  }
  return weights | {
    "b": rng.standard_normal(3 * size, np.float32) / 10,
    "c": rng.standard_normal(size, np.float32) / 10,
  }


def gru_jax(params: Any, xs: Any) -> Any:
  """params, xs f32[t,b,n] -> the states f32[t,b,n]."""

  def step(h: Any, x: Any) -> Any:
    of_x = jnp.split(x @ params["w"] + params["b"], 3, -1)
    of_h = jnp.split(h @ params["u"], 3, -1)
    reset, update = (jax.nn.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
    h = update * h + (1 - update) * jnp.tanh(of_x[2] + reset * (of_h[2] + params["c"]))
    return h, h

  return lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1]


def gru_tf(params: Any, xs: Any) -> Any:
  """As `gru_jax`, as in Keras' RNN and GRUCell."""
  w, u, b, c = (tf.convert_to_tensor(params[name]) for name in "wubc")
  steps = xs.shape[0]
  inputs = tf.TensorArray(tf.float32, steps).unstack(xs)

  def step(t: Any, h: Any, outputs: Any) -> Any:
    of_x = tf.split(tf.nn.bias_add(tf.matmul(inputs.read(t), w), b), 3, -1)
    of_h = tf.split(tf.matmul(h, u), 3, -1)
    reset, update = (tf.sigmoid(x + y) for x, y in zip(of_x[:2], of_h[:2], strict=True))
    h = update * h + (1 - update) * tf.tanh(of_x[2] + reset * tf.nn.bias_add(of_h[2], c))
    return t + 1, h, outputs.write(t, h)

  outputs = tf.TensorArray(tf.float32, steps, element_shape=xs.shape[1:])
  start = (tf.constant(0), tf.zeros(xs.shape[1:]), outputs)
  return tf.while_loop(lambda t, *_: t < steps, step, start, maximum_iterations=steps)[-1].stack()


# ----------------------------------------------------------------------------------------------
# keys

KEYS = 100


def keys_jax(key: Any) -> Any:
  """key u32[2] -> (the last key, the other half of each split u32[100,2])."""

  def step(key: Any, _: Any) -> tuple[Any, Any]:
    key, other = jax.random.split(key)
    return key, other

  return lax.scan(step, key, None, length=KEYS)


def keys_tf(key: Any) -> Any:
  """As `keys_jax`."""
  counters = tf.constant([0, 0], tf.uint32), tf.constant([0, 1], tf.uint32)

  def step(t: Any, key: Any, outputs: Any) -> Any:
    of_each = tf.stack(threefry_tf(key, *counters), 1)
    return t + 1, of_each[0], outputs.write(t, of_each[1])

  start = (tf.constant(0), key, tf.TensorArray(tf.uint32, KEYS, element_shape=[2]))
  _, key, outputs = tf.while_loop(lambda t, *_: t < KEYS, step, start, maximum_iterations=KEYS)
  return key, outputs.stack()


def threefry_tf(key: Any, first: Any, second: Any) -> Any:
  """Threefry-2x32 of two counters, as in "Parallel random numbers: as easy as 1, 2, 3" (Salmon et
  al., 2011)."""
  keys = [key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)]
  first, second = first + keys[0], second + keys[1]
  for block in range(5):
    for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
      first += second
      left = tf.bitwise.left_shift(second, np.uint32(distance))
      second = first ^ (left | tf.bitwise.right_shift(second, np.uint32(32 - distance)))
    first += keys[(block + 1) % 3]
    second += keys[(block + 2) % 3] + np.uint32(block + 1)
  return first, second
