"""Models for the table of plain tools only, `make targets`; `tests.support.models` has the zoo.

Keras needs KERAS_BACKEND=jax.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry, below
from tests.support.models.libraries import KEY, Function, of_equinox, of_linen, weights

LENGTH, FEATURES = 60, 8
VOCABULARY, WIDTH, HEADS, GROUPS = 50, 32, 4, 4


def _keras_cnn() -> tuple[Function, Any]:
  """(apply, variables) of image f32[b,32,32,3] -> scores f32[b,10], heat map f32[b,16,16,1]."""
  import keras  # noqa: PLC0415  (its import takes seconds)
  from keras import layers  # noqa: PLC0415

  keras.utils.set_random_seed(0)
  image = keras.Input((32, 32, 3))
  x = layers.MaxPooling2D()(
    layers.Activation("elu")(
      layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(image))
    )
  )
  x = layers.AveragePooling2D(2)(
    layers.Activation("gelu")(layers.SeparableConv2D(16, 3, padding="same")(x))
  )
  heat = layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="softplus")(x)
  scores = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
  model = keras.Model(image, [scores, heat])
  values = [
    [np.asarray(v.value) for v in group]
    for group in (model.trainable_variables, model.non_trainable_variables)
  ]
  return lambda params, image: model.stateless_call(*params, image)[0], values


KERAS_CNN = Entry(
  "keras_cnn",
  "Keras on JAX",
  _keras_cnn,
  {"image": "f32[b,32,32,3]"},
  ["scores", "heat"],
  {"b": (1, 3)},
)


class TransposedUNet(eqx.Module):
  """image f32[3,32,32] -> f32[2,32,32]."""

  down: list[eqx.nn.Conv2d]
  up: list[eqx.nn.ConvTranspose2d]
  pool: eqx.nn.MaxPool2d
  last: eqx.nn.Conv2d

  def __init__(self, key: Any):
    keys = jax.random.split(key, 6)
    self.down = [
      eqx.nn.Conv2d(a, b, 3, padding=1, key=k)
      for (a, b), k in zip(((3, 8), (8, 16), (16, 32)), keys[:3], strict=True)
    ]
    self.up = [
      eqx.nn.ConvTranspose2d(a, b, 3, stride=2, padding=1, output_padding=1, key=k)
      for (a, b), k in zip(((32, 16), (32, 8)), keys[3:5], strict=True)
    ]
    self.pool = eqx.nn.MaxPool2d(3, stride=2, padding=1)
    self.last = eqx.nn.Conv2d(16, 2, 1, key=keys[5])

  def __call__(self, x: Any) -> Any:
    skips = []
    for conv in self.down[:-1]:
      x = jax.nn.leaky_relu(conv(x))
      skips.append(x)
      x = self.pool(x)
    x = jax.nn.leaky_relu(self.down[-1](x))
    for conv, skip in zip(self.up, reversed(skips), strict=True):
      x = jnp.concatenate([jax.nn.leaky_relu(conv(x)), skip])
    return self.last(x)


def _transposed_unet() -> tuple[Function, Any]:
  return of_equinox(TransposedUNet(KEY))


TRANSPOSED_UNET = Entry(
  "transposed_unet",
  "Equinox",
  _transposed_unet,
  {"image": "f32[b,3,32,32]"},
  ["scores"],
  {"b": (1, 3)},
)


class Tagger(nn.Module):
  """x f32[b,60,8] -> log probabilities f32[b,60,5]; rows of zeros are padding."""

  @nn.compact
  def __call__(self, x: Any) -> Any:
    forward, backward = (
      nn.RNN(nn.OptimizedLSTMCell(12), reverse=reverse, keep_order=True)
      for reverse in (False, True)
    )
    both = jnp.concatenate([forward(x), backward(x)], -1)
    scores = nn.Dense(5)(jnp.where(jnp.any(x != 0, -1, keepdims=True), both, 0))
    return nn.log_softmax(scores)


def _bidirectional_lstm() -> tuple[Function, Any]:
  return of_linen(Tagger(), np.zeros((1, LENGTH, FEATURES), np.float32))


BIDIRECTIONAL_LSTM = Entry(
  "bidirectional_lstm",
  "Flax linen",
  _bidirectional_lstm,
  {"x": f"f32[b,{LENGTH},{FEATURES}]"},
  ["log_probs"],
  {"b": (1, 3)},
)


def encode(params: Any, ids: Any) -> tuple[Any, Any]:
  """ids i32[b,s], 0 for padding -> f32[b,s,32], the share of real tokens so far f32[b,s]."""
  real = ids != 0
  position = jnp.cumsum(real, -1) - 1
  x = params["embedding"][ids] + params["positions"][jnp.clip(position, 0, 31)]
  for layer in params["layers"]:
    x = _normalized(x + _attention(layer, x, real))
    x = _normalized(x + jax.nn.gelu(x @ layer["wide"], approximate=False) @ layer["narrow"])
  return x, jnp.cumsum(real.astype(jnp.float32), -1) / (1 + jnp.arange(ids.shape[1]))


def _attention(layer: Any, x: Any, real: Any) -> Any:
  b, s, _ = x.shape
  q, k, v = (
    jnp.reshape(x @ layer[name], (b, s, HEADS, WIDTH // HEADS)) for name in ("q", "k", "v")
  )
  scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
  # The first token is real, so no row is masked as a whole.
  masked = jnp.where(real[:, None, None, :] | (jnp.arange(s) == 0), scores, -jnp.inf)
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(masked), v).reshape(b, s, WIDTH) @ layer["o"]


def _normalized(x: Any) -> Any:
  groups = x.reshape(*x.shape[:-1], GROUPS, WIDTH // GROUPS)
  mean = groups.mean(-1, keepdims=True)
  return ((groups - mean) * jax.lax.rsqrt(groups.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)


def _masked_encoder() -> tuple[Function, Any]:
  keys = iter(jax.random.split(KEY, 20))
  sizes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {
    "wide": (WIDTH, 2 * WIDTH),
    "narrow": (2 * WIDTH, WIDTH),
  }
  layers = [{name: weights(next(keys), *size) for name, size in sizes.items()} for _ in range(2)]
  return encode, {
    "embedding": weights(next(keys), VOCABULARY, WIDTH),
    "positions": weights(next(keys), 32, WIDTH),
    "layers": layers,
  }


MASKED_ENCODER = Entry(
  "masked_encoder",
  "plain JAX",
  _masked_encoder,
  {"ids": "i32[b,s]"},
  ["encoded", "share"],
  {"b": (1, 3), "s": (5, 9)},
  draws={"ids": below(VOCABULARY)},
)


ENTRIES = {
  entry.name: entry for entry in (KERAS_CNN, TRANSPOSED_UNET, BIDIRECTIONAL_LSTM, MASKED_ENCODER)
}
