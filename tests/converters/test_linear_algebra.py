"""Linear algebra in the runtimes of ONNX, LiteRT and TF.js, of expansions: their own have no such
ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import linalg, special

import jax2tf
from jax2tf.converters import onnx, saved_model, tflite
from tests.support import onnx_files

RNG = np.random.default_rng(0)


@pytest.fixture(params=["onnx", "tflite", "tfjs"])
def exporter(request: pytest.FixtureRequest) -> Any:
  if request.param == "tfjs":
    request.getfixturevalue("tfjs_packages")
  return importlib.import_module(f"jax2tf.converters.{request.param}")


def systems(_: Any, x: jax.Array) -> dict[str, jax.Array]:
  """x f32[b,n,n] -> solutions; of a positive definite matrix where they need one."""
  n = x.shape[-1]
  positive = x @ x.mT / n + jnp.eye(n)
  factor = jnp.linalg.cholesky(positive)
  sign, logarithm = jnp.linalg.slogdet(x)
  return {
    "cholesky": factor,
    "upper_cholesky": linalg.cholesky(positive),
    "cho_solve": linalg.cho_solve((factor, True), x),
    "solve_triangular": linalg.solve_triangular(factor, x, lower=True, trans=1),
    "solve": jnp.linalg.solve(x + 2 * jnp.eye(n), x[..., :2]),
    "inv": jnp.linalg.inv(x + 2 * jnp.eye(n)),
    "det": jnp.linalg.det(x / 4),
    "sign": sign,
    "logarithm": logarithm,
  }


@pytest.mark.parametrize("n", [5, 20])  # without a loop, and with one
def test_linear_systems(n: int, exporter: Any, tmp_path: Path) -> None:
  x = RNG.standard_normal((2, n, n)).astype("f") / np.float32(n**0.5)
  batch = "b" if exporter is onnx else "2"
  made = exporter.save(
    systems, {}, tmp_path / "m", inputs={"x": f"f32[{batch},{n},{n}]"}, examples={"x": x}
  )
  assert made.report.ok
  results, expected = exporter.run(made.path, {"x": x}), jax.jit(systems)({}, x)
  for name, y in expected.items():
    # inverses of matrices with a condition number of up to 100
    np.testing.assert_allclose(results[name], y, rtol=1e-4, atol=1e-5, err_msg=name)


def hostile_systems() -> np.ndarray:
  """f32[b,5,5]: pivots of equal size, singular, huge; the last two are not finite."""
  ties = np.sign(RNG.standard_normal((5, 5)))
  of_zero_column = RNG.integers(-2, 3, (5, 5)) * [1, 1, 0, 1, 1]
  named = [np.eye(5), np.eye(5)[::-1], np.zeros((5, 5)), np.ones((5, 5)), np.full((5, 5), 1e30)]
  of_nan, of_inf = RNG.standard_normal((2, 5, 5))
  of_nan[2, 1], of_inf[1, 2] = np.nan, np.inf
  return np.stack([*named, ties, of_zero_column, of_nan, of_inf]).astype("f")


# LAPACK's pivots after a NaN depend on how it orders its comparisons.
@pytest.mark.filterwarnings("ignore:.* different outputs than JAX for NaN")
def test_factors_of_hostile_systems(exporter: Any, tmp_path: Path) -> None:
  """JAX's pivots, without a loop, and the values of TensorFlow graphs where JAX has NaN."""

  def fun(_: Any, x: jax.Array) -> list[jax.Array]:
    wide, high = x[:, :3], x[..., :3]
    return [y for a in (x, wide, high) for y in jax.lax.linalg.lu(a)]

  x = hostile_systems()
  path = exporter.save(fun, {}, tmp_path / "m", inputs={"x": "f32[9,5,5]"}).path
  results = [*exporter.run(path, {"x": x}).values()]
  for y, by_graph in zip(results, jax2tf.convert(fun)({}, x), strict=True):
    np.testing.assert_allclose(y, by_graph, 1e-5, 1e-6, equal_nan=True)
  by_jax = jax.jit(fun)({}, x[:-2])
  for i in range(0, 9, 3):
    np.testing.assert_allclose(results[i][:-2], by_jax[i], 1e-5, 1e-6)
    np.testing.assert_array_equal(results[i + 1][:-2], by_jax[i + 1])
    np.testing.assert_array_equal(results[i + 2][:-2], by_jax[i + 2])
  if exporter is onnx:
    assert "Loop" not in set(onnx_files.nodes(path))


def decompositions(_: Any, x: jax.Array) -> dict[str, jax.Array]:
  """x f32[b,m,n] -> what does not depend on the signs of vectors."""
  symmetric = x @ x.mT
  values, vectors = jnp.linalg.eigh(symmetric)
  u, singular, v = jnp.linalg.svd(x, full_matrices=False)
  return {
    "eigh": values,
    "eigenvectors": (vectors * values[..., None, :]) @ vectors.mT,
    "eigvalsh": jnp.linalg.eigvalsh(symmetric),
    "svd": singular,
    "singular_vectors": (u * singular[..., None, :]) @ v,
    "svdvals": jnp.linalg.svdvals(x),
    "pinv": jnp.linalg.pinv(x),
    "matrix_rank": jnp.linalg.matrix_rank(x),
    "cond": jnp.linalg.cond(x),
    "norm": jnp.linalg.norm(x, ord=2, axis=(-2, -1)),
    "nuclear_norm": jnp.linalg.norm(x, ord="nuc", axis=(-2, -1)),
  }


