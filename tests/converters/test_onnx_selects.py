"""Functions that have no Select of large tensors in ONNX Runtime, which branches on each element,
and the values that they keep without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters import onnx
from tests.support.onnx_files import nodes, opened

RNG = np.random.default_rng(0)
HOSTILE = np.float32(
  [
    np.nan,
    np.inf,
    -np.inf,
    0,
    -0.0,
    1,
    -1,
    1e-45,
    -1e-45,
    3e38,
    -3e38,
    1e-38,
    0.3,
    -2.5,
    -0.9999999,
  ]
)


def answers(path: Path, fun: Callable[..., Any], *inputs: np.ndarray) -> list[np.ndarray]:
  specs = {
    f"x{i}": f"{x.dtype}[{','.join(['b', *map(str, x.shape[1:])])}]" for i, x in enumerate(inputs)
  }
  onnx.save(lambda _, *xs: fun(*xs), None, path, inputs=specs, samples=1)
  return list(opened(path).run(None, dict(zip(specs, inputs, strict=True))))


def ulps(found: np.ndarray, true: np.ndarray) -> np.ndarray:
  """The differences in units of the last place, of float64 from float32; 0 for equal NaN and
  infinities."""
  least = np.finfo(np.float32).tiny
  with np.errstate(invalid="ignore", over="ignore"):
    narrow = true.astype(np.float32)
    same = (found == narrow) | (np.isnan(found) & np.isnan(narrow))
    error = np.abs(found - true) / np.spacing(np.maximum(np.abs(narrow), least))
  return np.where(same & ~np.isfinite(narrow), 0, error)


@pytest.mark.parametrize("name", ["log1p", "expm1"])
def test_sums_with_one_are_rounded_once(tmp_path: Path, name: str) -> None:
  words = np.arange(0, 2**32, 40009, dtype=np.uint64).astype(np.uint32)
  x = np.concatenate([words.view(np.float32), HOSTILE])
  (found,) = answers(tmp_path / "m.onnx", getattr(jnp, name), x)
  with np.errstate(all="ignore"):
    true = getattr(np, name)(x.astype(np.float64))
  # half a unit, and what float64 loses
  assert ulps(found, true).max() < 0.5001
  zeros = true == 0
  np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(true[zeros]))
  assert nodes(tmp_path / "m.onnx").count("Where") == 1  # of zeros


def test_arctangents_have_the_signs_of_zeros(tmp_path: Path) -> None:
  y, x = (z.ravel() for z in np.meshgrid([*HOSTILE, *RNG.standard_normal(99)], HOSTILE))
  y, x = y.astype("f"), x.astype("f")
  (found,) = answers(tmp_path / "m.onnx", jnp.arctan2, y, x)
  true = np.arctan2(y.astype(np.float64), x.astype(np.float64))
  # ONNX Runtime's Atan and three roundings
  assert ulps(found, true).max() < 4
  ordinary = ~np.isnan(true)
  np.testing.assert_array_equal(np.signbit(found[ordinary]), np.signbit(true[ordinary]))


def test_extremes_have_nan_and_the_signs_of_zeros(tmp_path: Path) -> None:
  x = np.stack([z.ravel() for z in np.meshgrid(HOSTILE, HOSTILE)], -1)
  found = answers(tmp_path / "m.onnx", lambda x: (jnp.max(x, -1), jnp.min(x, -1)), x)
  for y, limit in zip(found, (np.maximum, np.minimum), strict=True):
    expected = limit(*x.T)
    np.testing.assert_array_equal(y, expected)
    equal = x[:, 0].view("i4") == x[:, 1].view("i4")
    np.testing.assert_array_equal(np.signbit(y[equal]), np.signbit(expected[equal]))


def test_silu_has_no_product(tmp_path: Path) -> None:
  x = np.concatenate([HOSTILE, RNG.standard_normal(99).astype("f"), np.float32([-90, -104, 90])])
  (found,) = answers(tmp_path / "m.onnx", jax.nn.silu, x)
  assert sorted(nodes(tmp_path / "m.onnx")) == ["Add", "Div", "Exp", "Neg"]
  # an Exp, and two roundings
  np.testing.assert_allclose(found, jax.jit(jax.nn.silu)(x), rtol=1e-6, atol=1e-37)


def test_uniform_numbers_are_made_of_bits_by_a_product(tmp_path: Path) -> None:
  def fun(words: jax.Array) -> Any:
    key = jax.random.wrap_key_data(words[0])
    return jax.random.uniform(key, (999,)), jax.random.normal(key, (999,))

  words = np.array([[3, 2**32 - 1]], np.uint32)
  uniform, normal = answers(tmp_path / "m.onnx", fun, words)
  np.testing.assert_array_equal(uniform, fun(words)[0])
  # erf_inv of float32
  np.testing.assert_allclose(normal, fun(words)[1], rtol=1e-5, atol=1e-6)
  assert "Gather" not in nodes(tmp_path / "m.onnx")


@pytest.mark.one_python
def test_the_bits_of_one_may_be_an_array(tmp_path: Path) -> None:
  """As in the StableHLO of `jax.random.uniform`, which has its numbers in full."""

  def fun(words: jax.Array) -> Any:
    bits = (words[0] >> np.uint32(9)) | np.full(5, 0x3F800000, np.uint32)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

  words = np.array([[0, 1, 2**31, 2**32 - 1, 123456789]], np.uint32)
  (found,) = answers(tmp_path / "m.onnx", fun, words)
  np.testing.assert_array_equal(found, fun(words))


@pytest.mark.one_python
def test_unsigned_integers_are_selected_by_differences(tmp_path: Path) -> None:
  """They wrap. JAX's searches and random bits select uint32."""

  def fun(x: jax.Array, y: jax.Array) -> Any:
    is_less = (x & 1) < (y & 1)
    return [jnp.where(c, a, b) for c in (is_less, is_less[:, :1]) for a, b in ((x, y), (x, 0))]

  x, y = RNG.choice(np.uint32([0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1]), (2, 9, 40))
  for found, expected in zip(answers(tmp_path / "m.onnx", fun, x, y), fun(x, y), strict=True):
    np.testing.assert_array_equal(found, expected)
  assert not {"Where", "Loop"} & {*nodes(tmp_path / "m.onnx")}


