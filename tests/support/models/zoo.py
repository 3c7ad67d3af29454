"""Small models of the real architectures, in the five libraries whose users we serve.

Each entry builds a function of (params, input) and its parameters; the tests convert it with a
symbolic batch and compare with JAX. Networks are built when asked for, so that importing this file
is quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tests.support.models.libraries import KEY, of_equinox, of_haiku, of_linen, of_nnx
from tests.support.models.libraries import weights as normal


@dataclass(frozen=True)
class Model:
  """A model of the zoo.

  Attributes:
    name: library_architecture.
    build: () -> (fun(params, x), params).
    inputs: batch size -> x.
    spec: polymorphic shape of x.
    batches: the sizes it is run at.
    differentiable: whether the gradient in the parameters is compared.
    rtol: of values and gradients, relative to the largest magnitude in each array.
  """

  name: str
  build: Callable[[], tuple[Callable[..., Any], Any]]
  inputs: Callable[[int], Any]
  spec: Any = "b, ..."
  batches: tuple[int, ...] = (1, 3)
  differentiable: bool = True
  rtol: float = 1e-5


def floats(*shape: int) -> Callable[[int], np.ndarray]:
  """batch -> f32[batch, *shape]."""
  return lambda batch: (
    np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
  )


def tokens(length: int, vocabulary: int = 11) -> Callable[[int], np.ndarray]:
  """batch -> i32[batch, length]."""
  return lambda batch: np.random.default_rng(batch).integers(
    0, vocabulary, (batch, length), np.int32
  )


MODELS: dict[str, Model] = {}


def model(inputs: Callable[[int], Any], **options: Any) -> Callable[..., Any]:
  """Registers a builder under its own name."""

  def register(build: Callable[..., Any]) -> Callable[..., Any]:
    MODELS[build.__name__] = Model(build.__name__, build, inputs, **options)
    return build

  return register


def loss_of(fun: Callable[..., Any]) -> Callable[..., Any]:
  """(params, x) -> f32[], of all floating point results."""

  def loss(params: Any, x: Any) -> Any:
    results = [y for y in jax.tree.leaves(fun(params, x)) if jnp.issubdtype(y.dtype, np.floating)]
    return sum(jnp.mean(jnp.sin(y.astype(jnp.float32))) for y in results)

  return loss


class LinenMLP(nn.Module):
  @nn.compact
  def __call__(self, x):
    for width in (16, 16):
      x = nn.gelu(nn.Dense(width)(x))
    return nn.log_softmax(nn.Dense(4)(x))


@model(floats(8))
def linen_mlp():
  return of_linen(LinenMLP(), floats(8)(1))


class LinenCNN(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.Conv(8, (3, 3))(x)
    x = nn.BatchNorm(use_running_average=True)(nn.relu(x))
    x = nn.max_pool(x, (2, 2), (2, 2))
    x = nn.avg_pool(nn.Conv(8, (3, 3), strides=2, padding="VALID")(x), (2, 2), (1, 1))
    return nn.Dense(4)(x.reshape(x.shape[0], -1))


@model(floats(16, 16, 3))
def linen_cnn_nhwc():
  return of_linen(LinenCNN(), floats(16, 16, 3)(1))


class ResidualBlock(nn.Module):
  features: int
  strides: int = 1

  @nn.compact
  def __call__(self, x, train):
    norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
    y = nn.relu(norm()(nn.Conv(self.features, (3, 3), self.strides, use_bias=False)(x)))
    y = norm(scale_init=nn.initializers.ones)(nn.Conv(self.features, (3, 3), use_bias=False)(y))
    if x.shape != y.shape:
      x = norm()(nn.Conv(self.features, (1, 1), self.strides, use_bias=False)(x))
    return nn.relu(x + y)


class LinenResNet(nn.Module):
  @nn.compact
  def __call__(self, x, train=False):
    x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (7, 7), 2)(x)))
    x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
    for features, strides in ((8, 1), (16, 2)):
      x = ResidualBlock(features, strides)(x, train)
    return nn.Dense(4)(x.mean((1, 2)))


@model(floats(32, 32, 3), rtol=3e-5)
def linen_resnet():
  return of_linen(LinenResNet(), floats(32, 32, 3)(1))


# batch statistics of few samples divide by small variances
@model(floats(32, 32, 3), batches=(2, 3), rtol=1e-4)
def linen_resnet_training():
  apply, variables = of_linen(LinenResNet(), floats(32, 32, 3)(1))

  def train(variables, x):
    logits, updates = apply(variables, x, train=True, mutable=["batch_stats"])
    return logits, updates

  return train, variables


class EncoderLayer(nn.Module):
  @nn.compact
  def __call__(self, x, mask):
    x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
    return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))


class LinenEncoder(nn.Module):
  @nn.compact
  def __call__(self, ids):
    x = (
      nn.Embed(11, 16)(ids)
      + self.param("positions", nn.initializers.normal(), (64, 16))[: ids.shape[1]]
    )
    for _ in range(2):
      x = EncoderLayer()(x, nn.make_attention_mask(ids > 0, ids > 0))
    return nn.LayerNorm()(x)


@model(tokens(6))
def linen_transformer_encoder():
  return of_linen(LinenEncoder(), tokens(6)(1))


class LinenLSTM(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.Dense(2)(nn.RNN(nn.OptimizedLSTMCell(8))(x))


@model(floats(5, 4))
def linen_lstm():
  return of_linen(LinenLSTM(), floats(5, 4)(1))


class NnxCNN(nnx.Module):
  def __init__(self, rngs):
    self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
    self.norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
    self.dense = nnx.Linear(8, 4, rngs=rngs)

  def __call__(self, x):
    x = nnx.avg_pool(nnx.silu(self.norm(self.conv(x))), (2, 2), (2, 2))
    return self.dense(x.mean((1, 2)))


@model(floats(8, 8, 3))
def nnx_cnn():
  return of_nnx(NnxCNN(nnx.Rngs(0)))


class NnxAttention(nnx.Module):
  def __init__(self, rngs):
    self.attention = nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False)
    self.norm = nnx.LayerNorm(8, rngs=rngs)

  def __call__(self, x):
    return self.norm(x + self.attention(x))


@model(floats(5, 8))
def nnx_attention():
  return of_nnx(NnxAttention(nnx.Rngs(0)))


@model(floats(8))
def haiku_mlp():
  return of_haiku(lambda x: hk.nets.MLP([16, 4], activation=jax.nn.elu)(x), floats(8)(1))


@model(floats(3, 12, 12))
def haiku_cnn_nchw():
  def net(x):
    x = jax.nn.leaky_relu(hk.Conv2D(8, 3, data_format="NCHW")(x))
    x = hk.MaxPool((1, 1, 2, 2), (1, 1, 2, 2), "SAME")(x)
    x = hk.Conv2D(8, 3, stride=2, data_format="NCHW")(x)
    return hk.Linear(4)(hk.Flatten()(x))

  return of_haiku(net, floats(3, 12, 12)(1))


@model(floats(5, 4))
def haiku_lstm():
  def net(x):
    core = hk.LSTM(8)
    outs, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[0]), time_major=False)
    return hk.Linear(2)(outs)

  return of_haiku(net, floats(5, 4)(1))


@model(floats(8))
def equinox_mlp():
  return of_equinox(eqx.nn.MLP(8, 4, 16, 2, key=KEY))


@model(floats(3, 12, 12))
def equinox_cnn_nchw():
  keys = jax.random.split(KEY, 3)
  return of_equinox(
    eqx.nn.Sequential(
      [
        eqx.nn.Conv2d(3, 8, 3, key=keys[0]),
        eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.MaxPool2d(2, 2),
        eqx.nn.GroupNorm(2, 8),
        eqx.nn.Conv2d(8, 4, 3, groups=4, key=keys[1]),
        eqx.nn.AvgPool2d(2, 2),
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(4, 4, key=keys[2]),
      ]
    )
  )


@model(floats(5, 4))
def equinox_gru():
  cell = eqx.nn.GRUCell(4, 8, key=KEY)
  arrays, static = eqx.partition(cell, eqx.is_array)

  def apply(arrays, x):
    cell = eqx.combine(arrays, static)
    return jax.vmap(lambda x: jax.lax.scan(lambda h, x: (cell(x, h),) * 2, jnp.zeros(8), x)[1])(x)

  return apply, arrays


@model(floats(5, 8))
def equinox_attention():
  attention, norm = eqx.nn.MultiheadAttention(2, 8, key=KEY), eqx.nn.LayerNorm(8)
  arrays, static = eqx.partition((attention, norm), eqx.is_array)

  def apply(arrays, x):
    attention, norm = eqx.combine(arrays, static)
    return jax.vmap(lambda x: jax.vmap(norm)(x + attention(x, x, x)))(x)

  return apply, arrays


@model(floats(8))
def plain_mlp():
  params = [(normal(k, 8, 8), np.zeros(8, np.float32)) for k in jax.random.split(KEY, 3)]

  def apply(params, x):
    for w, b in params:
      x = jax.nn.relu(x @ w + b)
    return jax.nn.softmax(x)

  return apply, params


@model(tokens(7), spec="b, s")
def plain_transformer_decoder():
  keys = iter(jax.random.split(KEY, 16))
  params = {
    "embedding": normal(next(keys), 11, 16),
    "layers": [
      {
        "qkv": normal(next(keys), 16, 3, 2, 8),
        "out": normal(next(keys), 2, 8, 16),
        "up": normal(next(keys), 16, 32),
        "down": normal(next(keys), 32, 16),
        "scale": np.ones((2, 16), np.float32),
      }
      for _ in range(2)
    ],
  }

  def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

  def apply(params, ids):
    x = params["embedding"][ids]
    length = ids.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    for layer in params["layers"]:
      q, k, v = jnp.einsum("bsd,dchk->cbhsk", rms_norm(x, layer["scale"][0]), layer["qkv"])
      scores = jnp.where(causal, jnp.einsum("bhsk,bhtk->bhst", q, k) / np.sqrt(8), -1e9)
      x = x + jnp.einsum("bhst,bhtk,hkd->bsd", jax.nn.softmax(scores), v, layer["out"])
      x = x + jax.nn.silu(rms_norm(x, layer["scale"][1]) @ layer["up"]) @ layer["down"]
    return jax.nn.log_softmax(x @ params["embedding"].T)

  return apply, params


@model(floats(6, 4))
def plain_gru():
  keys = jax.random.split(KEY, 2)
  params = {"w": normal(keys[0], 4, 24), "u": normal(keys[1], 8, 24), "b": np.zeros(24, np.float32)}

  def apply(params, x):
    def step(h, x):
      xr, xz, xn = jnp.split(x @ params["w"] + params["b"], 3, -1)
      hr, hz, hn = jnp.split(h @ params["u"], 3, -1)
      z = jax.nn.sigmoid(xz + hz)
      h = (1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h
      return h, h

    return jax.lax.scan(step, jnp.zeros((x.shape[0], 8)), jnp.swapaxes(x, 0, 1))[1]

  return apply, params


@model(floats(4), differentiable=False)
def plain_control_flow():
  def apply(params, x):
    x = jax.lax.switch(jnp.int32(x.shape[0] % 3), [jnp.sin, jnp.cos, jnp.tanh], x * params)
    x = jax.lax.cond(jnp.sum(x) > 0, lambda x: x + 1, lambda x: x - 1, x)
    halved = jax.vmap(
      lambda v: jax.lax.while_loop(lambda v: jnp.max(jnp.abs(v)) > 0.5, lambda v: v / 2, v)
    )(x)
    return halved, jax.lax.fori_loop(0, 5, lambda i, v: v + i, x)

  return apply, np.float32(2)


@model(floats(8))
def plain_dropout_with_typed_key():
  def apply(params, x):
    key = jax.random.fold_in(jax.random.key(1), 3)
    keep = jax.random.bernoulli(key, 0.8, (8,))
    return jnp.where(keep, x @ params / 0.8, 0) + jax.random.normal(jax.random.split(key)[1], (8,))

  return apply, normal(KEY, 8, 8)


@model(floats(8))
def plain_noise_with_raw_key():
  def apply(params, x):
    key = jax.random.PRNGKey(5)
    return (
      x @ params + jax.random.uniform(key, (8,)) + jax.random.truncated_normal(key, -1, 1, (8,))
    )

  return apply, normal(KEY, 8, 8)


@model(
  lambda batch: (floats(8)(batch), tokens(1, 4)(batch)[:, 0]),
  spec=("b, _", "b"),
  differentiable=False,
)
def plain_adam_step():
  optimizer = optax.adam(1e-2)
  params = {"w": normal(KEY, 8, 4), "b": np.zeros(4, np.float32)}

  def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y).mean()

  def step(state, batch):
    params, moments = state
    value, grads = jax.value_and_grad(loss)(params, *batch)
    updates, moments = optimizer.update(grads, moments, params)
    return value, (optax.apply_updates(params, updates), moments)

  return step, (params, optimizer.init(params))
