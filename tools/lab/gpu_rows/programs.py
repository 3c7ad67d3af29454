"""What runs on a GPU: the models of the zoo, and programs that are large enough to fill one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.models import zoo

_LAYERS = 8


@dataclass(frozen=True)
class Program:
  """A function of (params, x).

  Attributes:
    name: as in the report.
    build: () -> (fun, params).
    inputs: () -> x.
    shapes: the polymorphic shape of x, or None.
    differentiable: whether its gradient in the params is measured.
    large: whether it fills a GPU, so that its times are those of the GPU.
  """

  name: str
  build: Callable[[], tuple[Callable[..., Any], Any]]
  inputs: Callable[[], Any]
  shapes: Any = None
  differentiable: bool = True
  large: bool = True


def programs() -> Iterator[Program]:
  """The large ones first."""
  for dtype in (np.float32, jnp.bfloat16, np.float16):
    yield _product(dtype)
  yield _product(np.float32, "highest")
  for dtype in (np.float32, jnp.bfloat16):
    yield _transformer(dtype)
  yield Program("convolutions f32", _convolutions, lambda: _normal(1, 32, 56, 56, 64))
  yield Program("dropout", _dropout, lambda: _normal(1, 1024, 1024))
  yield Program("sampling", _sampling, lambda: _normal(1, 64, 32000), differentiable=False)
  for name, model in zoo.MODELS.items():
    yield Program(
      name,
      model.build,
      lambda model=model: model.inputs(3),  # type: ignore[misc]
      model.spec,
      model.differentiable,
      large=False,
    )


def _normal(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _product(dtype: Any, precision: str | None = None) -> Program:
  def build() -> tuple[Callable[..., Any], Any]:
    return lambda w, x: jnp.matmul(x, w, precision=precision), _normal(0, 4096, 4096).astype(dtype)

  name = f"product {np.dtype(dtype).name}" + (f" {precision}" if precision else "")
  return Program(name, build, lambda: _normal(1, 4096, 4096).astype(dtype))


def _transformer(dtype: Any) -> Program:
  width, heads = 1024, 16

  def weight(rows: int, columns: int) -> np.ndarray:
    return (_normal(rows, rows, columns) / np.sqrt(rows)).astype(dtype)

  def normalized(x: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-6)
    return y.astype(x.dtype)

  def attention(x: jax.Array, weights: jax.Array) -> jax.Array:
    q, k, v = (part.reshape(*x.shape[:2], heads, -1) for part in jnp.split(x @ weights, 3, axis=-1))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(width // heads).astype(x.dtype)
    shares = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    return jnp.einsum("bhts,bshd->bthd", shares, v).reshape(x.shape)

  def fun(layers: Any, x: jax.Array) -> jax.Array:
    for layer in layers:
      x = x + attention(normalized(x), layer["qkv"]) @ layer["out"]
      x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    return x

  def build() -> tuple[Callable[..., Any], Any]:
    layer = {
      "qkv": weight(width, 3 * width),
      "out": weight(width, width),
      "up": weight(width, 4 * width),
      "down": weight(4 * width, width),
    }
    return fun, [layer] * _LAYERS

  name = f"transformer {np.dtype(dtype).name}"
  return Program(name, build, lambda: _normal(1, 8, 512, width).astype(dtype))


def _convolutions() -> tuple[Callable[..., Any], Any]:
  def fun(kernels: Any, x: jax.Array) -> jax.Array:
    for kernel in kernels:
      layout = ("NHWC", "HWIO", "NHWC")
      y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
      x = x + jax.nn.relu(y)
    return x

  return fun, [_normal(i, 3, 3, 64, 64) / 24 for i in range(_LAYERS)]


def _dropout() -> tuple[Callable[..., Any], Any]:
  def fun(params: Any, x: jax.Array) -> jax.Array:
    weights, key_data = params
    key = jax.random.wrap_key_data(key_data)
    for i in range(4):
      kept = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape)
      x = jnp.where(kept, x @ weights / 0.9, 0)
    return x

  return fun, (np.eye(1024, dtype=np.float32), np.array([1, 2], np.uint32))


def _sampling() -> tuple[Callable[..., Any], Any]:
  def fun(key_data: jax.Array, x: jax.Array) -> Any:
    key = jax.random.wrap_key_data(key_data)
    logits, tokens = lax.top_k(x, 50)
    chosen = jax.random.categorical(key, logits)
    token = jnp.take_along_axis(tokens, chosen[:, None], axis=1)
    return token, jnp.sort(x, axis=-1), jnp.median(x), jax.random.normal(key, (100_000,))

  return fun, np.array([1, 2], np.uint32)
