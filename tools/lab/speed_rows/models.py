"""Whole models, each in plain JAX and in hand-written TensorFlow with the same weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf.tools.lab.speed_rows import harness
from jax2tf.tools.lab.speed_rows.harness import Row
from tests.support import loop_models

Params = Any


def _normal(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape, np.float32)


class _Weights:
  """A function that draws arrays with fan-in scale, each from the next seed."""

  def __init__(self) -> None:
    self.seeds = itertools.count()

  def __call__(self, *shape: int) -> np.ndarray:
    return _normal(next(self.seeds), *shape) / np.float32(math.sqrt(math.prod(shape[:-1])))

  def dense(self, rows: int, columns: int) -> dict[str, np.ndarray]:
    return {"w": self(rows, columns), "b": 0.1 * _normal(next(self.seeds), columns)}

  def around_one(self, size: int) -> np.ndarray:
    return 1 + np.float32(0.1) * np.abs(_normal(next(self.seeds), size))


# -----------------------------------------------------------------------------------------------
# MLP


def _mlp_params() -> Params:
  weights = _Weights()
  return [weights.dense(*sizes) for sizes in itertools.pairwise((784, 512, 512, 10))]


def _mlp_jax(params: Params, x: Any) -> Any:
  *hidden, last = params
  for layer in hidden:
    x = jax.nn.relu(x @ layer["w"] + layer["b"])
  return x @ last["w"] + last["b"]


def _mlp_tf(params: Params, x: Any) -> Any:
  *hidden, last = params
  for layer in hidden:
    x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, layer["w"]), layer["b"]))
  return tf.nn.bias_add(tf.matmul(x, last["w"]), last["b"])


# ---------------------------------------------------------------------------------------
# transformer

_LAYERS, _HEADS, _WIDTH, _LENGTH = 4, 4, 256, 128


def _transformer_params() -> Params:
  weights = _Weights()

  def block() -> Params:
    layers = {name: weights.dense(_WIDTH, _WIDTH) for name in ("q", "k", "v", "o")}
    norms = {
      name: {"g": weights.around_one(_WIDTH), "b": weights(_WIDTH)} for name in ("ln1", "ln2")
    }
    return {
      **layers,
      **norms,
      "up": weights.dense(_WIDTH, 4 * _WIDTH),
      "down": weights.dense(4 * _WIDTH, _WIDTH),
    }

  return [block() for _ in range(_LAYERS)]


def _layer_norm_jax(p: Params, x: Any) -> Any:
  mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
  return (x - mean) / jnp.sqrt(variance + 1e-5) * p["g"] + p["b"]


def _transformer_jax(params: Params, x: Any) -> Any:
  def dense(p: Params, x: Any) -> Any:
    return x @ p["w"] + p["b"]

  def heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], _HEADS, -1).transpose(0, 2, 1, 3)

  for p in params:
    y = _layer_norm_jax(p["ln1"], x)
    q, k, v = (heads(dense(p[name], y)) for name in "qkv")
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
    x = x + dense(p["o"], (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))
    x = x + dense(p["down"], jax.nn.gelu(dense(p["up"], _layer_norm_jax(p["ln2"], x))))
  return x


def _layer_norm_tf(p: Params, x: Any) -> Any:
  mean, variance = tf.nn.moments(x, [-1], keepdims=True)
  return tf.nn.batch_normalization(x, mean, variance, p["b"], p["g"], 1e-5)


def _transformer_tf(params: Params, x: Any) -> Any:
  def dense(p: Params, x: Any) -> Any:
    rows = tf.nn.bias_add(tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), p["w"]), p["b"])
    return tf.reshape(rows, [*x.shape[:-1], p["w"].shape[-1]])

  def heads(x: Any) -> Any:
    return tf.transpose(tf.reshape(x, [*x.shape[:2], _HEADS, -1]), [0, 2, 1, 3])

  for p in params:
    y = _layer_norm_tf(p["ln1"], x)
    q, k, v = (heads(dense(p[name], y)) for name in "qkv")
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / math.sqrt(q.shape[-1]))
    x = x + dense(p["o"], tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), x.shape))
    x = x + dense(
      p["down"], tf.nn.gelu(dense(p["up"], _layer_norm_tf(p["ln2"], x)), approximate=True)
    )
  return x


# --------------------------------------------------------------------------------------------
# ResNet

_STAGES = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))


def _resnet_params() -> Params:
  weights = _Weights()

  def conv(size: int, features: int, outputs: int) -> Params:
    # A gain below one at the end of each branch keeps activations bounded over eight blocks.
    norm = {
      "g": weights.around_one(outputs),
      "b": weights(outputs),
      "mean": weights(outputs),
      "var": weights.around_one(outputs),
    }
    return {"w": weights(size, size, features, outputs), **norm}

  params: Params = {"stem": conv(7, 3, 64), "blocks": [], "head": weights.dense(512, 1000)}
  features = 64
  for outputs, stride in _STAGES:
    block = {"a": conv(3, features, outputs), "b": conv(3, outputs, outputs)}
    params["blocks"].append(block | ({"skip": conv(1, features, outputs)} if stride > 1 else {}))
    features = outputs
  return params


def _resnet_jax(params: Params, x: Any) -> Any:
  def conv(p: Params, x: Any, stride: int = 1) -> Any:
    y = lax.conv_general_dilated(
      x, p["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return (y - p["mean"]) * (lax.rsqrt(p["var"] + 1e-5) * p["g"]) + p["b"]  # as in flax

  x = jax.nn.relu(conv(params["stem"], x, 2))
  x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
  for p, (_, stride) in zip(params["blocks"], _STAGES, strict=True):
    y = conv(p["b"], jax.nn.relu(conv(p["a"], x, stride)))
    x = jax.nn.relu(y + (conv(p["skip"], x, stride) if "skip" in p else x))
  return jnp.mean(x, (1, 2)) @ params["head"]["w"] + params["head"]["b"]


def _resnet_tf(params: Params, x: Any) -> Any:
  def conv(p: Params, x: Any, stride: int = 1) -> Any:
    y = tf.nn.conv2d(x, p["w"], stride, "SAME")
    return tf.nn.batch_normalization(y, p["mean"], p["var"], p["b"], p["g"], 1e-5)  # as in Keras 3

  x = tf.nn.relu(conv(params["stem"], x, 2))
  x = tf.nn.max_pool2d(x, 3, 2, "SAME")
  for p, (_, stride) in zip(params["blocks"], _STAGES, strict=True):
    y = conv(p["b"], tf.nn.relu(conv(p["a"], x, stride)))
    x = tf.nn.relu(y + (conv(p["skip"], x, stride) if "skip" in p else x))
  return tf.nn.bias_add(
    tf.matmul(tf.reduce_mean(x, [1, 2]), params["head"]["w"]), params["head"]["b"]
  )


_WAYS = ("ours", "fused", "native", "native xla")
MODELS: dict[str, Row] = {
  "MLP 784-512-512-10, batch 64": Row(
    _mlp_jax, _mlp_tf, [_normal(100, 64, 784)], _mlp_params(), _WAYS
  ),
  "transformer, 4 layers d256 s128": Row(
    _transformer_jax,
    _transformer_tf,
    [_normal(100, 1, _LENGTH, _WIDTH)],
    _transformer_params(),
    _WAYS,
  ),
  "ResNet-18-like, 96 px": Row(
    _resnet_jax, _resnet_tf, [_normal(100, 1, 96, 96, 3)], _resnet_params(), _WAYS
  ),
  "LSTM, 64 steps d128": Row(
    loop_models.lstm_jax,
    loop_models.lstm_tf,
    [_normal(100, 64, 1, 128)],
    loop_models.lstm_params(128),
    _WAYS,
  ),
}


def rows() -> list[str]:
  """Each model, and its value and gradient."""
  return [f"{name}, {what}" for name in MODELS for what in ("forward", "value and gradient")]


def measured(names: Sequence[str]) -> Iterator[tuple[str, harness.Numbers]]:
  """The times of each row."""
  for name in names:
    model, _, what = name.rpartition(", ")
    yield name, harness.measured(MODELS[model], seconds=10.0, gradient=what != "forward")
