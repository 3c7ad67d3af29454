"""Convolutions, pooling, random numbers, attention and small networks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.shape_poly.row import Row, bools, floats, ints

_NWC, _NHWC, _NDHWC = ("NWC", "WIO", "NWC"), ("NHWC", "HWIO", "NHWC"), ("NDHWC", "DHWIO", "NDHWC")


def _conv(padding, strides=(1, 1), numbers=_NHWC, **options):
  return lambda x, w: lax.conv_general_dilated(
    x, w, strides, padding, dimension_numbers=numbers, **options
  )


# JAX 0.12: the gradient of a convolution in its image calls `operator.index` on its padding, where
# strides leave a symbolic remainder; the second derivative in the kernel pads by the symbolic size
# itself.
_PADDING = "padding argument to conv_general_dilated should be a string"
_CONVOLUTIONS = [
  Row(
    "conv2d: batch, VALID",
    _conv("VALID"),
    ("b, 5, 6, 2", "3, 2, 2, 3"),
    second=True,
    eager=True,
    xla=True,
  ),
  Row("conv2d: height and width, SAME", _conv("SAME"), ("b, h, w, 2", "3, 3, 2, 3"), xla=True),
  Row("conv2d: height and width, VALID", _conv("VALID"), ("2, h+2, w+2, 2", "3, 3, 2, 3")),
  Row("conv2d: explicit padding", _conv([(1, 2), (0, 1)]), ("b, h+1, w+1, 2", "3, 2, 2, 3")),
  # Not as negative padding of the convolution, which XLA of JAX 0.10 reads beyond the image.
  Row(
    "conv2d: of a cut image",
    lambda x, w: _conv("SAME")(x[:, 1:, :-1], w),
    ("b, h+2, w+2, 2", "2, 2, 2, 3"),
  ),
  Row(
    "conv2d: strides, SAME",
    _conv("SAME", (2, 2)),
    ("b, h, w, 2", "3, 3, 2, 3"),
    xla=True,
    no_gradient=_PADDING,
  ),
  Row(
    "conv2d: strides, VALID",
    _conv("VALID", (2, 3)),
    ("b, h+2, w+2, 2", "3, 2, 2, 3"),
    no_gradient=_PADDING,
  ),
  Row(
    "conv2d: strides of multiples, VALID",
    _conv("VALID", (2, 2)),
    ("b, 2*h, 2*w, 2", "2, 2, 2, 3"),
    eager=True,
  ),
  Row(
    "conv2d: strides of multiples, explicit",
    _conv([(1, 1), (1, 1)], (2, 2)),
    ("b, 2*h+1, 2*w+1, 2", "3, 3, 2, 3"),
  ),
  Row(
    "conv2d: batch, strides and groups",
    _conv("SAME", (2, 2), feature_group_count=2),
    ("b, 5, 6, 4", "3, 3, 2, 4"),
  ),
  Row(
    "conv2d: batch, dilated",
    _conv("SAME", rhs_dilation=(2, 1)),
    ("b, 5, 6, 2", "3, 3, 2, 2"),
    second=True,
  ),
  Row(
    "conv2d: batch, depthwise", _conv("SAME", feature_group_count=3), ("b, 5, 6, 3", "3, 3, 1, 6")
  ),
  Row("conv2d: strides of multiples", _conv("SAME", (2, 2)), ("b, 4*h, 4*w, 2", "3, 3, 2, 3")),
  Row("conv2d: dilated kernel", _conv("SAME", rhs_dilation=(2, 1)), ("b, h, w, 2", "3, 3, 2, 2")),
  Row(
    "conv2d: dilated, VALID", _conv("VALID", rhs_dilation=(2, 2)), ("b, h+4, w+4, 1", "3, 3, 1, 2")
  ),
  Row(
    "conv2d: dilated image",
    _conv([(2, 2), (2, 2)], lhs_dilation=(2, 2)),
    ("b, h, w, 2", "3, 3, 2, 3"),
  ),
  Row("conv2d: groups", _conv("SAME", feature_group_count=2), ("b, h, w, 4", "3, 3, 2, 4")),
  Row("conv2d: depthwise", _conv("SAME", feature_group_count=3), ("b, h, w, 3", "3, 3, 1, 6")),
  Row("conv2d: batch groups", _conv("SAME", batch_group_count=2), ("2*b, h, w, 2", "3, 3, 2, 4")),
  Row(
    "conv2d: NCHW",
    _conv("SAME", (2, 1), ("NCHW", "OIHW", "NCHW")),
    ("b, 2, h, w", "3, 2, 3, 3"),
    no_gradient=_PADDING,
  ),
  Row("conv2d: 1 by 1", _conv("VALID"), ("b, h, w, 3", "1, 1, 3, d")),
  Row("conv2d: symbolic features", _conv("SAME"), ("b, h, 4, d", "3, 3, d, 2")),
  Row(
    "conv2d: symbolic kernel", _conv("VALID"), ("b, h+k, 4, 2", "k, 2, 2, 3"), no_gradient=_PADDING
  ),
  Row(
    "conv2d: bf16",
    _conv("SAME"),
    (floats("b, h, 4, 2", ml_dtypes.bfloat16), floats("3, 3, 2, 3", ml_dtypes.bfloat16)),
    rtol=3e-2,
  ),
  Row(
    "conv2d: int8",
    _conv("SAME", preferred_element_type=jnp.int32),
    (ints("b, h, 4, 2", dtype="int8"), ints("3, 3, 2, 3", dtype="int8")),
  ),
  Row("conv1d: SAME", _conv("SAME", (1,), _NWC), ("b, t, 2", "3, 2, 3"), xla=True),
  Row("conv1d: strides of multiples", _conv("VALID", (2,), _NWC), ("b, 2*t, 2", "2, 2, 3")),
  Row("conv1d: batch", _conv("SAME", (2,), _NWC), ("b, 7, 2", "3, 2, 3"), second=True),
  Row(
    "conv1d: VALID and strides",
    _conv("VALID", (2,), _NWC),
    ("b, t+2, 2", "3, 2, 3"),
    no_gradient=_PADDING,
  ),
  Row(
    "conv1d: causal and dilated",
    _conv([(4, 0)], (1,), _NWC, rhs_dilation=(2,)),
    ("b, t, 2", "3, 2, 3"),
  ),
  Row("conv3d: SAME", _conv("SAME", (1, 1, 1), _NDHWC), ("b, d, h, 3, 1", "2, 2, 2, 1, 2")),
  Row(
    "conv3d: VALID and strides",
    _conv("VALID", (2, 1, 1), _NDHWC),
    ("b, d+1, h+1, 3, 1", "2, 2, 2, 1, 2"),
    no_gradient=_PADDING,
  ),
  Row(
    "conv3d: batch and strides",
    _conv("SAME", (2, 2, 1), _NDHWC),
    ("b, 3, 4, 3, 1", "2, 2, 2, 1, 2"),
  ),
  Row(
    "conv3d: dilated",
    _conv("SAME", (1, 1, 1), _NDHWC, rhs_dilation=(2, 2, 1)),
    ("b, d, h, 3, 1", "2, 2, 2, 1, 2"),
  ),
  Row(
    "conv3d: groups",
    _conv("SAME", (1, 1, 1), _NDHWC, feature_group_count=2),
    ("b, d, h, 2, 2", "2, 2, 1, 1, 2"),
  ),
  Row(
    "conv_transpose: batch, SAME",
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
    ("b, 3, 4, 2", "3, 3, 2, 3"),
    second=True,
  ),
  Row(
    "conv_transpose: height and width",
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "VALID"),
    ("b, h, w, 2", "3, 2, 2, 3"),
    xla=True,
  ),
  Row(
    "conv_transpose: SAME, symbolic",
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
    ("b, h, w, 2", "3, 3, 2, 3"),
  ),
  Row(
    "conv_transpose: 1d, explicit",
    lambda x, w: lax.conv_transpose(x, w, (3,), [(1, 2)]),
    ("b, t, 2", "3, 2, 3"),
  ),
  Row(
    "patches",
    lambda x: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "SAME", dimension_numbers=_NHWC),
    "b, h, w, 2",
  ),
]


def _pool(init, op, window, strides, padding, **options):
  return lambda x: lax.reduce_window(x, init, op, window, strides, padding, **options)


_W1, _W2 = (1, 1, 1, 1), (1, 2, 2, 1)

_WINDOWS = [
  Row(
    "max_pool: VALID",
    _pool(-jnp.inf, lax.max, _W2, _W2, "VALID"),
    "b, h+1, w+1, 2",
    eager=True,
    xla=True,
  ),
  Row(
    "max_pool: SAME, overlapping",
    _pool(-jnp.inf, lax.max, (1, 3, 3, 1), _W2, "SAME"),
    "b, h, w, 2",
    second=True,
    xla=True,
  ),
  Row(
    "max_pool: explicit padding",
    _pool(-jnp.inf, lax.max, (1, 3, 3, 1), _W2, ((0, 0), (1, 1), (1, 0), (0, 0))),
    "b, h+1, w+1, 2",
  ),
  Row("max_pool: batch only", _pool(-jnp.inf, lax.max, _W2, _W2, "VALID"), "b, 4, 6, 2"),
  Row("max_pool: 1d", _pool(-jnp.inf, lax.max, (1, 3, 1), (1, 1, 1), "SAME"), "b, t, 2"),
  Row(
    "max_pool: dilated",
    _pool(-jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID", window_dilation=(1, 2, 1, 1)),
    "b, h+2, w+1, 1",
    no_gradient="VJP not implemented for select_and_gather",
  ),
  Row("min_pool", _pool(jnp.inf, lax.min, _W2, _W2, "SAME"), "b, h, w, 2"),
  Row("sum_pool: VALID", _pool(0.0, lax.add, _W2, _W2, "VALID"), "b, h+1, w+1, 2"),
  Row("sum_pool: SAME", _pool(0.0, lax.add, (1, 3, 3, 1), _W2, "SAME"), "b, h, w, 2"),
  Row(
    "avg_pool: SAME",
    lambda x: (
      _pool(0.0, lax.add, _W2, _W2, "SAME")(x)
      / _pool(0.0, lax.add, _W2, _W2, "SAME")(jnp.ones_like(x))
    ),
    "b, h, w, 2",
    xla=True,
  ),
  Row(
    "sum_pool: dilated base",
    _pool(0.0, lax.add, (3, 2), (1, 1), "SAME", base_dilation=(2, 1)),
    "a, b",
  ),
  Row("global pool", lambda x: (x.mean((1, 2)), x.max((1, 2))), "b, h, w, 3"),
  Row(
    "reduce_window: product",
    _pool(1.0, lax.mul, (2, 1), (1, 1), "VALID"),
    "b+1, 3",
    no_gradient="Linearization failed to produce known values",
  ),
  Row(
    "reduce_window: int max", _pool(np.int32(-100), lax.max, (2, 2), (1, 2), "SAME"), ints("a, b")
  ),
  Row(
    "reduce_window: a function",
    _pool(np.int32(0), lambda a, b: a ^ b, (3,), (1,), "SAME"),
    ints("b"),
  ),
  Row(
    "sum_pool: the whole axis",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, x.shape[1]), (1, 1), "VALID"),
    "a, b",
    second=True,
  ),
  Row(
    "max_pool: the whole image",
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, *x.shape[1:3], 1), _W1, "VALID"),
    "b, h, w, 2",
  ),
  Row(
    "max_pool: symbolic padding",
    lambda x: lax.reduce_window(
      x, -jnp.inf, lax.max, (2, 2), (1, 1), ((0, x.shape[0]), (x.shape[1], 0))
    ),
    "a, b",
  ),
  Row(
    "sum_pool: symbolic padding",
    lambda x: lax.reduce_window(
      x, 0.0, lax.add, (2, 2), (1, 1), ((0, x.shape[0]), (x.shape[1], 0))
    ),
    "a, b",
  ),
  Row(
    "sum_pool: symbolic window",
    lambda x, y: lax.reduce_window(x, 0.0, lax.add, (y.shape[0],), (1,), "VALID"),
    ("a+b", "b"),
  ),
  Row(
    "sum_pool: symbolic window, strides",
    lambda x, y: lax.reduce_window(x, 0.0, lax.add, (y.shape[0],), (2,), "VALID"),
    ("a+b", "b"),
  ),
  Row(
    "max_pool: symbolic window, SAME",
    lambda x, y: lax.reduce_window(x, -jnp.inf, lax.max, (y.shape[0], 1), (1, 1), "SAME"),
    ("a, 2", "b"),
    xla=True,
  ),
  Row(
    "resize: nearest", lambda x: jax.image.resize(x, (x.shape[0], 6, 8, 2), "nearest"), "b, 3, 4, 2"
  ),
  Row(
    "resize: bilinear",
    lambda x: jax.image.resize(x, (x.shape[0], 6, 8, 2), "linear"),
    "b, 3, 4, 2",
    eager=True,
  ),
]


def _key():
  return jax.random.key(3)


def _dropout(x):
  return jnp.where(jax.random.bernoulli(_key(), 0.7, x.shape), x / 0.7, 0)


_RANDOM = [
  row
  for partitionable in (False, True)
  for row in (
    functools.partial(Row, partitionable=partitionable)(
      f"random: {name}{', partitionable' * partitionable}", *rest, **flags
    )
    for name, flags, *rest in (
      ("uniform", {"xla": True}, lambda x: jax.random.uniform(_key(), (x.shape[0], 3)) * x, "b, 3"),
      ("normal", {"eager": True}, lambda x: jax.random.normal(_key(), x.shape), "a, b"),
      (
        "bits",
        {},
        lambda x: (jax.random.bits(_key(), x.shape), jax.random.bits(_key(), x.shape, "uint8")),
        "a, 4*b",
      ),
      ("bernoulli", {}, lambda x: jax.random.bernoulli(_key(), 0.3, x.shape), "a, b"),
      ("randint", {}, lambda x: jax.random.randint(_key(), (x.shape[0],), -3, 40), "b"),
      ("categorical", {}, lambda x: jax.random.categorical(_key(), x), "b, 5"),
      ("dropout", {"second": True}, _dropout, "a, b"),
      ("split", {}, lambda x: jax.random.key_data(jax.random.split(_key(), x.shape[0])), "b"),
      (
        "truncated normal",
        {},
        lambda x: jax.random.truncated_normal(_key(), -1.0, 2.0, (x.shape[0], 2)),
        "b",
      ),
      (
        "two sizes in one",
        {},
        lambda x, y: jax.random.uniform(_key(), (x.shape[0] + y.shape[0], 2 * x.shape[0])),
        ("a", "b"),
      ),
    )
  )
] + [
  Row(
    "random: exponential and gumbel",
    lambda x: (jax.random.exponential(_key(), x.shape), jax.random.gumbel(_key(), x.shape)),
    "a, b",
  ),
  Row(
    "random: fold_in of a size",
    lambda x: jax.random.uniform(jax.random.fold_in(_key(), x.shape[0]), (2,)),
    "b",
  ),
  Row(
    "random: raw key argument",
    lambda k, x: jax.random.normal(k, x.shape) * x,
    (ints("2", 0, 2**31, "uint32"), "b, 2"),
  ),
  Row(
    "random: keys of a batch",
    lambda k: jax.vmap(lambda k: jax.random.uniform(k, (3,)))(k),
    ints("b, 2", 0, 2**31, "uint32"),
  ),
  Row("random: bf16", lambda x: jax.random.uniform(_key(), x.shape, jnp.bfloat16), "a, b"),
  Row("random: rbg", lambda x: jax.random.uniform(jax.random.key(1, impl="rbg"), x.shape), "b, 2"),
  Row("random: gamma", lambda x: jax.random.gamma(_key(), x), "b"),
  Row(
    "random: permutation of a fixed axis",
    lambda x: jax.random.permutation(_key(), x, axis=1),
    "b, 5",
  ),
]


def _attention(q, k, v, causal=True):
  scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
  if causal:
    scores = jnp.where(jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)), scores, -1e9)
  return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _layer(p, x):
  b, t, d = x.shape
  q, k, v = jnp.split(_norm(x) @ p["qkv"], 3, axis=-1)
  x = x + _attention(*(y.reshape(b, t, 2, d // 2) for y in (q, k, v))).reshape(b, t, d) @ p["out"]
  return x + jax.nn.gelu(_norm(x) @ p["up"]) @ p["down"]


def _norm(x):
  return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _decode(x, cache, i):
  cache = lax.dynamic_update_slice(cache, x[:, None], (0, i, 0))
  scores = jnp.einsum("bd,btd->bt", x, cache)
  return jnp.einsum(
    "bt,btd->bd",
    jax.nn.softmax(jnp.where(jnp.arange(cache.shape[1]) <= i, scores, -jnp.inf)),
    cache,
  ), cache


def _rotary(x):
  angles = jnp.arange(x.shape[1])[:, None] / 100.0 ** (jnp.arange(2) / 2)
  a, b = jnp.split(x, 2, axis=-1)
  return jnp.concatenate(
    [a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1
  )


def _convnet(p, x):
  x = jax.nn.relu(_conv("SAME", (2, 2))(x, p[0]))
  x = _pool(-jnp.inf, lax.max, _W2, _W2, "SAME")(x)
  return x.reshape(x.shape[0], -1, x.shape[-1]).mean(1) @ p[1]


_LAYER = {"qkv": "4, 12", "out": "4, 4", "up": "4, 8", "down": "8, 4"}

_NETWORKS = [
  Row(
    "attention: causal",
    _attention,
    ("b, t, 2, 3", "b, t, 2, 3", "b, t, 2, 3"),
    second=True,
    eager=True,
    xla=True,
  ),
  Row(
    "attention: cross",
    functools.partial(_attention, causal=False),
    ("b, q, 2, 3", "b, k, 2, 3", "b, k, 2, 3"),
  ),
  Row(
    "attention: jax.nn",
    lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
    ("b, t, 2, 3", "b, t, 2, 3", "b, t, 2, 3"),
    rtol=1e-5,
  ),
  Row(
    "attention: jax.nn, masked",
    lambda q, k, v, m: jax.nn.dot_product_attention(q, k, v, mask=m),
    ("b, t, 2, 3", "b, s, 2, 3", "b, s, 2, 3", bools("b, 1, t, s")),
  ),
  Row("attention: decode step", _decode, ("b, 3", "b, t, 3", ints("", 0, 6))),
  Row("transformer layer", _layer, (_LAYER, "b, t, 4"), rtol=2e-5),  # a chain of matrix products
  Row("rotary embedding", _rotary, "b, t, 4", second=True),
  Row(
    "alibi",
    lambda x: x - jnp.abs(jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[2])),
    "b, q, k",
  ),
  Row(
    "mlp with a loss",
    lambda p, x, y: jnp.mean((jnp.tanh(x @ p[0]) @ p[1] - y) ** 2),
    (("3, 4", "4, 2"), "b, 3", "b, 2"),
    second=True,
    xla=True,
  ),
  Row("convnet", _convnet, (("3, 3, 2, 3", "3, 2"), "b, 4*h, 4*w, 2"), eager=True),
  Row(
    "vision transformer patches",
    lambda x: (
      x.reshape(x.shape[0], x.shape[1] // 2, 2, -1, 2, 3)
      .transpose(0, 1, 3, 2, 4, 5)
      .reshape(x.shape[0], -1, 12)
    ),
    "b, 2*h, 2*w, 3",
    second=True,
  ),
  Row("nearest upsampling", lambda x: jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), "b, h, w, 2"),
  Row(
    "contrastive loss",
    lambda x, y: -jnp.mean(jnp.diagonal(jax.nn.log_softmax(x @ y.T))),
    ("b, 3", "b, 3"),
  ),
]

ROWS = [*_CONVOLUTIONS, *_WINDOWS, *_RANDOM, *_NETWORKS]
