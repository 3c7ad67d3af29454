"""JAX's own Pallas kernels, for TPU and GPU, against plain functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.programs.kernels import TPU, normal
from tests.support.case import close

# JAX 0.12 recommends another library for those of a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:jax.experimental.pallas.ops.gpu")


def op(path: str, name: str) -> Any:
  return getattr(importlib.import_module(f"jax.experimental.pallas.ops.{path}"), name)


def attention(q, k, v):
  """Causal and without a scale, of [b,h,t,d]."""
  scores = jnp.einsum("bhtd,bhsd->bhts", q, k)
  scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -1e30)
  return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(scores), v)


def tpu_flash_attention(q, k, v):
  return op("tpu.flash_attention", "flash_attention")(q, k, v, causal=True)


def splash_attention(q, k, v):
  masks = importlib.import_module(
    "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask"
  )
  make = op("tpu.splash_attention.splash_attention_kernel", "make_splash_mha")
  mask = masks.MultiHeadMask([masks.CausalMask((q.shape[2],) * 2)] * q.shape[1])
  return jax.vmap(make(mask, head_shards=1, q_seq_shards=1))(q, k, v)


def gpu_attention(q, k, v):
  q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
  return jnp.swapaxes(op("gpu.attention", "mha")(q, k, v, None, causal=True), 1, 2)


def paged_attention(q, k, v, lengths, pages):
  call = op("tpu.paged_attention", "paged_attention")
  return call(q, k, v, lengths, pages, pages_per_compute_block=2)


def paged_attention_by_gathers(q, k, v, lengths, pages):
  keys, values = (x[:, pages].reshape(2, 4, 64, 128) for x in (k, v))
  scores = jnp.einsum("bgqd,gbtd->bgqt", q.reshape(4, 2, 4, 128), keys)
  scores = jnp.where(jnp.arange(64) < lengths[:, None, None, None], scores, -1e30)
  return jnp.einsum("bgqt,gbtd->bgqd", jax.nn.softmax(scores), values).reshape(q.shape)


def grouped_matmul(x, w, sizes):
  return op("tpu.megablox.gmm", "gmm")(x, w, sizes, jnp.float32, (64, 128, 128))


def tpu_matmul(x, y):
  return op("tpu.matmul", "matmul")(x, y, block_shape=(128, 128), block_k=128)


def decode_attention(q, k, v):
  return op("gpu.decode_attention", "gqa")(q, k, v, k_splits=4)


def decode_attention_at_once(q, k, v):
  q = q.reshape(2, 2, 4, 64)
  powers = jax.nn.softmax(jnp.einsum("bgqd,btgd->bgqt", q, k) / 8)
  return jnp.einsum("bgqt,btgd->bgqd", powers, v).reshape(2, 8, 64)


def gpu_layer_norm(x, weight, bias):
  return op("gpu.layer_norm", "layer_norm")(x[:, None], weight, bias)[:, 0]


def layer_norm(x, weight, bias):
  center = x.mean(-1, keepdims=True)
  return (x - center) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def gpu_rms_norm(x, weight, bias):
  return op("gpu.rms_norm", "rms_norm")(x[:, None], weight, bias)[:, 0]


def rms_norm(x, weight, bias):
  return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def gpu_softmax(x):
  return op("gpu.softmax", "softmax")(x)


def threefry(key):
  return op("tpu.random.threefry", "plthreefry_random_bits")(key, 32, (64, 256))


def plain_threefry(key):
  return jax.random.bits(jax.random.wrap_key_data(key), (64, 256))


@dataclass(frozen=True)
class Row:
  """A kernel of JAX.

  Attributes:
    fun: it.
    plain: the same without a kernel.
    args: of both.
  """

  fun: Callable[..., Any]
  plain: Callable[..., Any]
  args: Sequence[Any]


# The kernel rounds keys and values to bf16, so these numbers are of bf16.
PAGES = normal(2, 2, 16, 16, 128).astype(jnp.bfloat16).astype(np.float32)
QKV = [x * np.float32(0.3) for x in normal(3, 1, 2, 128, 128)]
OF_GPU = [x * np.float32(0.3) for x in normal(3, 2, 2, 128, 64)]
LENGTHS = np.array([5, 64, 33, 48], np.int32)
OF_PAGES = np.random.default_rng(1).permutation(16).reshape(4, 4).astype(np.int32)
NORM = [normal(4, 256), normal(256), normal(256)]
ROWS = [
  Row(tpu_flash_attention, attention, QKV),
  Row(splash_attention, attention, QKV),
  Row(gpu_attention, lambda q, k, v: attention(q, k, v), OF_GPU),
  Row(paged_attention, paged_attention_by_gathers, [normal(4, 8, 128), *PAGES, LENGTHS, OF_PAGES]),
  Row(
    grouped_matmul,
    lax.ragged_dot,
    [normal(128, 128), normal(4, 128, 128), np.array([50, 0, 28, 50], np.int32)],
  ),
  Row(tpu_matmul, jnp.matmul, [normal(256, 256), normal(256, 256)]),
  Row(
    decode_attention,
    decode_attention_at_once,
    [normal(2, 8, 64), normal(2, 256, 2, 64), normal(2, 256, 2, 64)],
  ),
  Row(gpu_layer_norm, layer_norm, NORM),
  Row(gpu_rms_norm, rms_norm, NORM),
  Row(gpu_softmax, jax.nn.softmax, [normal(16, 256)]),
  Row(threefry, plain_threefry, [np.arange(2, dtype=np.uint32)]),
]
DIFFERENTIABLE = [row for row in ROWS if row.fun.__name__.endswith("attention")][:3]


def converted(row: Row) -> Any:
  """The kernel in a graph, traced as on a TPU, which some ask for."""

  def fun(*args: Any) -> Any:
    with jax.sharding.use_abstract_mesh(TPU):
      return row.fun(*args)

  return tf.function(jax2tf.convert(fun), autograph=False)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fun.__name__)
def test_values(row: Row) -> None:
  # sums by blocks
  rtol = 1e-5 if row.fun is not threefry else None
  results = converted(row)(*map(tf.constant, row.args))
  close(results, jax.jit(row.plain)(*row.args), rtol=rtol, of_the_largest=True)


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.fun.__name__)
def test_gradients(row: Row) -> None:
  """By JAX's backward kernels."""
  function, variables = converted(row), [tf.Variable(x) for x in row.args]
  with tf.GradientTape() as tape:
    total = tf.reduce_sum(function(*variables) ** 2)
  loss = lambda *args: (row.plain(*args) ** 2).sum()  # noqa: E731
  expected = list(jax.jit(jax.grad(loss, (0, 1, 2)))(*row.args))
  close(tape.gradient(total, variables), expected, rtol=2e-5, of_the_largest=True)