@pytest.mark.one_python
def test_flags_are_counted_and_known_conditions_chosen(tmp_path: Path) -> None:
  """In float32, which has all of these counts; the divisor of a remainder is known."""

  def fun(x: jax.Array) -> Any:
    return jnp.count_nonzero(x > 0), jnp.sum(x > 0, -1), jnp.int32(x[..., 0]) % 2

  x = RNG.standard_normal((5, 40)).astype("f") * 9
  results = onnx.save(lambda _, x: fun(x), None, tmp_path / "m.onnx", inputs={"x": "f32[5,40]"})
  for found, expected in zip(onnx.run(results.path, {"x": x}).values(), fun(x), strict=True):
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
  found = nodes(tmp_path / "m.onnx")
  assert found.count("ReduceSum") == 2
  assert not {"Split", "Xor"} & {*found}


@pytest.mark.one_python
@pytest.mark.parametrize("bins", [[-2.0, 0.0, 1.0], [1.0, 0.5, -0.0, -3.0]], ids=["up", "down"])
def test_bins_that_are_known_are_searched_once(bins: list[float], tmp_path: Path) -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.digitize(x, jnp.array(bins) + 0 * jnp.arange(len(bins)))

  # XLA takes subnormal numbers for 0
  normal = HOSTILE[~(np.abs(HOSTILE) < np.finfo(np.float32).tiny) | (HOSTILE == 0)]
  x = np.stack([normal, RNG.standard_normal(normal.size).astype("f")])
  (found,) = answers(tmp_path / "m.onnx", fun, x)
  np.testing.assert_array_equal(found, jax.jit(fun)(x))
  known = len(nodes(tmp_path / "m.onnx"))
  answers(tmp_path / "other.onnx", lambda x: jnp.digitize(x, x[0, : len(bins)]), x)
  assert known < 0.7 * len(nodes(tmp_path / "other.onnx"))


@pytest.mark.one_python
def test_a_constant_condition_selects_nothing(tmp_path: Path) -> None:
  bits = np.arange(64, dtype=np.uint32).reshape(2, 32)
  shifted = answers(tmp_path / "shifts.onnx", lambda x: x << jnp.arange(32, dtype=x.dtype), bits)
  assert np.array_equal(shifted[0], bits << np.arange(32, dtype=np.uint32))
  assert "Where" not in nodes(tmp_path / "shifts.onnx")
  mixed = answers(tmp_path / "mixed.onnx", lambda x: x << jnp.arange(2, 34, dtype=x.dtype), bits)
  assert (mixed[0][:, 30:] == 0).all()
  # the chosen operand is smaller than the result
  row, rows = np.float32([1, 2]), np.ones((3, 2), np.float32)
  chosen = answers(
    tmp_path / "row.onnx",
    lambda x, y: jnp.where(jnp.array([[True]]), x[:1], y + 0 * x),
    rows * row,
    rows,
  )
  assert np.array_equal(chosen[0], rows * row)
