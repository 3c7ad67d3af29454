"""Rotary embeddings are one node of ONNX files of opset 23, with JAX's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters import onnx
from tests.support import onnx_files

BATCH, LENGTH, HEADS, WIDTH = 2, 6, 4, 8
NODE = "RotaryEmbedding"
X = np.random.default_rng(0).standard_normal((BATCH, LENGTH, HEADS, WIDTH)).astype("f")
POSITIONS = np.int32([[0, 1, 2, 3, 4, 5], [7, 6, 5, 40, 41, 42]])


def angles(positions: jax.Array, width: int) -> jax.Array:
  return positions[..., None] / 10000.0 ** (jnp.arange(0, width, 2) / width)


def of_gemma(x: jax.Array, positions: jax.Array) -> jax.Array:
  """x f32[b,t,h,d], the angles are given."""
  angle = angles(positions, x.shape[-1])[..., None, :]
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  first, second = jnp.split(x, 2, axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def of_llama(x: jax.Array, positions: jax.Array) -> jax.Array:
  """x f32[b,h,t,d], each angle twice."""
  angle = angles(positions, x.shape[-1])
  angle = jnp.concatenate([angle, angle], -1)
  cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
  first, second = jnp.split(x, 2, axis=-1)
  return cos * x + jnp.concatenate([-second, first], axis=-1) * sin


def in_turn(x: jax.Array) -> jax.Array:
  """x f32[b,t,h,d], the positions are those of the sequence."""
  angle = angles(jnp.arange(x.shape[1]), x.shape[-1])[:, None]
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  first, second = x[..., ::2], x[..., 1::2]
  pairs = jnp.stack([first * cos - second * sin, first * sin + second * cos], -1)
  return pairs.reshape(x.shape)


def in_turn_by_sum(x: jax.Array) -> jax.Array:
  angle = jnp.repeat(angles(jnp.arange(x.shape[1]), x.shape[-1]), 2, axis=-1)[:, None]
  turned = jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
  return x * jnp.cos(angle) + turned * jnp.sin(angle)


def of_columns(x: jax.Array, positions: jax.Array) -> list[jax.Array]:
  """Only the first columns are turned."""
  angle = angles(positions, WIDTH // 2)[..., None, :]
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  first, second, rest = jnp.split(x, [WIDTH // 4, WIDTH // 2], axis=-1)
  parts = [first * cos - second * sin, second * cos + first * sin, rest]
  narrow, y = WIDTH // 2, x + 1
  return [
    jnp.concatenate(parts, axis=-1),
    jnp.concatenate([of_gemma(y[..., :narrow], positions), y[..., narrow:]], axis=-1),
    jnp.concatenate([in_turn(x[..., :narrow]), x[..., narrow:]], axis=-1),
  ]


def of_equinox(x: jax.Array) -> jax.Array:
  rotary = equinox.nn.RotaryPositionalEmbedding(x.shape[-1])
  return jax.vmap(jax.vmap(rotary, in_axes=1, out_axes=1))(x)


def forms(_: Any, x: jax.Array, positions: jax.Array) -> list[jax.Array]:
  """Each of other numbers, because equal nodes become one."""
  of_one = of_gemma(x[:, :1], positions[:, :1])
  decoded = of_llama(x[:, :1].swapaxes(1, 2), positions[:, :1])
  return [
    of_gemma(x, positions),
    of_llama(x.swapaxes(1, 2), positions),
    in_turn(x),
    in_turn_by_sum(x + 1),
    *of_columns(x, positions),
    jax.vmap(in_turn, in_axes=2, out_axes=2)(x[:, :, :, None]),
    of_one,
    decoded,
  ]


def saved(path: Path, fun: Any, inputs: Any, sizes: Any = None, **options: Any) -> list[str]:
  """The nodes of the file."""
  examples = {"positions": lambda rng, shape, dtype: rng.integers(0, 99, shape, dtype)}
  onnx.save(
    fun,
    None,
    path,
    inputs=inputs,
    outputs=[f"y{i}" for i in range(len(jax.eval_shape(fun, None, X, POSITIONS)))],
    sizes=sizes,
    samples=1,
    examples=examples if "positions" in inputs else None,
    overwrite=True,
    **options,
  )
  return onnx_files.nodes(path)


@pytest.mark.parametrize("length", ["6", "t"])
def test_each_spelling_is_one_node(tmp_path: Path, length: str) -> None:
  inputs = {"x": f"f32[b,{length},4,8]", "positions": f"i32[b,{length}]"}
  sizes = {"b": BATCH} | ({"t": LENGTH} if length == "t" else {})
  path = tmp_path / "m.onnx"
  nodes = saved(path, forms, inputs, sizes, opset=23)
  wanted = jax.jit(forms)(None, X, POSITIONS)
  assert nodes.count(NODE) == len(wanted)
  assert not {"Neg", "Sub"} & set(nodes)
  found = onnx.run(path, {"x": X, "positions": POSITIONS})
  for i, y in enumerate(wanted):
    # of angles up to 42, in other roundings
    np.testing.assert_allclose(found[f"y{i}"], y, rtol=1e-5, atol=1e-5)


def test_the_layer_of_equinox_is_one_node(tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array, *positions: jax.Array) -> list[jax.Array]:
    del positions
    return [of_equinox(x)]

  path = tmp_path / "m.onnx"
  for opset in (22, 23):
    nodes = saved(path, fun, {"x": "f32[b,6,4,8]"}, opset=opset)
    assert nodes.count(NODE) == int(opset == 23)
  # sums of two products
  np.testing.assert_allclose(onnx.run(path, {"x": X})["y0"], of_equinox(X), rtol=1e-6, atol=1e-6)


def test_infinities_and_nan_are_those_of_jax(tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array) -> jax.Array:
    return in_turn(x)

  path, x = tmp_path / "m.onnx", X.copy()
  x[0, 0] = [np.nan, 1, np.inf, 2, -np.inf, np.inf, 3e38, 3e38]
  onnx.save(fun, None, path, inputs={"x": "f32[b,6,4,8]"}, outputs=["y"], samples=1, opset=23)
  found, y = onnx.run(path, {"x": x})["y"], np.asarray(jax.jit(fun)(None, x))
  np.testing.assert_allclose(found, y, rtol=1e-6, atol=1e-6)


def others(_: Any, x: jax.Array, positions: jax.Array) -> list[jax.Array]:
  """As a rotary embedding, but for one thing."""
  angle = angles(positions, WIDTH)[..., None, :]
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  first, second = jnp.split(x, 2, axis=-1)
  one, two = first * cos - second * sin, second * cos + first * sin
  wide_cos, wide_sin = (jnp.concatenate([y, y[..., ::-1]], -1) for y in (cos, sin))
  turned = jnp.concatenate([-second, first], axis=-1)
  return [
    jnp.concatenate([one, second * cos - first * sin], axis=-1),
    jnp.concatenate([two, one], axis=-1),
    jnp.concatenate([one, second * sin + first * cos], axis=-1),
    jnp.concatenate([one, second * cos[::-1] + first * sin], axis=-1),
    jnp.concatenate([first * cos[..., :1] - second * sin[..., :1]] * 2, axis=-1),
    x * wide_cos + turned * wide_sin,
    x * cos[..., :1] + turned * sin[..., :1],
    jnp.flip(x, 0) * jnp.concatenate([cos, cos], -1) + turned * jnp.concatenate([sin, sin], -1),
    x * jnp.concatenate([cos, cos], -1) + -turned * jnp.concatenate([sin, sin], -1),
    jnp.concatenate([one, two], axis=1),
  ]


def test_what_differs_in_one_thing_is_no_node(tmp_path: Path) -> None:
  inputs = {"x": "f32[b,6,4,8]", "positions": "i32[b,6]"}
  assert NODE not in saved(tmp_path / "m.onnx", others, inputs, {"b": BATCH}, opset=23)
