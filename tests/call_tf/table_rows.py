"""TensorFlow functions, each with its equivalent in JAX: the rows of test_table.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

Row = tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[jax.Array], jax.Array], np.ndarray]

_RNG = np.random.default_rng(0)
_VECTOR = np.array([0.3, -0.7, 1.1, 0.4], np.float32)
_MATRIX = np.array([[2.0, 0.5, 0.1], [0.4, 1.5, -0.3], [0.2, 0.3, 1.0]], np.float32)
_SIGNAL = _RNG.standard_normal(16).astype(np.float32)
_IMAGE = _RNG.uniform(0.1, 1.0, (1, 4, 4, 3)).astype(np.float32)
_KERNEL = _RNG.standard_normal((3, 3, 3, 2)).astype(np.float32)
_LABELS = np.array([0.0, 1.0, 0.0, 0.0], np.float32)
_IDS = np.array([0, 2, 2, 1])


def _symmetric(a: Any) -> Any:
  return a @ a.T if isinstance(a, jax.Array) else tf.matmul(a, a, transpose_b=True)


def _resized(method: str) -> Callable[[jax.Array], jax.Array]:
  return lambda x: jax.image.resize(x, (1, 8, 8, 3), method, antialias=False)


def _convolution(x: jax.Array, kernel: Any, groups: int = 1) -> jax.Array:
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (1, 1),
    "SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    feature_group_count=groups,
  )


def _pooled(x: jax.Array, start: float, reduce: Any) -> jax.Array:
  return jax.lax.reduce_window(x, start, reduce, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _stft(x: jax.Array) -> jax.Array:
  frames = jnp.stack([x[i : i + 8] for i in range(0, 9, 4)])
  return jnp.fft.rfft(frames * (0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(8) / 8)))


def _parts(z: Any) -> Any:
  return (
    jnp.stack([z.real, z.imag])
    if isinstance(z, jax.Array)
    else tf.stack([tf.math.real(z), tf.math.imag(z)])
  )


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _reversed(x: tf.Tensor) -> Any:
  return tf.sin(x), lambda dy: -dy * tf.math.conj(tf.cos(x))


@jax.custom_jvp
def _reversed_in_jax(x: jax.Array) -> jax.Array:
  return jnp.sin(x)


_reversed_in_jax.defjvps(lambda dx, y, x: -dx * jnp.cos(x))


@functools.cache
def _table() -> Any:
  with tf.init_scope():
    return tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(["a", "b"], [2.0, 3.0]), -1.0
    )


@functools.cache
def _keras() -> Any:
  import keras  # noqa: PLC0415  (2 s, for some rows only)

  keras.utils.set_random_seed(0)
  model = keras.Sequential(
    [
      keras.Input((3,)),
      keras.layers.Dense(4, "tanh"),
      keras.layers.BatchNormalization(),
      keras.layers.Dense(2),
    ]
  )
  model.layers[1].moving_mean.assign([0.1, 0.2, -0.1, 0.3])
  return model


def _keras_in_jax(x: jax.Array, *, training: bool = False) -> jax.Array:
  dense, norm, last = _keras().layers
  w, b, gamma, beta, mean, variance, w2, b2 = (
    v.numpy() for layer in (dense, norm, last) for v in layer.weights
  )
  x = jnp.tanh(x @ w + b)
  # tf.nn.moments also omits the derivative by the mean inside the variance; it is zero in the first
  # derivative
  if training:
    mean = x.mean(0)
    variance = ((x - jax.lax.stop_gradient(mean)) ** 2).mean(0)
  return ((x - mean) * jax.lax.rsqrt(variance + norm.epsilon) * gamma + beta) @ w2 + b2


def _while(x: tf.Tensor) -> tf.Tensor:
  return tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, tf.sin(c) * x), [0, x])[1]


ROWS: dict[str, Row] = {
  "tf.nn.softmax": (tf.nn.softmax, jax.nn.softmax, _VECTOR),
  "tf.nn.log_softmax": (tf.nn.log_softmax, jax.nn.log_softmax, _VECTOR),
  "tf.nn.gelu": (tf.nn.gelu, functools.partial(jax.nn.gelu, approximate=False), _VECTOR),
  "tf.nn.elu": (tf.nn.elu, jax.nn.elu, _VECTOR),
  "tf.nn.selu": (tf.nn.selu, jax.nn.selu, _VECTOR),
  "tf.nn.silu": (tf.nn.silu, jax.nn.silu, _VECTOR),
  "tf.nn.softplus": (tf.nn.softplus, jax.nn.softplus, _VECTOR),
  "tf.nn.relu6": (lambda x: tf.nn.relu6(x) * x, lambda x: jax.nn.relu6(x) * x, _VECTOR),
  "tf.nn.softmax_cross_entropy_with_logits": (
    lambda x: tf.nn.softmax_cross_entropy_with_logits(_LABELS, x),
    lambda x: -jnp.sum(_LABELS * jax.nn.log_softmax(x)),
    _VECTOR,
  ),
  "tf.nn.l2_normalize": (tf.nn.l2_normalize, lambda x: x * jax.lax.rsqrt(jnp.sum(x * x)), _VECTOR),
  "tf.nn.conv2d": (
    lambda x: tf.nn.conv2d(x, _KERNEL, 1, "SAME"),
    lambda x: _convolution(x, _KERNEL),
    _IMAGE,
  ),
  "tf.nn.depthwise_conv2d": (
    lambda x: tf.nn.depthwise_conv2d(x, _KERNEL, [1, 1, 1, 1], "SAME"),
    lambda x: _convolution(x, _KERNEL.reshape(3, 3, 1, 6), 3),
    _IMAGE,
  ),
  "tf.nn.avg_pool2d": (
    lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID") ** 2,
    lambda x: (_pooled(x, 0.0, jax.lax.add) / 4) ** 2,
    _IMAGE,
  ),
  "tf.nn.max_pool2d": (
    lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
    lambda x: _pooled(x, -jnp.inf, jax.lax.max),
    _IMAGE,
  ),
  "tf.image.resize, bilinear": (lambda x: tf.image.resize(x, [8, 8]), _resized("linear"), _IMAGE),
  # TensorFlow rounds distances between pixels to multiples of 1/1024.
  "tf.image.resize, bicubic": (
    lambda x: tf.image.resize(x, [8, 8], "bicubic"),
    _resized("cubic"),
    _IMAGE,
  ),
  "tf.image.adjust_contrast": (
    lambda x: tf.image.adjust_contrast(x, 2.0),
    lambda x: 2 * x - x.mean((1, 2), keepdims=True),
    _IMAGE,
  ),
  "tf.image.rgb_to_grayscale": (
    tf.image.rgb_to_grayscale,
    lambda x: x @ jnp.array([[0.2989], [0.587], [0.114]]),
    _IMAGE,
  ),
  "tf.image.total_variation": (
    lambda x: tf.image.total_variation(x**2),
    lambda x: (
      jnp.abs(jnp.diff(x**2, axis=1)).sum((1, 2, 3))
      + jnp.abs(jnp.diff(x**2, axis=2)).sum((1, 2, 3))
    ),
    _IMAGE,
  ),
  "tf.signal.stft": (
    lambda x: _parts(tf.signal.stft(x, 8, 4)),
    lambda x: _parts(_stft(x)),
    _SIGNAL,
  ),
  "tf.signal.dct": (lambda x: tf.signal.dct(x) ** 2, lambda x: jax.scipy.fft.dct(x) ** 2, _SIGNAL),
  "tf.signal.fft": (
    lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))) ** 2,
    lambda x: jnp.abs(jnp.fft.fft(x.astype(jnp.complex64))) ** 2,
    _SIGNAL,
  ),
  "tf.linalg.cholesky": (
    lambda a: tf.linalg.cholesky(_symmetric(a)),
    lambda a: jnp.linalg.cholesky(_symmetric(a)),
    _MATRIX,
  ),
  "tf.linalg.inv": (tf.linalg.inv, jnp.linalg.inv, _MATRIX),
  "tf.linalg.solve": (
    lambda a: tf.linalg.solve(a, a[:, :1] ** 2),
    lambda a: jnp.linalg.solve(a, a[:, :1] ** 2),
    _MATRIX,
  ),
  "tf.linalg.det": (tf.linalg.det, jnp.linalg.det, _MATRIX),
  "tf.linalg.eigvalsh": (
    lambda a: tf.linalg.eigvalsh(_symmetric(a)),
    lambda a: jnp.linalg.eigvalsh(_symmetric(a)),
    _MATRIX,
  ),
  "tf.einsum": (
    lambda a: tf.einsum("ij,kj,ik->i", a, a, a),
    lambda a: jnp.einsum("ij,kj,ik->i", a, a, a),
    _MATRIX,
  ),
  "tf.reduce_logsumexp": (tf.reduce_logsumexp, jax.nn.logsumexp, _VECTOR),
  "tf.math.cumprod": (tf.math.cumprod, jnp.cumprod, _VECTOR),
  "tf.math.lgamma": (
    lambda x: tf.math.lgamma(x + 2),
    lambda x: jax.scipy.special.gammaln(x + 2),
    _VECTOR,
  ),
  "tf.math.erf": (tf.math.erf, jax.scipy.special.erf, _VECTOR),
  "tf.math.segment_sum": (
    lambda x: tf.math.unsorted_segment_sum(x**3, _IDS, 3),
    lambda x: jax.ops.segment_sum(x**3, _IDS, 3),
    _VECTOR,
  ),
  "tf.sort": (lambda x: tf.sort(x) ** 3, lambda x: jnp.sort(x) ** 3, _VECTOR),
  "tf.gather, tf.scatter_nd": (
    lambda x: tf.scatter_nd(_IDS[:, None], tf.gather(x, _IDS) ** 3, [4]),
    lambda x: jnp.zeros(4).at[_IDS].add(x[_IDS] ** 3),
    _VECTOR,
  ),
  "ragged inside": (
    lambda x: tf.reduce_sum(tf.RaggedTensor.from_row_lengths(tf.sin(x), [1, 0, 3]), 1),
    lambda x: jnp.stack([jnp.sin(x[0]), 0 * x[0], jnp.sin(x[1:]).sum()]),
    _VECTOR,
  ),
  "strings inside": (
    lambda x: (
      tf.sin(x)
      * tf.cast(tf.strings.length(tf.strings.as_string(tf.cast(x > 0, tf.int32) * 10)), tf.float32)
    ),
    lambda x: jnp.sin(x) * jnp.where(x > 0, 2, 1),
    _VECTOR,
  ),
  "lookup table": (
    lambda x: tf.exp(x) * tf.ensure_shape(_table().lookup(tf.where(x > 0, "a", "b")), x.shape),
    lambda x: jnp.exp(x) * jnp.where(x > 0, 2, 3),
    _VECTOR,
  ),
  "Keras with BatchNorm": (lambda x: _keras()(x, training=False), _keras_in_jax, _MATRIX),
  "Keras with BatchNorm, training": (
    lambda x: _keras()(x, training=True),
    functools.partial(_keras_in_jax, training=True),
    _MATRIX,
  ),
  "tf.while_loop": (
    _while,
    lambda x: jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) * x, x),
    _VECTOR,
  ),
  "tf.scan": (
    lambda x: tf.scan(lambda a, b: tf.sin(a) + b * b, x),
    lambda x: jnp.append(
      x[:1], jax.lax.scan(lambda a, b: (jnp.sin(a) + b * b,) * 2, x[0], x[1:])[1]
    ),
    _VECTOR,
  ),
  "tf.cond": (
    lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x) ** 2, lambda: x),
    lambda x: jax.lax.cond(x.sum() > 0, lambda: jnp.sin(x) ** 2, lambda: x),
    _VECTOR,
  ),
  "tf.custom_gradient": (_reversed, _reversed_in_jax, _VECTOR),
  "tf.numpy_function": (
    lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), x.shape),
    jnp.sin,
    _VECTOR,
  ),
}

# Resources that a SavedModel has to track besides variables.
TRACKED: dict[str, Callable[[], Any]] = {
  "lookup table": _table,
  "Keras with BatchNorm": _keras,
  "Keras with BatchNorm, training": _keras,
}
