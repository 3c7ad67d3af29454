"""The nodes of ONNX files of one operation: as few as it needs, with JAX's values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import pytest
from jax import lax
from onnx.numpy_helper import to_array
from tf2onnx import tfonnx

from jax2tf.converters import onnx
from jax2tf.converters.onnx import passes
from tests.support import onnx_files

CLAMPED = "Less Add Where Min Max"  # the start of a slice
HOSTILE = np.array(
  [
    [1, np.nan, 3],
    [np.inf, -np.inf, 0],
    [-np.inf, -np.inf, -np.inf],
    [6e4, 6e4, 2],  # whose sum overflows in float16
    [np.nan, np.inf, -np.inf],
  ],
  np.float32,
)


def saved(tmp_path: Path, fun: Callable[..., Any], inputs: Mapping[str, str]) -> Path:
  """The file, which the exporter has compared with JAX."""
  return onnx.save(
    lambda _, *xs: fun(*xs), {}, tmp_path / "m.onnx", inputs=inputs, outputs=["out"], samples=1
  ).path


@pytest.mark.parametrize(
  ("fun", "inputs", "nodes"),
  [
    pytest.param(lambda x: jnp.flip(x, 0), {"x": "f32[b,3]"}, "Slice", id="reverse"),
    pytest.param(lambda x: jnp.flip(x, (0, 2)), {"x": "i8[b,3,2]"}, "Slice", id="reverse-two-axes"),
    pytest.param(lambda x: x[::-1], {"x": "bool[5]"}, "Slice", id="reverse-a-vector"),
    pytest.param(lambda x, y: x ^ y, {"x": "bool[b]", "y": "bool[b]"}, "Xor", id="xor"),
    pytest.param(lambda x, y: x != y, {"x": "i32[b]", "y": "i32[b]"}, "Equal Not", id="unequal"),
    pytest.param(jnp.isnan, {"x": "f16[b]"}, "IsNaN", id="nan"),
    pytest.param(
      lambda x: jnp.max(x, 1), {"x": "f32[b,3]"}, "ReduceMax ReduceSum IsNaN If", id="max"
    ),
    pytest.param(jnp.tril, {"x": "f32[b,4,5]"}, "Trilu", id="lower-triangle"),
    pytest.param(lambda x: jnp.triu(x, -2), {"x": "f32[5,4]"}, "Trilu", id="upper-triangle"),
    pytest.param(
      lambda x: jnp.where(jnp.eye(4, 5, dtype=bool) ^ (x == x[:1]), x, 0),
      {"x": "f32[4,5]"},
      "Slice Equal Xor Where",
      id="no-triangle",
    ),
    pytest.param(
      lambda x: x.reshape(-1, 3, 2, 4).sum(2),
      {"x": "f32[b,24]"},
      "Reshape Split Add Squeeze",
      id="sum-of-short-rows",
    ),
    pytest.param(
      lambda x: x.reshape(x.shape[0], 3, 4, 7, 6).mean(3),
      {"x": "f32[b,3,28,6]"},
      "AveragePool",
      id="mean-of-rows",
    ),
    pytest.param(
      lambda x: x.reshape(x.shape[0], 3, 4, 2, 3).mean(4),
      {"x": "f32[b,3,4,6]"},
      "AveragePool",
      id="mean-of-columns",
    ),
    pytest.param(
      lambda x: x.reshape(x.shape[0], 3, 4, 2, 6).sum(3) / 3,
      {"x": "f32[b,3,8,6]"},
      "Reshape Split Add Squeeze Div",
      id="no-mean",
    ),
    pytest.param(
      lambda x: x.reshape(x.shape[0], 3, 2, 4, 6).mean(2),
      {"x": "f32[b,3,8,6]"},
      "Reshape ReduceSum Div",
      id="mean-of-distant-rows",
    ),
    pytest.param(
      lambda x: x.reshape(8, 9, 4).sum(1), {"x": "f32[288]"}, "Reshape ReduceSum", id="sum-of-rows"
    ),
    pytest.param(
      lambda x, k: lax.dynamic_slice_in_dim(x, k, 2, 1),
      {"x": "f32[b,5]", "k": "i32[]"},
      f"{CLAMPED} Unsqueeze Cast Add Slice",
      id="slice-one-axis",
    ),
    pytest.param(
      lambda x, k: lax.dynamic_slice(x, (k, 0), (2, 5)),
      {"x": "f32[4,5]", "k": "i32[]"},
      f"{CLAMPED} Unsqueeze Cast Add Slice",
      id="slice-one-static-axis",
    ),
    pytest.param(
      lambda x, k: lax.dynamic_slice(x, (k, 1), (2, 3)),
      {"x": "f32[4,5]", "k": "i32[]"},
      f"{CLAMPED} Unsqueeze Concat Cast Add Slice",
      id="slice-two-axes",
    ),
    pytest.param(lambda x: jnp.diff(x, axis=1), {"x": "f32[b,5]"}, "Slice Slice Sub", id="diff"),
    pytest.param(lambda x: jnp.where(x > 1, 1.0, 0), {"x": "f32[b]"}, "Greater Cast", id="mask"),
    pytest.param(jax.nn.hard_tanh, {"x": "f32[b]"}, "Max Min", id="clamp"),
    pytest.param(  # the sign of a zero would change
      lambda x: jnp.where(x > 0, 0, x), {"x": "f32[b]"}, "Greater Where", id="select-of-a-zero"
    ),
    pytest.param(  # of 4 and 3 it is 4
      lambda x: jnp.where(x > 2, 2, jnp.maximum(x, 4)),
      {"x": "f32[b]"},
      "Greater Max Where",
      id="no-clamp",
    ),
  ],
)
def test_the_nodes_of(
  tmp_path: Path, fun: Callable[..., Any], inputs: Mapping[str, str], nodes: str
) -> None:
  assert sorted(onnx_files.nodes(saved(tmp_path, fun, inputs))) == sorted(nodes.split())


def test_the_rewriters_that_are_left_out_are_those_of_tf2onnx() -> None:
  assert all(callable(getattr(tfonnx, name, None)) for name in passes._REWRITERS)


def test_a_row_of_few_channels_is_repeated(tmp_path: Path) -> None:
  """ONNX Runtime works through the rows of the smaller operand one by one."""
  row = np.arange(8, dtype=np.float32)
  path = saved(tmp_path, lambda x: x - row, {"x": "f32[b,16,8]"})
  (constant,) = onnx_library.load_model(str(path)).graph.initializer
  np.testing.assert_array_equal(to_array(constant), np.broadcast_to(row, (16, 8)))


def test_a_mean_of_neighbours_is_that_of_hostile_values(tmp_path: Path) -> None:
  values = np.array([0.0, -0.0, 1, -2, 3e38, 2e38, 1e-45, np.nan, np.inf, -np.inf], np.float32)
  x = np.random.default_rng(0).choice(values, (5, 2, 14, 4))
  mean = jax.jit(lambda x: x.reshape(x.shape[0], 2, 2, 7, 4).mean(3))
  path = saved(tmp_path, mean, {"x": "f32[b,2,14,4]"})
  np.testing.assert_allclose(onnx.run(path, {"x": x})["out"], mean(x), 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_an_extreme_is_nan_where_an_operand_is(
  tmp_path: Path, axis: Any, reduce: Callable[..., Any], dtype: Any
) -> None:
  x = HOSTILE.astype(dtype)
  path = saved(tmp_path, lambda x: reduce(x, axis), {"x": f"f{8 * x.itemsize}[b,3]"})
  expected = jax.jit(lambda x: reduce(x, axis))(x)
  np.testing.assert_array_equal(onnx.run(path, {"x": x})["out"], expected)


@pytest.mark.one_python
@pytest.mark.parametrize("part", [jnp.tril, jnp.triu])
def test_a_triangle_keeps_what_is_in_it(tmp_path: Path, part: Callable[..., Any]) -> None:
  def parts(x: Any) -> dict[str, Any]:
    return {f"part{i}": part(x, k) for i, k in enumerate((-9, -2, 0, 1, 9))}

  numbers = np.array([-0.0, np.nan, np.inf, -np.inf, 1], np.float32)
  x = np.stack([np.roll(numbers, i) for i in range(4)])[None]
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NaN
    file = onnx.save(lambda _, x: parts(x), {}, tmp_path / "m.onnx", inputs={"x": "f32[b,4,5]"})
  assert set(onnx_files.nodes(file.path)) <= {"Trilu", "Identity"}
  session = onnx_files.opened(file.path)
  names = [output.name for output in session.get_outputs()]
  for name, actual in zip(names, session.run(names, {"x": x}), strict=True):
    expected = np.asarray(parts(x)[name])
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


@pytest.mark.one_python
def test_branches_that_return_an_operand_twice_and_arrays_without_elements(tmp_path: Path) -> None:
  def fun(flag: jax.Array, x: jax.Array, none: jax.Array) -> Any:
    y = x + 1
    same = jax.lax.cond(flag, lambda a, b: (a, b), lambda a, b: (b, a), y, y)
    swapped = jax.lax.cond(flag, lambda a, b: (a, b), lambda a, b: (b, a), x, y)
    return same, swapped, jnp.sum(jnp.lcm(none, none)) + x[0]

  inputs = {"flag": "bool[]", "x": "f32[3]", "none": "u32[0]"}
  path = tmp_path / "model.onnx"
  assert onnx.save(lambda _, *xs: fun(*xs), None, path, inputs=inputs).report.ok
