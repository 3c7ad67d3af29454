"""top_k and sort of floats in ONNX Runtime: the order is JAX's, and ordinary floats are sorted as
they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives as P

from jax2tf.converters import onnx
from tests.support.onnx_files import nodes, opened

N = 12
RNG = np.random.default_rng(0)
# Both NaNs, infinities, zeros, subnormals, and ties. The sign of a NaN is lost before opset 26.
HARD = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 3, 3, -1, 0.5], "f")


def top_k(x: jax.Array) -> Any:
  return jax.lax.top_k(x, 5), jax.lax.top_k(x, N)


def sort(x: jax.Array) -> Any:
  return jnp.sort(x), jnp.argsort(x), jax.lax.sort((x, 2 * x), num_keys=1)


# JAX on a CPU sorts subnormals as zeros, in the order in which they are; top_k does not.
HOSTILE = {top_k: HARD, sort: HARD[[0, 2, 3, 4, 5, 8, 9, 10, 11]]}


def batches(hard: np.ndarray, dtype: str) -> list[np.ndarray]:
  """f[b,12]: many rows at once, single rows, and none."""
  ordinary = RNG.standard_normal((8, N))
  rows = [
    *RNG.choice(hard, (24, N)),
    *RNG.choice(HARD[4:6], (4, N)),  # zeros of both signs
    *RNG.choice(HARD[2:4], (2, N)),  # infinities of both signs, whose sum is NaN
    np.where(ordinary[0] > 0, ordinary[0], -np.inf),  # a mask
    np.maximum(ordinary[1], 0),
    -np.abs(ordinary[2]),
  ]
  single = [np.asarray(row, dtype)[None] for row in rows]
  return [np.concatenate(single), ordinary.astype(dtype), np.zeros([0, N], dtype), *single]


def without_signs_of_nan(x: np.ndarray) -> np.ndarray:
  return np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x)


def bits(x: np.ndarray) -> np.ndarray:
  """The words of floats; other values unchanged. Those of all NaN are one."""
  if x.dtype.kind != "f":
    return x
  return np.where(np.isnan(x), -1, x.view(f"i{x.dtype.itemsize}"))


def saved(path: Path, fun: Callable[..., Any], spec: str, opset: int = 18) -> Any:
  onnx.save(lambda _, x: fun(x), None, path, inputs={"x": spec}, samples=1, opset=opset)
  return opened(path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("fun", HOSTILE)
@pytest.mark.parametrize("opset", [18, 26])
def test_the_order_is_that_of_jax(
  tmp_path: Path, opset: int, fun: Callable[..., Any], dtype: str
) -> None:
  with jax.enable_x64(True):
    session = saved(tmp_path / "m.onnx", fun, f"{dtype}[b,{N}]", opset)
    hostile = batches(HOSTILE[fun], dtype)
    for x in hostile if opset == 26 else map(without_signs_of_nan, hostile):
      expected = jax.tree.leaves(jax.jit(fun)(x))
      for found, y in zip(session.run(None, {"x": x}), expected, strict=True):
        np.testing.assert_array_equal(bits(found), bits(np.asarray(y)))


@pytest.mark.parametrize("opset", [18, 26])
def test_searches_compare_as_jax(tmp_path: Path, opset: int) -> None:
  """By the total order, where -0.0 comes before 0.0."""

  def fun(x: jax.Array) -> Any:
    left = jnp.broadcast_to(x[:, None], (x.size, x.size))
    searched = [jnp.searchsorted(jnp.sort(x), x, side=side) for side in ("left", "right")]
    return *searched, P.lt_to_p.bind(left, left.T), P.le_to_p.bind(left, left.T)

  session = saved(tmp_path / "m.onnx", fun, f"f32[{N}]", opset)
  hard = HARD if opset == 26 else without_signs_of_nan(HARD)
  for x in (RNG.standard_normal(N).astype("f"), hard[[0, 2, 3, 4, 5, 8, 9, 10, 11, 8, 4, 5]]):
    for found, y in zip(session.run(None, {"x": x}), jax.jit(fun)(x), strict=True):
      np.testing.assert_array_equal(found, y)
  assert not {"Log", "BitShift"} & {*nodes(tmp_path / "m.onnx")}  # by which bits are computed


def test_the_axis_and_the_rank_are_any(tmp_path: Path) -> None:
  def fun(x: jax.Array) -> Any:
    return jnp.sort(x, 0), jnp.argsort(x, 1), jax.lax.top_k(x, 2), jax.lax.top_k(x[0, 0], 3)

  session = saved(tmp_path / "m.onnx", fun, "f32[4,3,4]")
  for x in (RNG.standard_normal((4, 3, 4)).astype("f"), RNG.choice(HOSTILE[sort], (4, 3, 4))):
    expected = jax.tree.leaves(jax.jit(fun)(x))
    for found, y in zip(session.run(None, {"x": x}), expected, strict=True):
      np.testing.assert_array_equal(bits(found), bits(np.asarray(y)))


def test_in_a_loop_and_a_branch(tmp_path: Path) -> None:
  def fun(x: jax.Array) -> Any:
    def step(rest: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
      values, indices = jax.lax.top_k(rest, 2)
      return rest.at[indices[0]].set(-jnp.inf), values

    return jax.lax.cond(
      x[0, 0] > 0, lambda: jax.lax.scan(step, x[0], None, 3)[1], lambda: jnp.sort(x[:3])[:, :2]
    )

  session = saved(tmp_path / "m.onnx", fun, f"f32[4,{N}]")
  ordinary = np.abs(RNG.standard_normal((4, N))).astype("f")
  for x in (ordinary, -ordinary, RNG.choice(HOSTILE[sort], (4, N))):
    (found,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(bits(found), bits(np.asarray(jax.jit(fun)(x))))


@pytest.mark.parametrize(
  ("fun", "dtype", "outside"),
  [
    pytest.param(lambda x: jax.lax.top_k(x, 5), "f32", 11, id="top_k"),
    pytest.param(lambda x: jax.lax.top_k(x, 5), "f16", 13, id="top_k-f16"),
    pytest.param(jnp.argsort, "f32", 7, id="argsort"),
  ],
)
def test_the_bits_of_the_floats_are_inside_of_a_branch(
  tmp_path: Path, fun: Callable[..., Any], dtype: str, outside: int
) -> None:
  saved(tmp_path / "m.onnx", fun, f"{dtype}[32,{N}]")
  ops = nodes(tmp_path / "m.onnx")
  assert ops.count("TopK") == ops.count("If") == 1 and "Where" not in ops
  assert len(ops) <= outside, ops


def test_elements_along_the_last_axis_are_one_op(tmp_path: Path) -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, np.array([[2, 0], [1, 1]]), axis=-1, mode="clip")

  saved(tmp_path / "m.onnx", fun, "f32[2,3]")
  ops = nodes(tmp_path / "m.onnx")
  assert "GatherElements" in ops and "GatherND" not in ops


def test_older_runtimes_answer_for_nan(tmp_path: Path) -> None:
  """ONNX Runtime before 1.32 orders floats arbitrarily beside a NaN. Nothing reads that order."""
  path = tmp_path / "m.onnx"
  made = onnx.save(lambda _, x: sort(x), None, path, inputs={"x": f"f32[b,{N}]"}, samples=1)
  assert int(made.oldest_runtime_for_nan.removeprefix("1.")) < 31
