"""Softmax along any axis, PRelu, Softsign, copies of a last axis and slices by constant indices as
nodes of ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx as onnx_package
import pytest
from jax import numpy as jnp

from jax2tf.converters import onnx
from jax2tf.converters.onnx import protos

SLOPES = np.linspace(-0.5, 1, 8, dtype=np.float32)


def by_hand(x: jax.Array, of_maximum: int, of_sum: int) -> jax.Array:
  exponents = jnp.exp(x - jnp.max(x, of_maximum, keepdims=True))
  return exponents / jnp.sum(exponents, of_sum, keepdims=True)


FUNCTIONS: dict[str, tuple[Any, set[str], set[str]]] = {
  # the function, nodes that its file has, and nodes that it has not
  "softmax_first": (lambda x: jax.nn.softmax(x, 0), {"Softmax"}, {"Exp"}),
  "softmax_middle": (lambda x: jax.nn.softmax(x, 1), {"Softmax"}, {"Exp"}),
  "softmax_inside": (lambda x: jax.nn.softmax(x, where=x > 0), {"Softmax"}, {"Exp"}),
  "softmax_by_hand": (lambda x: by_hand(x, 1, 1), {"Softmax"}, {"Exp"}),
  "other_maximum": (lambda x: by_hand(x, 2, 1), {"Exp"}, {"Softmax"}),
  "prelu": (lambda x: jnp.where(x >= 0, x, 0.3 * x), {"LeakyRelu"}, {"Where"}),
  "prelu_of_channels": (lambda x: jnp.where(x >= 0, x, SLOPES * x), {"PRelu"}, {"Where"}),
  "no_prelu": (lambda x: jnp.where(x >= 1, x, SLOPES * x), {"Where"}, {"PRelu"}),
  "soft_sign": (jax.nn.soft_sign, {"Softsign"}, {"Div"}),
  "copies": (lambda x: jnp.repeat(x, 3, 2), {"Concat"}, {"Tile"}),
  "rows": (lambda x: x[..., 2:7], {"Slice"}, {"Gather"}),
  "middle_rows": (lambda x: x[:, :3], {"Slice"}, {"Gather"}),
}


@pytest.mark.filterwarnings("ignore:ONNX Runtime computes different outputs than JAX for NaN")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_have_jax_values(tmp_path: Path, name: str) -> None:
  fun, present, absent = FUNCTIONS[name]
  path = tmp_path / "m.onnx"
  onnx.save(lambda _, x: fun(x), {}, path, inputs={"x": "f32[b,4,8]"}, samples=1)
  kinds = {node.op_type for node in protos.nodes(onnx_package.load(path).graph)}
  assert present <= kinds and not absent & kinds, kinds
  x = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)
  x[0, 1, :5] = -np.inf, np.inf, np.nan, -0.0, 0.0
  (result,) = onnx.run(path, {"x": x}).values()
  np.testing.assert_allclose(result, fun(x), 1e-6)


@pytest.mark.parametrize("fun", [jnp.sinh, jnp.cosh])
def test_hyperbolic_functions(tmp_path: Path, fun: Any) -> None:
  path = tmp_path / "m.onnx"
  onnx.save(lambda _, x: fun(x), {}, path, inputs={"x": "f32[b]"}, samples=1)
  near, far = np.linspace(-1.1, 1.1, 999), np.linspace(-10, 10, 999)
  tiny = np.array([1e-30, -1e-30, 1e-6, -1e-6, 0.0, -0.0])
  largest = np.array([88.9, -89.3, 89.41, 90, -90, np.inf, -np.inf, np.nan])  # 89.41 is the last
  x = np.concatenate([near, far, tiny, largest]).astype(np.float32)
  (result,) = onnx.run(path, {"x": x}).values()
  expected = getattr(np, fun.__name__)(x.astype(np.float64))
  np.testing.assert_allclose(result[: -largest.size], expected[: -largest.size], 1.2e-6)
  np.testing.assert_allclose(result, jax.jit(fun)(x), 1e-6)
  np.testing.assert_array_equal(np.signbit(result[x == 0]), np.signbit(expected[x == 0]))
