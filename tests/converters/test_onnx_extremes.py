"""Maxima, minima, their positions and pools in ONNX Runtime, which loses a NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx as onnx_package
import pytest
from flax import linen
from jax import lax
from jax import numpy as jnp

from jax2tf.converters import onnx
from jax2tf.converters.onnx import protos

SHAPE = (8, 16, 16, 8)
MOST, LEAST = np.finfo(np.float32).max, np.finfo(np.float32).min


def images(*numbers: float) -> np.ndarray:
  """f32[8,16,16,8] with each of the numbers at some places, and -inf in all of the last image."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=SHAPE).astype(np.float32)
  for number in numbers:
    x[rng.random(SHAPE) < 0.01] = number
  x[-1] = -np.inf if numbers else x[-1]
  return x


OPERANDS = {
  "finite": images(),
  "zeros": images(0.0, -0.0),
  "nan": images(np.nan),
  "infinite": images(np.inf, -np.inf),
  "-inf": images(-np.inf),
  "overflowing": images(MOST, LEAST),
  "all": images(np.nan, np.inf, -np.inf, MOST, LEAST),
}


def reductions(numpy: Any, x: Any) -> dict[str, Any]:
  return {
    "max": numpy.max(x, 0),
    "min": numpy.min(x, (1, 2)),
    "argmax": numpy.argmax(x, 3).astype(np.int32),
    "argmin": numpy.argmin(x, 0).astype(np.int32),
  }


def pools(x: Any) -> dict[str, Any]:
  window = (1, 3, 3, 1), (1, 2, 2, 1)
  five = (1, 1, 2, 2, 1), (1, 1, 1, 1, 1), "VALID"
  return {
    "same": linen.max_pool(x, (3, 3), (2, 2), "SAME"),
    "explicit": lax.reduce_window(x, -jnp.inf, lax.max, *window, ((0, 0), (1, 1), (1, 1), (0, 0))),
    "minima": lax.reduce_window(x, jnp.inf, lax.min, *window, "VALID"),
    "batched": lax.reduce_window(x[:, None], -jnp.inf, lax.max, *five),
  }


def pools_in_numpy(x: np.ndarray) -> dict[str, np.ndarray]:
  def windows(size: int, stride: int, low: int, high: int, fill: float) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (low, high), (low, high), (0, 0)), constant_values=fill)
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))
    return views[:, ::stride, ::stride]

  return {
    "same": windows(3, 2, 0, 1, -np.inf).max((-2, -1)),
    "explicit": windows(3, 2, 1, 1, -np.inf).max((-2, -1)),
    "minima": windows(3, 2, 0, 0, np.inf).min((-2, -1)),
    "batched": windows(2, 1, 0, 0, -np.inf).max((-2, -1))[:, None],
  }


# The reference is NumPy: XLA on CPUs loses a NaN in some reductions of several rows at once.
@pytest.mark.filterwarnings("ignore:ONNX Runtime computes different outputs than JAX for NaN")
@pytest.mark.parametrize("size", ["b", "8"])
def test_they_keep_nan_and_infinities(tmp_path: Path, size: str) -> None:
  path = tmp_path / "m.onnx"
  functions: dict[str, Callable[[Any], dict[str, Any]]] = {
    "reductions": lambda x: reductions(jnp, x),
    "pools": pools,
  }
  onnx.save(
    lambda _, x: {name: of(x) for name, of in functions.items()},
    {},
    path,
    inputs={"x": f"f32[{size},16,16,8]"},
    samples=1,
  )
  for name, x in OPERANDS.items():
    results = onnx.run(path, {"x": x})
    expected = {"reductions": reductions(np, x), "pools": pools_in_numpy(x)}
    for part, of_part in expected.items():
      for kind, y in of_part.items():
        np.testing.assert_array_equal(results[f"{part}_{kind}"], y, err_msg=f"{name}, {kind}")


def test_small_operands_have_no_branch(tmp_path: Path) -> None:
  path = tmp_path / "m.onnx"
  onnx.save(lambda _, x: jnp.max(x, 0), {}, path, inputs={"x": "f32[4,8]"}, samples=1)
  kinds = {node.op_type for node in protos.nodes(onnx_package.load(path).graph)}
  assert "ReduceMax" in kinds and "If" not in kinds
  x = np.array([[1, np.nan, np.inf, -np.inf]] * 2 + [[2, 3, -np.inf, -np.inf]] * 2, np.float32)
  x = np.tile(x, 2)
  np.testing.assert_array_equal(next(iter(onnx.run(path, {"x": x}).values())), np.max(x, 0))


@pytest.mark.one_python
@pytest.mark.filterwarnings("ignore:ONNX Runtime computes different outputs than JAX for NaN")
@pytest.mark.parametrize("shape", ["b,9", "3,9", "9,b", "b,4,2"])
def test_cumulative_extremes_are_pools(tmp_path: Path, shape: str) -> None:
  axis = next(i for i, size in enumerate(shape.split(",")) if size in "49")

  def fun(x: jax.Array) -> list[jax.Array]:
    both = lax.cummax, lax.cummin
    return [of(x, axis, reverse=reverse) for of in both for reverse in (False, True)]

  path = tmp_path / "m.onnx"
  onnx.save(lambda _, x: fun(x), {}, path, inputs={"x": f"f32[{shape}]"}, samples=1)
  sizes = [3 if size == "b" else int(size) for size in shape.split(",")]
  rng = np.random.default_rng(0)
  hostile = np.float32([np.nan, np.inf, -np.inf, 0, 1, -2.5, 3e38])
  for x in (rng.standard_normal(sizes).astype("f"), rng.choice(hostile, sizes)):
    for y, expected in zip(onnx.run(path, {"x": x}).values(), jax.jit(fun)(x), strict=True):
      np.testing.assert_array_equal(y, expected)
  kinds = [node.op_type for node in protos.nodes(onnx_package.load(path).graph)]
  assert kinds.count("MaxPool") == 8 and "Slice" not in kinds


@pytest.mark.one_python
def test_a_cumulative_extreme_of_constants(tmp_path: Path) -> None:
  made = onnx.save(
    lambda _, x: x + lax.cummax(jnp.sin(jnp.arange(9.0))),
    {},
    tmp_path / "m.onnx",
    inputs={"x": "f32[9]"},
    samples=1,
  )
  assert made.report.ok