@pytest.mark.parametrize("shape", [(4, 3), (10, 12)], ids=str)
def test_decompositions(shape: tuple[int, int], exporter: Any, tmp_path: Path) -> None:
  x = RNG.standard_normal((2, *shape)).astype("f")
  batch = "b" if exporter is onnx else "2"
  inputs = {"x": f"f32[{batch},{shape[0]},{shape[1]}]"}
  made = exporter.save(decompositions, {}, tmp_path / "m", inputs=inputs, examples={"x": x})
  assert made.report.ok
  results, expected = exporter.run(made.path, {"x": x}), jax.jit(decompositions)({}, x)
  for name, y in expected.items():
    # condition numbers of up to 100
    np.testing.assert_allclose(results[name], y, rtol=2e-4, atol=2e-5, err_msg=name)


def test_qr_least_squares_and_exponentials(tmp_path: Path) -> None:
  """With LAPACK's signs."""

  def fun(_: Any, x: jax.Array, b: jax.Array) -> list[jax.Array]:
    solution, _, rank, singular = jnp.linalg.lstsq(x, b)
    complete = jnp.linalg.qr(x, mode="complete")
    exponential = linalg.expm(x.T @ x / 8)
    return [*jnp.linalg.qr(x), *complete, solution, rank, singular, exponential]

  data = {"x": RNG.standard_normal((9, 4)).astype("f"), "b": np.ones(9, "f")}
  inputs, by_jax = {"x": "f32[9,4]", "b": "f32[9]"}, jax.jit(fun)({}, **data)
  for exporter in (onnx, tflite):
    made = exporter.save(fun, {}, tmp_path / exporter.__name__, inputs=inputs, examples=data)
    for y, expected in zip(exporter.run(made.path, data).values(), by_jax, strict=True):
      np.testing.assert_allclose(y, expected, rtol=1e-5, atol=2e-6)


def test_double_precision(tmp_path: Path) -> None:
  """In ONNX; the other formats have none."""

  def fun(_: Any, x: jax.Array) -> list[jax.Array]:
    n = x.shape[-1]
    symmetric = x @ x.mT
    return [
      jnp.linalg.eigvalsh(symmetric),
      jnp.linalg.svdvals(x),
      *jnp.linalg.qr(x),
      jnp.linalg.cholesky(symmetric + jnp.eye(n)),
      jnp.linalg.solve(x + 4 * jnp.eye(n), x),
      special.i0e(10 * x),
      special.i1e(10 * x),
    ]

  x = RNG.standard_normal((9, 9))
  with jax.enable_x64(True):
    path = tmp_path / "m.onnx"
    made = onnx.save(fun, {}, path, inputs={"x": "f64[9,9]"}, examples={"x": x}, samples=1)
    expected = jax.jit(fun)({}, jnp.asarray(x))
  for y, exact in zip(onnx.run(made.path, {"x": x}).values(), expected, strict=True):
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, exact, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("hostile", [np.nan, np.inf])
def test_decompositions_of_what_is_not_finite_are_nan(hostile: float, tmp_path: Path) -> None:
  x = np.stack([np.eye(3, dtype="f"), np.full([3, 3], hostile, "f")])

  def fun(_: Any, x: jax.Array) -> list[jax.Array]:
    return [jnp.linalg.eigvalsh(x), jnp.linalg.svdvals(x)]

  for exporter in (onnx, tflite):
    made = exporter.save(fun, {}, tmp_path / exporter.__name__, inputs={"x": "f32[2,3,3]"})
    for y, expected in zip(exporter.run(made.path, {"x": x}).values(), fun({}, x), strict=True):
      np.testing.assert_array_equal(y, expected)


def tridiagonal(_: Any, lower: Any, main: Any, upper: Any, b: Any) -> jax.Array:
  return jax.lax.linalg.tridiagonal_solve(lower, main, upper, b)


def gaussian_process(_: Any, x: jax.Array) -> jax.Array:
  """The gradient of a likelihood by the length of its kernel."""

  def likelihood(length: jax.Array) -> jax.Array:
    distances = (x[:, None] - x) ** 2
    factor = jnp.linalg.cholesky(jnp.exp(-distances / length) + 0.1 * jnp.eye(6))
    half = linalg.solve_triangular(factor, jnp.sin(x), lower=True)
    return jnp.sum(half**2) / 2 + jnp.sum(jnp.log(jnp.diagonal(factor)))

  return jax.grad(likelihood)(jnp.float32(2))


@pytest.mark.parametrize(
  ("function", "operands"),
  [
    (tridiagonal, {"lower": (2, 9), "main": (2, 9), "upper": (2, 9), "b": (2, 9, 1)}),
    (gaussian_process, {"x": (6,)}),
  ],
  ids=["tridiagonal", "gradient"],
)
def test_by_way_of_a_saved_model(
  function: Callable[..., Any], operands: dict[str, tuple[int, ...]], exporter: Any, tmp_path: Path
) -> None:
  data = {name: RNG.standard_normal(shape).astype("f") for name, shape in operands.items()}
  inputs = {name: f"f32{list(shape)}" for name, shape in operands.items()}
  path = saved_model.save(function, {}, tmp_path / "saved", inputs=inputs, outputs=["y"])
  made = exporter.save_model(path, tmp_path / "m", examples=data)
  assert made.report.ok
  expected = function({}, **data)
  np.testing.assert_allclose(exporter.run(made.path, data)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [4, 18])
def test_what_is_not_positive_definite_is_nan_as_in_jax(
  n: int, exporter: Any, tmp_path: Path
) -> None:
  x = np.stack([np.eye(n, dtype="f"), np.eye(n, dtype="f")])
  x[1, -1, -1] = -1
  made = exporter.save(
    lambda _, x: jnp.linalg.cholesky(x), {}, tmp_path / "m", inputs={"x": f"f32[2,{n},{n}]"}
  )
  [factor] = exporter.run(made.path, {"x": x}).values()
  np.testing.assert_array_equal(factor, jnp.linalg.cholesky(x))
